"""What a call of the library keeps: rows, checkpoints, results; how it goes on, is stopped, and what callbacks do."""

import csv
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import frodo
from frodo.regimes.in_jax import LivesInJax
from frodo.regimes.lifetimes import make_online_program
from toy_envs.bandit import Bandit
from toy_envs.base import DmEnv
from toy_envs.catch import Catch

ROOT = Path(__file__).parents[3]
KEY = jax.random.key(0)
TINY = dict(network=frodo.NetworkConfig("mlp", (4,)), unroll=3, num_updates=2, batch_size=2)
CLOCKS = ("seconds", "cpu_seconds", "peak_memory_mb", "learner_waiting", "actors_waiting")


def live(num_steps=12 * 250, environment=None, **how):
    return frodo.discover_online(environment or Catch(4, 3), "impala", num_steps=num_steps, key=KEY, **TINY | how)


def live_on_host(num_iterations=5, **how):
    return live(12 * num_iterations, [DmEnv(Catch(4, 3), seed) for seed in range(2)], **how)


def find(num_meta_steps=4, **how):
    settings = dict(key=KEY, network=frodo.NetworkConfig("mlp", (4,)), batch_size=2, unroll=3, validation_unroll=3)
    settings |= dict(num_updates=1, budgets=(30, 60))
    rule = frodo.make_rule("frodo", lstm=4)
    return frodo.discover({"a": Catch(4, 3)}, rule, num_meta_steps=num_meta_steps, **settings | how)


def rows(folder):
    with (folder / "metrics.csv").open(newline="") as file:
        return [{name: x for name, x in row.items() if name not in CLOCKS} for row in csv.DictReader(file)]


def assert_same(found, expected):
    for name, x in expected.metrics.items():
        np.testing.assert_array_equal(found.metrics[name], x, err_msg=name)
    jax.tree.map(np.testing.assert_array_equal, found.params, expected.params)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    return folder, live(folder=folder)


def test_rows_are_those_that_callbacks_see_and_of_a_file(whole, tmp_path):
    seen = []
    found = live(callbacks=[seen.append, frodo.CSV(tmp_path / "rows.csv")])
    assert [row["env_steps"] for row in seen] == [1200, 2400, 3000]
    assert [row["return"] for row in seen] == [float(row["return"]) for row in rows(whole[0])]
    assert len((tmp_path / "rows.csv").read_text().splitlines()) == 4
    assert_same(found, whole[1])


def test_the_same_call_gives_what_is_there_and_goes_on_if_it_is_longer(whole, tmp_path):
    first = live(12 * 120, folder=tmp_path)
    again = live(12 * 120, folder=tmp_path)
    assert_same(again, first)
    assert_same(live(folder=tmp_path), whole[1])
    with pytest.raises(ValueError, match=r"^num_steps is 1200, less than the 3000 of the run in "):
        live(1200, folder=tmp_path)


@pytest.mark.parametrize("how", ["a signal", "a callback", "an error"])
def test_a_run_that_is_stopped_goes_on_as_if_it_had_never_been(how, whole, tmp_path):
    def stop(row):
        if how == "an error":
            raise LookupError("mine")
        if how == "a signal":
            signal.raise_signal(signal.SIGINT)
        return how == "a callback"

    if how == "a callback":
        assert len(live(folder=tmp_path, callbacks=[stop]).metrics["return"]) == 100
    else:
        with pytest.raises(KeyboardInterrupt if how == "a signal" else LookupError):
            live(folder=tmp_path, callbacks=[stop])
    assert len(rows(tmp_path)) == 1
    assert_same(live(folder=tmp_path), whole[1])
    assert rows(tmp_path) == rows(whole[0])


def test_in_a_notebook_ctrl_c_gives_back_the_result_so_far(monkeypatch):
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    found = live(callbacks=[lambda row: signal.raise_signal(signal.SIGINT)])
    assert len(found.metrics["return"]) == 100 and len(found.go_on(24).metrics["return"]) == 102


KILLED = """
import os, signal, sys
import jax, frodo
from frodo.runs.checkpoints import Checkpoints
from frodo.runs.run import Run
from tests.frodo.runs import test_driver
Run.is_due = lambda self: True
save, times = Checkpoints.save, []
def save_and_die(self, step, state, metadata):
    times.append(step)
    if len(times) == 2 and sys.argv[2] == "inside":
        (self.folder / f".{step}.npz.1.tmp").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    save(self, step, state, metadata)
    if len(times) == 1 and sys.argv[2] == "between":
        os.kill(os.getpid(), signal.SIGKILL)
Checkpoints.save = save_and_die
getattr(test_driver, sys.argv[3])(folder=sys.argv[1])
"""


def kill(call, when, folder):
    command = [sys.executable, "-c", KILLED, str(folder), when, call.__name__]
    done = subprocess.run(command, cwd=ROOT, capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr


@pytest.mark.parametrize("when", ["between", "inside"])
def test_a_script_that_is_killed_goes_on_as_if_it_had_never_been(when, whole, tmp_path):
    kill(live, when, tmp_path)
    assert_same(live(folder=tmp_path), whole[1])
    assert rows(tmp_path) == rows(whole[0])


def test_on_the_host_rows_so_far_stay_also_where_it_is_killed(tmp_path):
    kill(live_on_host, "inside", tmp_path)
    before = rows(tmp_path)
    found = live_on_host(folder=tmp_path)
    assert before and rows(tmp_path)[: len(before) - 1] == before[:-1]  # the last one, if its checkpoint was not whole
    assert found.metrics["env_steps"].tolist() == [12, 24, 36, 48, 60]
    assert len(live_on_host(7, folder=tmp_path).metrics["env_steps"]) == len(rows(tmp_path)) == 7


def test_a_population_that_is_killed_goes_on_as_if_it_had_never_been(tmp_path):
    find(folder=tmp_path / "whole")
    kill(find, "inside", tmp_path / "killed")
    find(folder=tmp_path / "killed")
    assert rows(tmp_path / "killed") == rows(tmp_path / "whole")


def test_a_population_goes_on(tmp_path):
    expected = find(4)
    find(2, folder=tmp_path)
    found = find(4, folder=tmp_path)
    for name, x in expected.metrics.items():
        np.testing.assert_array_equal(found.metrics[name], x, err_msg=name)
    jax.tree.map(np.testing.assert_array_equal, found.rule.meta_params, expected.rule.meta_params)
    assert found.rule.origin == expected.rule.origin and len(rows(tmp_path)) == 4
    with pytest.raises(ValueError, match="^experiment was discover in .* and is online now$"):
        live(folder=tmp_path)


def test_no_program_is_compiled_after_the_second_chunk(monkeypatch):
    compiled, chunks, inside = [], [], []
    advance = LivesInJax.advance

    def watched(self, state, step):
        chunks.append(step)
        inside.append(True)
        try:
            return advance(self, state, step)
        finally:
            inside.clear()

    monkeypatch.setattr(LivesInJax, "advance", watched)
    listen = lambda name, *_, **__: inside and "backend_compile" in name and compiled.append(len(chunks))
    jax.monitoring.register_event_duration_secs_listener(listen)  # which stays, and hears nothing outside of a chunk
    live(12 * 450)
    assert len(chunks) == 5 and max(compiled) <= 2


def test_a_chunk_does_not_call_the_host():
    learner = frodo.make_learner("impala", 3, **TINY)
    program = make_online_program(learner, Catch(4, 3))
    text = jax.jit(program.run, static_argnums=1).lower(jax.eval_shape(program.init, KEY), 3).as_text()
    assert len(text) > 1000 and not re.search("callback|infeed|outfeed|@send|@recv", text)


@pytest.mark.parametrize(
    ("how", "error", "message"),
    [
        ({"callbacks": [print, 3]}, TypeError, r"^callbacks\[1\] is 3, expected a function of a row"),
        ({"callbacks": print}, TypeError, "^callbacks are <built-in function print>, expected a list"),
        ({"callbacks": [frodo.CSV]}, TypeError, r"^callbacks\[0\] is <class .*CSV'>, expected"),
        ({"callbacks": [frodo.TensorBoard()]}, ValueError, "^TensorBoard: the run has no folder; give TensorBoard"),
        ({"folder": 3}, TypeError, "^folder is 3, expected that of a run"),
    ],
)
def test_what_is_not_right_is_named(how, error, message):
    with pytest.raises(error, match=message):
        live(**how)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"key": jax.random.key(1)}, r"^key was \[0, 0\] in .* and is \[0, 1\] now$"),
        ({"unroll": 4}, "^unroll was 3 in .* and is 4 now$"),
        ({"environment": Catch(5, 3)}, "^environment was .* and is .* now$"),
    ],
)
def test_the_folder_of_another_run_is_refused(how, message, whole):
    before = {path: path.read_bytes() for path in whole[0].rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match=message):
        live(**{"folder": whole[0]} | how) if "key" not in how else frodo.discover_online(
            Catch(4, 3), "impala", num_steps=3000, folder=whole[0], **TINY | how
        )
    assert {path: path.read_bytes() for path in whole[0].rglob("*") if path.is_file()} == before


def test_a_run_with_the_checkpoints_of_earlier_versions_is_refused_and_kept(whole, tmp_path):
    folder = shutil.copytree(whole[0], tmp_path / "run")
    for path in (folder / "checkpoints").iterdir():
        path.unlink()
        path.with_suffix("").mkdir()  # as Orbax had them
    before = (folder / "metrics.csv").read_bytes()
    with pytest.raises(ValueError, match="holds a run of another version, which alone can go on with it"):
        live(folder=folder)
    assert (folder / "metrics.csv").read_bytes() == before


def test_two_runs_in_one_folder(tmp_path):
    def again(row):
        live(folder=tmp_path)

    with pytest.raises(ValueError, match="is being written by another process"):
        live(folder=tmp_path, callbacks=[again])


def test_held_out_returns_are_in_the_rows_of_those_after(tmp_path):
    seen = []
    live(callbacks=[frodo.HeldOut(Catch(4, 3), num_episodes=8), seen.append], folder=tmp_path)
    values = [row["held_out_return"] for row in seen]
    assert len(values) == 3 and all(-1 <= x <= 1 for x in values)
    assert [float(row["held_out_return"]) for row in rows(tmp_path)] == values
    with pytest.raises(ValueError, match="^HeldOut: the environment is stepped on the host, expected one in JAX"):
        frodo.HeldOut([DmEnv(Catch(4, 3), 0)])


@pytest.mark.parametrize(
    ("other", "found"), [(Catch(5, 3), r"3 actions .* \[5, 3\]"), (Bandit(3), r"3 actions .* \[1\]")]
)
def test_a_held_out_environment_of_another_shape_is_refused(other, found):
    expected = r"3 actions and observations \[4, 3\], as the agent learns from"
    with pytest.raises(ValueError, match=f"^HeldOut: the environment has {found}, expected {expected}$"):
        live(12 * 5, callbacks=[frodo.HeldOut(other)])


def test_a_population_has_no_held_out_agent():
    with pytest.raises(TypeError, match="^callback HeldOut: the result is .*, expected that of discover_online$"):
        find(1, callbacks=[frodo.HeldOut(Catch(4, 3))])


def test_a_checkpoint_is_a_result_that_loads(tmp_path):
    found = live(callbacks=[frodo.Checkpoint(tmp_path / "agent.npz", seconds=0)])
    loaded = frodo.load(tmp_path / "agent.npz")
    assert_same(loaded, found)
    before = (tmp_path / "agent.npz").read_bytes()
    with pytest.raises(frodo.NotFiniteError, match="parameters are not finite"):
        live(callbacks=[frodo.Checkpoint(tmp_path / "agent.npz")], optimizer=frodo.adam(1e38))
    assert (tmp_path / "agent.npz").read_bytes() == before
