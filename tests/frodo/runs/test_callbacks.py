"""Who watches a run: TensorBoard's files have the rows of metrics.csv, once; what Weights & Biases is told."""

import csv
import errno
import struct
import sys
import time
import types
from collections import Counter

import numpy as np
import pytest
from tensorboardX.proto.event_pb2 import Event

from frodo.files import DiskError
from frodo.runs import callbacks
from frodo.runs.errors import RunError, UsageError
from frodo.runs.folders import RunOptions
from tests.frodo.runs.random_sum import Config, run

CLOCKS = ("seconds", "cpu_seconds", "peak_memory_mb")


def options(folder, steps=50, **others):
    return RunOptions(seeds=(0, 1), steps=steps, out=str(folder), **others)


def events(path):
    """The tag, step, value and time of every scalar in an event file: records of a length, its check, data, theirs."""
    data, found = path.read_bytes(), []
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        event, data = Event.FromString(data[12 : 12 + length]), data[16 + length :]
        found += [(value.tag, event.step, value.simple_value, event.wall_time) for value in event.summary.value]
    return found


def test_tensorboard_has_each_row_once_also_where_a_run_goes_on(tmp_path):
    run(Config(), options(tmp_path, 30, log_to=("tensorboard",)))
    for path in tmp_path.glob("tensorboard/*/*"):
        path.rename(path.with_name("events.out.tfevents.1.of_an_earlier_day"))
    run(Config(), options(tmp_path, 50, resume=True, log_to=("tensorboard",)))
    with (tmp_path / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 10
    for seed in "01":
        (path,) = (tmp_path / "tensorboard" / f"seed_{seed}").iterdir()
        found = events(path)
        assert Counter(Counter((tag, step) for tag, step, *_ in found).values()).keys() == {1}
        own = {int(row["env_steps"]): float(row["return"]) for row in rows if row["seed"] == seed}
        assert {step: value for tag, step, value, _ in found if tag == "return"} == pytest.approx(own)
        starts = [when - seconds for tag, _, seconds, when in found if tag == "seconds"]
        np.testing.assert_allclose(starts, starts[0], rtol=0, atol=1e-3)
        assert 0 <= time.time() - found[-1][-1] < 60
        assert {tag for tag, *_ in found} == {
            "update",
            "env_frames",
            "seconds",
            "cpu_seconds",
            "peak_memory_mb",
            "return",
        }


def test_a_full_disk_ends_a_run_in_one_line(tmp_path, monkeypatch):
    def refused(writer):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("tensorboardX.event_file_writer.EventsWriter.flush", refused)
    with pytest.raises(DiskError, match="^cannot write .*tensorboard/seed_0: No space left on device$"):
        run(Config(), options(tmp_path, log_to=("tensorboard",)))


def test_a_run_is_replaced_with_what_was_watched_of_it(tmp_path):
    run(Config(), options(tmp_path, log_to=("tensorboard",)))
    run(Config(), options(tmp_path, overwrite=True))
    assert not (tmp_path / "tensorboard").exists()


def test_weights_and_biases_has_a_run_for_each_life_which_goes_on(tmp_path, monkeypatch):
    begun, told = [], []

    class FakeRun:
        def __init__(self, **settings):
            begun.append(settings)
            self.log = lambda values, step: told.append((settings["id"], step, values))
            self.finish = lambda: told.append((settings["id"], "finished"))

    fake = types.SimpleNamespace(init=FakeRun, Settings=dict, errors=types.SimpleNamespace(Error=RuntimeError))
    fake.__spec__ = fake  # it is installed
    monkeypatch.setitem(sys.modules, "wandb", fake)
    for steps, resume in ((30, False), (50, True)):
        run(Config(), options(tmp_path, steps, resume=resume, log_to=("wandb",)))
    assert {settings["reinit"] for settings in begun} == {"create_new"}
    first, second, *again = [settings["id"] for settings in begun]
    assert [first, second] == again and first.endswith("seed_0") and second.endswith("seed_1")
    assert begun[0]["resume"] == "allow" and begun[0]["group"] == "random_sum/" + begun[0]["config"]["name"]
    assert [step for own, step, *_ in told if own == first] == [10, 20, 30, "finished", 40, 50, "finished"]
    assert set(told[0][2]) == {*CLOCKS, "update", "env_frames", "return"}

    def refused(**settings):
        raise RuntimeError("no key")

    fake.init = refused
    with pytest.raises(RunError, match="^wandb: no key$"):
        run(Config(), options(tmp_path, overwrite=True, log_to=("wandb",)))
    assert not list(tmp_path.iterdir()), "nothing half-written"


def test_weights_and_biases_without_a_network(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    run(Config(), options(tmp_path, 20, log_to=("wandb",)))
    (folder,) = (tmp_path / "wandb").glob("offline-run-*_seed_0")
    assert list(folder.glob("run-*_seed_0.wandb"))


def test_lives_of_a_grid_are_told_apart():
    assert callbacks.life_of({"seed": 3, "learning_rate": "0.010"}) == "seed_3_rate_0.01"
    row = {"seed": 3, "learning_rate": 0.1, "env_steps": 5, "return": "", "loss": "inf", "episodes": 4, "entropy": 0.5}
    assert callbacks.drawn(row) == {"episodes": 4.0, "entropy": 0.5}


def test_who_cannot_watch_is_named(monkeypatch):
    with pytest.raises(UsageError, match="^--log_to=tensorbord: there is no such watcher .did you mean .tensorboard"):
        callbacks.by_name(["wandb", "tensorbord"])
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"^--log_to: tensorboard needs tensorboardX: pip install 'frodo-rl\[tensorbo"):
        callbacks.by_name(["tensorboard"])
