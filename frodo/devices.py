"""Seeds, or the agents of a population, shared out over devices and processes."""

import os
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, PartitionSpec

from frodo.states import is_key


def quick_to_compile() -> dict[str, Any]:
    """Return compiler options for a program that seldom runs: CPUs compile it in half the time, in less memory.

    Level 1 gives the same numbers as the default; level 0 rounds initial weights in another way. What XLA_FLAGS says
    is left as it is.
    """
    if jax.default_backend() != "cpu":
        return {}
    options: dict[str, Any] = {"xla_backend_optimization_level": 1}
    if jax.__version_info__ < (0, 11):
        options["xla_cpu_use_fusion_emitters"] = False  # later ones use them always
    return {name: x for name, x in options.items() if f"--{name}" not in os.environ.get("XLA_FLAGS", "")}


def cpu_devices() -> list[jax.Device]:
    """Return the CPU's devices, for which programs can be compiled wherever that is.

    Raises:
      ValueError: if JAX was told to leave them out.
    """
    try:
        return jax.local_devices(backend="cpu")
    except RuntimeError:
        raise ValueError(
            f"JAX_PLATFORMS is {os.environ.get('JAX_PLATFORMS')}, expected one with cpu, such as cuda,cpu: what a "
            "program costs is what the compiler for CPUs says"
        ) from None


def shared_out(fn: Callable[..., Any], num: int, among: Sequence[jax.Device] = ()) -> Callable[..., Any]:
    """Run a function of a pytree [num, ...] on as many devices as divide `num`, each with its share of it.

    They are among this process's devices, or among those that are given. Further arguments are whole on each of them.
    """
    mesh = make_mesh(num, among or jax.local_devices(), "share")
    spec, whole = PartitionSpec("share"), PartitionSpec()

    def run(tree: Any, *others: Any) -> Any:
        specs = (spec, *[whole] * len(others))
        return jax.shard_map(fn, mesh=mesh, in_specs=specs, out_specs=spec, check_vma=False)(tree, *others)

    return run


def num_shares(num: int) -> int:
    """Return how many devices `shared_out` uses for so many."""
    return make_mesh(num, jax.local_devices(), "share").size


def make_mesh(num: int, among: Sequence[jax.Device], axis: str) -> Mesh:
    """Make a mesh of the first devices among these, as many as divide `num`."""
    size = mesh_size(num, len(among))
    return jax.make_mesh((size,), (axis,), (jax.sharding.AxisType.Auto,), devices=among[:size])


def mesh_size(num: int, num_devices: int) -> int:
    """Return how many of the devices divide `num`, at most."""
    return max(n for n in range(1, num_devices + 1) if num % n == 0)


def is_first() -> bool:
    """Say whether this process is alone, or the first of several; alone, it does not begin JAX."""
    return not jax.distributed.is_initialized() or jax.process_index() == 0


def agree(*numbers: int) -> list[int]:
    """Return for each number the largest that a process has; every process calls this at the same time."""
    if jax.process_count() == 1:
        return list(numbers)
    return np.max(multihost_utils.process_allgather(np.array(numbers)), axis=0).tolist()


def total(*numbers: float) -> list[float]:
    """Return for each number its sum over processes; every process calls this at the same time."""
    if jax.process_count() == 1:
        return list(numbers)
    return np.sum(multihost_utils.process_allgather(np.array(numbers, np.float32)), axis=0).tolist()


def gather(state: Any) -> Any:
    """Return a state that is shared out over processes with the parts of all of them."""
    if jax.process_count() == 1:
        return state
    data = jax.tree.map(lambda x: jax.random.key_data(x) if is_key(x) else x, state)
    whole = multihost_utils.process_allgather(data, tiled=True)
    return jax.tree.map(lambda x, y: jax.random.wrap_key_data(y) if is_key(x) else y, state, whole)


def own_key(key: jax.Array) -> jax.Array:
    """Return the random key of this process: of process 0 it is the key itself."""
    process = jax.process_index()
    return jax.random.fold_in(key, 1 + process) if process else key  # a split takes 0 and 1


def of_first(tree: Any) -> Any:
    """Return the numbers and random keys that process 0 has; every process calls this at the same time."""
    if jax.process_count() == 1:
        return tree

    def told(x: Any) -> Any:
        if is_key(x):
            return jax.random.wrap_key_data(multihost_utils.broadcast_one_to_all(jax.random.key_data(x)))
        return type(x)(tell(str(x)))  # an array would have 32 bits

    return jax.tree.map(told, tree)


def scatter(whole: Any, step: int, like: Any) -> tuple[Any, int]:
    """Share out over the devices what `gather` returned, as `like` is; state and step are those of process 0."""
    if jax.process_count() == 1:
        return jax.device_put(whole, jax.tree.map(lambda x: x.sharding, like)), step
    data = jax.tree.map(lambda x: jax.random.key_data(x) if is_key(x) else x, whole)
    data = multihost_utils.broadcast_one_to_all(data)

    def share(x: np.ndarray, old: jax.Array) -> jax.Array:
        if is_key(old):
            return jax.random.wrap_key_data(share(x, jax.random.key_data(old)))
        return jax.make_array_from_callback(x.shape, old.sharding, lambda index: x[index])

    return jax.tree.map(share, data, like), of_first(step)


def tell(text: str) -> str:
    """Return the text that process 0 has; every process calls this at the same time."""
    if jax.process_count() == 1:
        return text
    data = np.frombuffer(text.encode(), np.uint8)
    (size,) = multihost_utils.broadcast_one_to_all(np.array([len(data)]))
    return bytes(multihost_utils.broadcast_one_to_all(np.resize(data, size)).tolist()).decode()
