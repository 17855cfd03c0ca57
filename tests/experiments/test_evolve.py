"""The search as a program: its files, exact resume, a rule that others read, and what bad input says."""

import csv
import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from experiments.runs import search as evolve
from experiments.runs.search import EvolveConfig
from frodo.regimes import evolution
from frodo.regimes.search_settings import TargetLaneConfig
from frodo.rules.files import load_rule
from frodo.runs import workers
from frodo.runs.errors import UsageError
from frodo.runs.folders import RunOptions
from meta.programs.equivalence import distance_from_td
from meta.programs.lanes import LaneConfig
from meta.programs.language import LOSSES, parse

ROOT = Path(__file__).parents[2]
LANE = LaneConfig(
    hidden=(8,), learning_rate=3e-3, ends="values", exploration=50, capacity=100, batch_size=8, num_episodes=20
)
CONFIG = EvolveConfig(
    population_size=10,
    tournament_size=4,
    num_lanes=4,
    num_full_lanes=2,
    chunk=20,
    lane=LANE,
    envs=("toy/catch/5x5",),
    num_finalists=2,
    num_final_seeds=3,
    num_seeds=3,
    hurdle=-1.0,
)


def rows(path):
    with path.open(newline="") as file:
        return [
            {k: v for k, v in row.items() if "seconds" not in k and "memory" not in k} for row in csv.DictReader(file)
        ]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    return folder, evolve.run(CONFIG, RunOptions((0,), 12, out=str(folder)))


def test_files(whole):
    folder, summary = whole
    programs = rows(folder / "programs.csv")
    assert len(programs) == summary["evaluated"] == 12
    assert [row["score/toy/catch/5x5"] for row in programs] == [row["score"] for row in programs]
    best = sorted(programs, key=lambda row: (-float(row["score"]), int(row["number"])))[:2]
    finalists = rows(folder / "finalists.csv")
    assert [(row["number"], row["seed"]) for row in finalists] == [
        (x["number"], y) for x in best for y in ("1000", "1001", "1002")
    ]
    again = {x["number"]: [float(y["score"]) for y in finalists if y["number"] == x["number"]] for x in best}
    assert summary["score/toy/catch/5x5"] == pytest.approx(max(map(np.median, again.values())))
    assert json.loads((folder / "summary.json").read_text())["formula"] == summary["formula"]
    fresh = {x["formula"]: np.median(again[x["number"]]) for x in best}
    assert [x["fresh seeds"] for x in summary["finalists"]] == pytest.approx(sorted(fresh.values(), reverse=True))
    assert {x["formula"]: x["search"] for x in summary["finalists"]} == {
        x["formula"]: pytest.approx(float(x["score"])) for x in best
    }
    distances = [distance_from_td(parse(LOSSES, row["formula"]), "values") for row in programs]
    assert summary["distance_from_td"] == pytest.approx(min(distances), abs=1e-3)
    nearest = [row for row, x in zip(programs, distances, strict=True) if x < min(distances) + 1e-3]
    assert summary["nearest_to_td"] in [row["formula"] for row in nearest]
    assert float(rows(folder / "metrics.csv")[-1]["best_score"]) == pytest.approx(float(best[0]["score"]))
    assert all((folder / f"{name}.png").is_file() for name in ("best", "program", "family"))


@pytest.mark.long
def test_workers_of_a_cluster_evaluate_programs_and_one_of_them_is_killed(start, tmp_path):
    import distributed

    how = dict(n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address="127.0.0.1:0", memory_limit=0)
    with distributed.LocalCluster(**how) as cluster:

        def kill():
            while not any(worker.processing for worker in cluster.scheduler.workers.values()):
                time.sleep(0.05)
            os.kill(cluster.workers[0].process.pid, signal.SIGKILL)

        thread = threading.Thread(target=kill)
        thread.start()
        with workers.cluster(cluster.scheduler_address) as executor:
            summary = evolve.run(CONFIG, RunOptions((0,), 12, out=str(tmp_path)), executor)
        thread.join()
    assert summary["evaluated"] == 12 and "programs_per_cpu_hour" not in summary
    programs = rows(tmp_path / "programs.csv")
    assert [row["number"] for row in programs] == [str(i) for i in range(12)] and all(row["score"] for row in programs)


def test_a_search_that_has_found_all_there_is_ends_with_its_finalists(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(evolution, "MAX_KNOWN", 50)
    start = "Q(s)[a]" + " + r + gamma" * 9  # has no room for anything else
    config = dataclasses.replace(CONFIG, start=start, mutation_share=0.0)
    for resume in (False, True):
        summary = evolve.run(config, RunOptions((0,), 12, out=str(tmp_path), resume=resume))
        assert summary["evaluated"] == 1 and load_rule(str(tmp_path / "rule.npz")).config.rule.name == "program"
        assert "50 programs in a row were equal to one of the 1 before" in capsys.readouterr().err


def test_the_rule_is_the_best_program_and_is_read_by_its_file(whole):
    folder, summary = whole
    rule = load_rule(folder / "rule.npz")
    assert rule.config.rule.settings.formula == summary["formula"]
    with (folder / "programs.csv").open(newline="") as file:
        in_the_search = sum(int(row["env_steps"]) for row in csv.DictReader(file))
    assert rule.origin.envs == ("toy/catch/5x5",) and rule.origin.env_steps > in_the_search > 12 * 40
    assert rule.config.network.hidden == (8,) and rule.config.replay.batch_size == 8
    assert rule.config.rule.settings.ends == "values"
    parse(LOSSES, summary["formula"])


def test_agents_are_trained_by_what_was_found(whole, start, tmp_path):
    arguments = [f"--rule={whole[0] / 'rule.npz'}", "--env=toy/catch/5x5", "--seeds=0,1", "--steps=2000"]
    done = start("experiments.evaluate", f"--out={tmp_path}", *arguments)
    assert done.returncode == 0, done.stderr
    last = rows(tmp_path / "metrics.csv")[-1]
    assert int(last["env_steps"]) == 2000 and -1 <= float(last["return"]) <= 1


def test_a_search_that_is_stopped_and_goes_on_is_one_that_never_stopped(whole, tmp_path, monkeypatch):
    folder, _ = whole
    advance = evolve.Searches.advance

    def stop_at_3(self, state, step):
        if step == 2:
            signal.raise_signal(signal.SIGINT)
        return advance(self, state, step)

    with monkeypatch.context() as patch:
        patch.setattr(evolve.Searches, "advance", stop_at_3)
        with pytest.raises(SystemExit):
            evolve.run(CONFIG, RunOptions((0,), 12, out=str(tmp_path)))
    evolve.run(CONFIG, RunOptions((0,), 12, out=str(tmp_path), resume=True))
    for name in ("metrics.csv", "programs.csv", "finalists.csv"):
        assert rows(tmp_path / name) == rows(folder / name)
    expected, found = (load_rule(x / "rule.npz") for x in (folder, tmp_path))
    assert expected.config == found.config
    jax.tree.map(np.testing.assert_array_equal, expected.meta_params, found.meta_params)


@pytest.mark.long
def test_a_search_that_is_killed_five_times_is_one_that_never_was(whole, tmp_path):
    folder, _ = whole
    code = f"""
import sys
from tests.experiments.test_evolve import *
chunks = 0
step = evolve.Evolution.step
def killed(self, num_programs):
    global chunks
    chunks += 1
    if chunks == {{die_at}}:
        os.kill(os.getpid(), signal.SIGKILL)
    step(self, num_programs)
evolve.Evolution.step = killed
evolve.Run.is_due = lambda self: True
evolve.run(CONFIG, RunOptions((0,), 12, out={str(tmp_path)!r}, resume={{resume}}))
"""
    kept = {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.1",
    }
    env = os.environ | kept  # each process would compile the same
    for i, die_at in enumerate((3, 2, 4, 1, 2, 0)):
        text = code.format(die_at=die_at, resume=i > 0)
        done = subprocess.run([sys.executable, "-c", text], env=env, capture_output=True, text=True, cwd=ROOT)
        assert done.returncode == (-signal.SIGKILL if die_at else 0), done.stderr
    for name in ("metrics.csv", "programs.csv", "finalists.csv"):
        assert rows(tmp_path / name) == rows(folder / name)


@pytest.mark.long
def test_two_processes_search_as_one_with_two_devices_does_and_go_on_where_they_stopped(tmp_path):
    # Lanes shared out over another number of devices round in another way, and the life of a bad program is chaotic.
    code = """
import sys
from tests.experiments.test_evolve import *
from absl import flags
from experiments.runs.processes import define_process_flags, join
define_process_flags()
flags.FLAGS(sys.argv)
join()
advance = evolve.Searches.advance
def stop_then(self, state, step):
    if step + 1 == {stop_at}:
        signal.raise_signal(signal.SIGINT)
    return advance(self, state, step)
evolve.Searches.advance = stop_then
evolve.run(CONFIG, RunOptions((0,), 12, out={out!r}, resume={resume}))
"""

    def begin(num_devices, out, stop_at, resume, *given):
        text = code.format(stop_at=stop_at, out=str(tmp_path / out), resume=resume)
        env = os.environ | {"JAX_NUM_CPU_DEVICES": str(num_devices)}
        command = [sys.executable, "-c", text, *given]
        return subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True, cwd=ROOT)

    def end(process, returncode):
        _, errors = process.communicate(timeout=300)
        assert process.returncode == returncode, errors

    end(begin(2, "one", 0, False), 0)
    for stop_at in (3, 0):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            given = [f"--coordinator=127.0.0.1:{free.getsockname()[1]}", "--num_processes=2"]
        both = [begin(1, "two", stop_at, not stop_at, *given, f"--process_id={i}") for i in range(2)]
        for process in both:
            end(process, 130 if stop_at else 0)
    for name in ("metrics.csv", "programs.csv", "finalists.csv"):
        assert rows(tmp_path / "two" / name) == rows(tmp_path / "one" / name)


def test_a_target_is_found_and_is_a_rule_that_others_read(tmp_path):
    small = TargetLaneConfig(hidden=(8,), batch_size=4, unroll=4, budget=200)
    config = evolve.configure("targets", ("toy/catch/5x5",))
    own = {"population_size": 5, "tournament_size": 2, "num_lanes": 4, "chunk": 64, "num_finalists": 2}
    config = dataclasses.replace(config, target_lane=small, num_final_seeds=2, **own)
    summary = evolve.run(config, RunOptions((0,), 5, out=str(tmp_path)))
    rule = load_rule(tmp_path / "rule.npz")
    assert rule.config.rule.name == "target_program"
    assert rule.config.rule.settings.formula == summary["formula"]
    assert rule.config.network.hidden == (8,) and not rule.config.rule.settings.is_data
    assert all((tmp_path / f"{name}.png").is_file() for name in ("best", "program", "family"))


@pytest.mark.parametrize(
    "arguments,message",
    [
        (["--language=targets", "--config.start=Q(s)[a]"], "start: 's' is no name: there are r, gamma, v,"),
        (["--envs=envpool/CartPole-v1"], "error: --envs: envpool/CartPole-v1 is stepped on the host, expected toy/..."),
        (["--envs=toy/catch,toy/catch"], "error: --envs: toy/catch is given more than once"),
        (["--config.start=dqm"], "start: 'dqm' is no name: there are s, a, r, gamma, s_next (did you mean 'dqn'?)"),
        (["--config.lane.batch_size=0"], "lane.batch_size is 0, expected an integer of at least 1"),
        (["--envs=gymnax/FourRooms-misc"], "no scores of random and of best play are known for gymnax/FourRooms-misc"),
        (["--config.tournament_size=500"], "tournament_size is 500, expected at most population_size (300)"),
        (["--config.start=Q(s)[b]"], "start: 'b' is no name"),
        (["--config.num_finalists=0"], "num_finalists is 0, expected an integer of at least 1"),
        (["--seeds=0,1"], "--seeds=0,1: a search has one seed"),
        (["--scheduler=tcp://host"], "--scheduler=tcp://host: no scheduler answers there"),
        (["--scheduler=tcp://a:1", "--coordinator=a:2"], "--scheduler=tcp://a:1: give it or --coordinator"),
    ],
)
def test_bad_input_is_one_line(start, tmp_path, arguments, message):
    done = start("experiments.evolve", f"--out={tmp_path / 'run'}", *arguments)
    assert done.returncode == 2 and message in done.stderr and done.stderr.count("\n") == 1, done.stderr
    assert not (tmp_path / "run").exists()


def test_a_folder_of_another_search_is_refused(whole):
    folder, _ = whole
    with pytest.raises(UsageError, match=r"--resume: config.chunk was 20 in .* and is 30 now"):
        evolve.run(EvolveConfig(**vars(CONFIG) | {"chunk": 30}), RunOptions((0,), 12, out=str(folder), resume=True))
