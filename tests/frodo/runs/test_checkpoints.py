"""Checkpoints: bit for bit, atomic, the last two, and what is said of those that cannot be read."""

import errno
import os
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from frodo.files import DiskError
from frodo.runs.checkpoints import Checkpoints
from frodo.runs.errors import UsageError
from frodo.runs.folders import has_checkpoint

HALF_WRITTEN = ".5.npz.1.tmp"


class State(NamedTuple):
    params: Any
    key: Any
    step: Any
    rest: Any


def make_state(seed=0):
    key = jax.random.key(seed)
    return State(
        params={"torso/~/linear": {"w": jax.random.normal(key, (3, 4)), "b": jnp.zeros(4, jnp.bfloat16)}},
        key=jax.random.split(key, (2, 3)),
        step=7 + seed,
        rest=(
            [np.array([True, False]), jnp.arange(3, dtype=jnp.uint32), jnp.zeros((0, 5)), None],
            jax.random.key(seed, impl="rbg"),
            np.float64(0.1),
            jnp.array([jnp.nan, -0.0, jnp.inf, 1e-40]),
            jax.random.PRNGKey(seed),
            (),
        ),
    )


def bits(leaf):
    is_key = isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    array = np.asarray(jax.random.key_data(leaf) if is_key else leaf)
    return type(leaf), str(getattr(leaf, "dtype", None)), np.shape(leaf), array.tobytes()


def test_a_state_is_restored_bit_for_bit(tmp_path):
    Checkpoints(tmp_path).save(10, make_state(3), {"seconds": 1.5})
    state, step, metadata = Checkpoints(tmp_path).restore(make_state(0))
    assert (step, metadata) == (10, {"seconds": 1.5})
    assert jax.tree.structure(state) == jax.tree.structure(make_state())
    assert jax.tree.map(bits, state) == jax.tree.map(bits, make_state(3))
    assert bits(jax.random.split(state.key[0, 0])) == bits(jax.random.split(make_state(3).key[0, 0]))


def test_devices_are_those_of_the_template(tmp_path):
    mesh = jax.make_mesh((1,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    sharding = jax.sharding.NamedSharding(mesh, jax.P("x"))
    Checkpoints(tmp_path).save(1, (jnp.arange(2), jnp.arange(2)), {})
    placed, free = Checkpoints(tmp_path).restore((jax.device_put(jnp.zeros(2, int), sharding), jnp.zeros(2, int)))[0]
    assert placed.sharding == sharding
    assert not free.committed


def test_the_last_two_are_kept(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    for step in (1, 2, 3, 3):
        checkpoints.save(step, {"x": jnp.array(step)}, {})
    assert sorted(os.listdir(tmp_path)) == ["2.npz", "3.npz"]
    assert checkpoints.restore({"x": jnp.array(0)})[0]["x"] == 3
    with pytest.raises(ValueError, match="checkpoint 1 comes after 3"):
        checkpoints.save(1, {"x": jnp.array(1)}, {})


def test_an_interrupted_save_does_not_count(tmp_path):
    Checkpoints(tmp_path).save(1, {"x": jnp.array(1)}, {})
    (tmp_path / HALF_WRITTEN).write_bytes(b"PK")
    assert Checkpoints(tmp_path, is_reader=True).restore({"x": jnp.array(0)})[1] == 1
    assert (tmp_path / HALF_WRITTEN).exists()  # it may be another process's
    checkpoints = Checkpoints(tmp_path)
    assert checkpoints.restore({"x": jnp.array(0)})[1] == 1
    checkpoints.save(2, {"x": jnp.array(2)}, {})
    assert sorted(os.listdir(tmp_path)) == ["1.npz", "2.npz"]


def test_a_reader_leaves_what_is_damaged(tmp_path, capsys):
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    for step in (1, 2):
        checkpoints.save(step, {"x": jnp.array(step)}, {})
    (tmp_path / "checkpoints" / "2.npz").write_bytes(b"")
    assert Checkpoints(tmp_path / "checkpoints", is_reader=True).restore({"x": jnp.array(0)})[1] == 1
    assert (tmp_path / "checkpoints" / "2.npz").exists() and "is damaged" in capsys.readouterr().err
    assert Checkpoints(tmp_path / "checkpoints").restore({"x": jnp.array(0)})[1] == 1
    assert not (tmp_path / "checkpoints" / "2.npz").exists()


def test_a_folder_has_a_checkpoint_once_it_is_whole(tmp_path):
    assert not has_checkpoint(tmp_path)
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / HALF_WRITTEN).write_bytes(b"PK")
    assert not has_checkpoint(tmp_path)
    Checkpoints(tmp_path / "checkpoints").save(1, {"x": jnp.array(1)}, {})
    assert has_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("template", "error"),
    [
        ({"a": jnp.zeros(2), "b": jnp.zeros(3)}, r"state\['b'\] is float32\[2\] there and float32\[3\] here"),
        ({"a": jnp.zeros(2, int), "b": jnp.zeros(2)}, r"state\['a'\] is float32\[2\] there and int32\[2\] here"),
        ({"a": jnp.zeros(2)}, r"state\['b'\] is float32\[2\] there and nothing here"),
        ({"a": jnp.zeros(2), "b": jnp.zeros(2), "c": 0}, r"state\['c'\] is nothing there and int64\[\] here"),
        ({"a": jax.random.split(jax.random.key(0)), "b": jnp.zeros(2)}, r"state\['a'\] is .* there and uint32\[2, 2\]"),
    ],
)
def test_another_structure_is_refused_by_the_first_leaf(tmp_path, template, error):
    Checkpoints(tmp_path).save(1, {"a": jnp.zeros(2), "b": jnp.zeros(2)}, {})
    with pytest.raises(UsageError, match=f"{tmp_path}/1.npz does not fit this program: {error}"):
        Checkpoints(tmp_path).restore(template)


def test_every_damage_to_the_data_is_found(tmp_path):
    state = {"x": jax.random.normal(jax.random.key(0), (2000,))}
    Checkpoints(tmp_path).save(1, state, {})
    path = tmp_path / "1.npz"
    good = path.read_bytes()
    flipped = good[: len(good) // 2] + bytes([good[len(good) // 2] ^ 1]) + good[len(good) // 2 + 1 :]
    for data in (flipped, good[: len(good) // 2], b""):
        path.write_bytes(data)
        with pytest.raises(UsageError, match=f"checkpoint {path} is damaged"):
            Checkpoints(tmp_path).restore(state)
    path.write_bytes(good)
    assert bits(Checkpoints(tmp_path).restore(state)[0]["x"]) == bits(state["x"])


def test_a_leaf_that_is_no_array_is_refused(tmp_path):
    with pytest.raises(TypeError, match=r"state\['f'\] is a object"):
        Checkpoints(tmp_path).save(1, {"f": object()}, {})


def test_a_full_disk_is_named(tmp_path, monkeypatch):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, {"x": jnp.array(1)}, {})

    def save(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(np, "savez", save)
    with pytest.raises(DiskError, match=f"^cannot write {tmp_path}/2.npz: No space left on device$"):
        checkpoints.save(2, {"x": jnp.array(2)}, {})
    assert Checkpoints(tmp_path).restore({"x": jnp.array(0)})[1] == 1


def test_a_save_of_many_small_leaves_is_quick(tmp_path):
    checkpoints, state = Checkpoints(tmp_path), {str(i): jnp.full(1000, i) for i in range(200)}
    start = time.process_time()
    checkpoints.save(1, state, {})
    assert time.process_time() - start < 0.5
