"""Run folders in which something went wrong: the newest whole checkpoint is taken, or one line says why none is."""

import json
import os
import shutil

import jax.numpy as jnp
import numpy as np
import pytest

from frodo.runs.checkpoints import Checkpoints
from frodo.runs.errors import UsageError
from frodo.runs.folders import RunOptions, has_checkpoint
from tests.frodo.runs.random_sum import Config, run

TEMPLATE = {"x": jnp.array(0)}


@pytest.fixture
def folder(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=3)
    for step in (1, 2):
        checkpoints.save(step, {"x": jnp.array(step)}, {})
    return tmp_path


def copied(folder, name):
    shutil.copy(folder / "2.npz", folder / f"{name}.npz")


def with_arrays(folder, **arrays):
    np.savez(folder / "5.npz", **arrays)


INDEX = {"index.json": np.frombuffer(b'{"step": 5, "leaves": {"x": "int32[]"}, "metadata": {}}', np.uint8)}
NEWER = {
    "empty": lambda folder: (folder / "5.npz").write_text(""),
    "without its index": lambda folder: with_arrays(folder, **{"0": np.zeros(4, np.uint8)}),
    "without its arrays": lambda folder: with_arrays(folder, **INDEX),
    "with another array": lambda folder: with_arrays(folder, **INDEX, **{"0": np.zeros(3, np.uint8)}),
    "with another index": lambda folder: with_arrays(folder, **{"index.json": np.zeros(3, np.uint8)}),
    "of another step": lambda folder: copied(folder, "5"),
    "of a step that no run has": lambda folder: copied(folder, "9" * 30),
}
NOT_COUNTED = {
    "a folder": lambda folder: (folder / "5.npz").mkdir(),
    "of another ending": lambda folder: (folder / "5").write_text(""),
    "no number": lambda folder: copied(folder, "abc"),
    "negative": lambda folder: copied(folder, "-5"),
    "leading zeros": lambda folder: copied(folder, "007"),
    "other digits": lambda folder: copied(folder, "٣"),
    "a link to nothing": lambda folder: os.symlink(folder / "nowhere", folder / "5.npz"),
}


@pytest.mark.parametrize("kind", NEWER)
def test_the_newest_whole_checkpoint_is_taken_with_one_line(folder, kind, capsys):
    NEWER[kind](folder)
    state, step, _ = Checkpoints(folder, is_reader=True).restore(TEMPLATE)
    assert (int(state["x"]), step) == (2, 2)
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "is damaged" in said and "going on from the one before, 2" in said
    checkpoints = Checkpoints(folder)
    assert checkpoints.restore(TEMPLATE)[1] == 2
    checkpoints.save(3, {"x": jnp.array(3)}, {})
    assert Checkpoints(folder).restore(TEMPLATE)[1] == 3


@pytest.mark.parametrize("kind", NOT_COUNTED)
def test_what_is_no_checkpoint_is_left_alone(folder, kind, capsys):
    NOT_COUNTED[kind](folder)
    before = set(os.listdir(folder))
    checkpoints = Checkpoints(folder, keep=3)
    assert checkpoints.restore(TEMPLATE)[1] == 2 and not capsys.readouterr().err
    assert set(os.listdir(folder)) == before
    checkpoints.save(6, {"x": jnp.array(6)}, {})
    assert Checkpoints(folder).restore(TEMPLATE)[1] == 6


@pytest.mark.parametrize("kind", {**NEWER, **NOT_COUNTED})
def test_a_run_with_nothing_whole_has_none_or_says_so(tmp_path, kind):
    folder = tmp_path / "checkpoints"
    Checkpoints(folder).save(2, {"x": jnp.array(2)}, {})
    {**NEWER, **NOT_COUNTED}[kind](folder)
    (folder / "2.npz").unlink()
    if kind in NOT_COUNTED:
        assert not has_checkpoint(tmp_path)
    with pytest.raises(UsageError) as error:
        Checkpoints(folder).restore(TEMPLATE)
    assert "\n" not in str(error.value) and len(str(error.value).replace(str(tmp_path), "")) < 300


def options(folder, steps, **others):
    return RunOptions(seeds=(0, 1), steps=steps, out=str(folder), **others)


def test_a_run_goes_on_past_an_empty_checkpoint(tmp_path, capsys):
    whole = run(Config(), options(tmp_path / "whole", 40))
    run(Config(), options(tmp_path / "parts", 20))
    (tmp_path / "parts" / "checkpoints" / "30.npz").touch()
    resumed = run(Config(), options(tmp_path / "parts", 40, resume=True))
    assert jnp.array_equal(resumed.total["w"], whole.total["w"])
    assert capsys.readouterr().err.count("is damaged") == 1


def with_steps(record):
    return json.dumps(json.loads(record) | {"steps": "x"}).encode()


def with_resumed(record):
    return json.dumps(json.loads(record) | {"resumed": 3}).encode()


def with_settings_of_other_types(record):
    known = json.loads(record)
    return json.dumps(known | {"config": known["config"] | {"learning_rate": [1]}}).encode()


@pytest.mark.parametrize(
    ("name", "spoil"),
    [
        ("config.json", lambda _: b"[" * 200_000),
        ("config.json", lambda _: b"\xff\xfe\x00"),
        ("config.json", lambda _: b"[]"),
        ("config.json", with_steps),
        ("config.json", with_resumed),
        ("config.json", with_settings_of_other_types),
        ("metrics.csv", lambda data: bytes(len(data))),
        ("metrics.csv", lambda data: b"\xff" * len(data)),
        ("metrics.csv", lambda data: b"\n" * len(data)),
        ("metrics.csv", lambda data: data[data.index(b"\n") + 1 :] * 2),
    ],
)
def test_a_damaged_record_is_named_in_one_line(tmp_path, name, spoil):
    run(Config(), options(tmp_path, 20))
    path = tmp_path / name
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(UsageError, match=rf"^--resume: .*({name} is damaged|another version)") as error:
        run(Config(), options(tmp_path, 40, resume=True))
    assert "\n" not in str(error.value) and len(str(error.value)) < 400
