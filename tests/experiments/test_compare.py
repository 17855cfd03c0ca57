"""Comparisons: what is refused, what is run, and what is run once more."""

import dataclasses
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from experiments.comparison import cells, running
from experiments.comparison.protocol import FAMILIES, parse_budgets
from frodo.rules.files import SHIPPED
from frodo.runs.errors import RunError, UsageError
from tests.experiments.comparison.small_comparison import ENVS, one

ROOT = Path(__file__).parents[2]


def test_what_cannot_be_compared_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(UsageError, match="no scores of random and of best play are known for toy/grid_world/47"):
        running.run(one(envs=("toy/grid_world/47",)), tmp_path / "out", [], None)
    assert not (tmp_path / "out").exists()


def test_the_record_has_the_digest_of_a_rule_by_its_name_or_its_file(tmp_path, monkeypatch):
    monkeypatch.setattr(running, "run_all", lambda *_: None)
    monkeypatch.setattr(running.report, "write", lambda *_: "index.html")
    compared = one(methods=("scalar_frozen",), scalar_rule="catch_and_grids")
    by_path = dataclasses.replace(
        compared, files=compared.files | {"scalar_rule": str(SHIPPED / "catch_and_grids.npz")}
    )
    digests = []
    for number, comparison in enumerate((compared, by_path)):
        with pytest.raises(RunError, match="2 of 2 jobs failed, tuning: scalar_frozen on"):
            running.run(comparison, tmp_path / str(number), [], None)
        record = json.loads((tmp_path / str(number) / "comparison.json").read_bytes())
        assert list(record["sha256"]) == [comparison.files["scalar_rule"]]
        digests.append(*record["sha256"].values())
    assert digests[0] == digests[1] == hashlib.sha256((SHIPPED / "catch_and_grids.npz").read_bytes()).hexdigest()


def test_the_job_of_a_cell_is_this_program_with_only(tmp_path):
    (job,) = running.jobs_of("tuning", [(ENVS[0], "frodo")], tmp_path, ["--seeds=1"])
    assert (job.name, job.folder) == (f"tuning: frodo on {ENVS[0]}", tmp_path / "tuning/toy_catch_4x3/frodo")
    assert job.arguments == ("--seeds=1", f"--out={tmp_path}", f"--only=tuning:{ENVS[0]}:frodo")


def test_budgets_are_by_family():
    budgets = parse_budgets("catch=1e3,atari=5M")
    assert budgets == {name: one.budget for name, one in FAMILIES.items()} | {"catch": 1000, "atari": 5_000_000}
    with pytest.raises(UsageError, match="--budgets=catches=1: 'catches' is no family .did you mean 'catch'"):
        parse_budgets("catches=1")
    with pytest.raises(UsageError, match="--budgets=0: give a positive whole number"):
        parse_budgets("catch=0")


def start(out, *more):
    flags = (
        "--envs=toy/catch/4x3 --methods=impala,a2c --seeds=0,1 --budgets=catch=60e3 "
        "--learning_rates=1e-3,1e-2 --entropy_costs=0.01 --batches=4x8 --tuning_seeds=5 "
        f"--out={out}"
    )
    command = [sys.executable, "-m", "experiments.compare", *flags.split(), *more]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A comparison that was neither killed nor done by a cluster."""
    folder = tmp_path_factory.mktemp("whole")
    assert start(folder, "--processes=1").wait() == 0
    return folder


def is_same_report(one, other):
    names = ("scores.csv", "statistics.csv", "grid.csv")
    return all((one / "report" / name).read_bytes() == (other / "report" / name).read_bytes() for name in names)


@pytest.mark.long
def test_a_killed_comparison_goes_on_with_the_unfinished_cells_and_gives_the_same_report(whole, tmp_path):
    killed = start(tmp_path / "killed", "--processes=1")
    first, second = (
        cells.folder_of(tmp_path / "killed", cells.CELLS, "toy/catch/4x3", method) for method in ("impala", "a2c")
    )
    while not list(second.glob("*/metrics.csv")):
        assert killed.poll() is None
        time.sleep(0.02)
    killed.kill()
    before = {path: path.stat().st_mtime_ns for path in first.rglob("*")}
    assert (first / "summary.json").exists() and not (second / "summary.json").exists()
    assert start(tmp_path / "killed", "--processes=1", "--resume").wait() == 0
    assert before == {path: path.stat().st_mtime_ns for path in first.rglob("*")}
    (run,) = {path.parent for path in second.glob("*/config.json")}
    assert "resumed" in json.loads((run / "config.json").read_bytes())
    assert is_same_report(tmp_path / "killed", whole)


@pytest.mark.long
def test_a_comparison_by_a_cluster_that_loses_a_worker_gives_the_same_report(whole, tmp_path):
    import distributed

    how = dict(n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address="127.0.0.1:0", memory_limit=0)
    with distributed.LocalCluster(**how) as cluster:
        started = start(tmp_path, f"--scheduler={cluster.scheduler_address}")
        while not list(tmp_path.glob("tuning/*/*/*/config.json")):
            assert started.poll() is None
            time.sleep(0.02)
        killed = cluster.workers[0].process.pid
        os.kill(killed, signal.SIGKILL)
        assert not list(tmp_path.glob("tuning/*/*/summary.json"))  # each worker had one of the two
        assert started.wait() == 0 and cluster.workers[0].process.pid != killed
    assert is_same_report(tmp_path, whole)
