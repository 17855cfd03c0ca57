"""One batch of environments, split over devices: what has an axis of environments is split along it, all else is whole.

Programs are written for the whole batch. Where a mesh is set (`over`) while they are traced, JAX's automatic
partitioning makes them programs of all its devices, with sums over the batch as sums over devices; so losses, moving
averages and draws stay what they are. The functions here only say what is to lie where; without a mesh they do nothing.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from agents.types import Trajectory

AXIS = "environments"  # of the mesh
Tree = TypeVar("Tree")


@contextlib.contextmanager
def over(num_devices: int) -> Iterator[None]:
    """Split the batches of programs over the first so many devices, 0 for no split.

    They are those that are called in the `with` block, or that this decorates.
    """
    if not num_devices:
        yield
        return
    devices = jax.devices()[:num_devices]
    with jax.set_mesh(jax.make_mesh((num_devices,), (AXIS,), (jax.sharding.AxisType.Auto,), devices=devices)):
        yield


def num_shares(num: int = 0) -> int:
    """Return the number of devices over which a batch of so many is split: 1 where they do not divide it."""
    size = dict(jax.sharding.get_abstract_mesh().shape).get(AXIS, 1)
    return size if num % size == 0 else 1


def whole(tree: Tree) -> Tree:
    """Have arrays as a whole on every device."""
    return _constrained(tree, PartitionSpec()) if num_shares() > 1 else tree


def split(tree: Tree, axis: int = 0) -> Tree:
    """Split arrays along their axis of environments."""
    return _constrained(tree, _spec(axis)) if num_shares() > 1 else tree


def split_trajectory(trajectory: Trajectory, axis: int = 1) -> Trajectory:
    """Split a trajectory along its axis of environments, which the core's state has one earlier."""
    core_state = split(trajectory.core_state, axis - 1)
    return split(trajectory._replace(core_state=()), axis)._replace(core_state=core_state)


def of_processes(trajectory: Trajectory, axis: int = 1) -> Trajectory:
    """Make one trajectory of those that the processes acted, each on its own devices; call it where a mesh is set."""
    if num_shares() == 1:
        return trajectory
    mesh = jax.sharding.get_mesh()

    def placed(tree: Tree, axis: int) -> Tree:
        sharding = NamedSharding(mesh, _spec(axis))
        return jax.tree.map(lambda x: jax.make_array_from_process_local_data(sharding, np.asarray(x)), tree)

    core_state = placed(trajectory.core_state, axis - 1)
    return placed(trajectory._replace(core_state=()), axis)._replace(core_state=core_state)


def here(tree: Tree) -> Tree:
    """Return arrays that every device has, as this process's first device has them."""
    return jax.tree.map(lambda x: x.addressable_data(0), tree)


def by_share(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Let each device compute a function of weights and pytrees [T, B, ...] for its own environments alone.

    Of a scan, the weights' gradient is then summed over devices once, and not at every step.
    """

    def on_shares(weights: Any, *batches: Any) -> Any:
        if num_shares(jax.tree.leaves(batches)[0].shape[1]) == 1:
            return fn(weights, *batches)
        in_specs = (PartitionSpec(), *(_spec(1) for _ in batches))
        return jax.shard_map(fn, in_specs=in_specs, out_specs=_spec(1), check_vma=False)(weights, *batches)

    return on_shares


def _spec(axis: int) -> PartitionSpec:
    return PartitionSpec(*[None] * axis, AXIS)


def _constrained(tree: Tree, spec: PartitionSpec) -> Tree:
    return jax.tree.map(lambda x: jax.lax.with_sharding_constraint(x, spec), tree)
