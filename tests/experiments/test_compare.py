"""Comparisons: what is refused, what is run, and what is run once more."""

import dataclasses
import hashlib
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from experiments import compare
from experiments.comparison import methods, report
from experiments.comparison.methods import Comparison, cell_folder
from experiments.runs import settings
from experiments.runs.errors import RunError, UsageError
from frodo.rule_files import SHIPPED
from tests.experiments.comparison.small_comparison import ENVS, one

ROOT = Path(__file__).parents[2]


def test_what_cannot_be_compared_is_refused_before_anything_is_discovered(tmp_path, monkeypatch):
    made = {name: str(tmp_path / "rules" / found.rule / "rule.npz") for name, found in methods.DISCOVERIES.items()}
    options = compare.Options(tmp_path / "out", 1, True, False, False, False)
    with pytest.raises(UsageError, match="no scores of random and of best play are known for toy/grid_world/47"):
        compare.run(one(envs=("toy/grid_world/47",), **made), options, [])
    assert not (tmp_path / "out").exists()
    monkeypatch.setattr(compare, "run_all", lambda *_: None)
    with pytest.raises(RunError, match="discovery of frodo failed: it was not run"):
        compare.run(one(**made), options, [])


def test_the_record_has_the_digest_of_a_rule_by_its_name_or_its_file(tmp_path, monkeypatch):
    monkeypatch.setattr(compare, "run_all", lambda *_: None)
    monkeypatch.setattr(compare.report, "write", lambda *_: "index.html")
    compared = one(envs=ENVS[:1], methods=("scalar_frozen",), scalar_rule="catch_and_grids")
    by_path = dataclasses.replace(
        compared, files=compared.files | {"scalar_rule": str(SHIPPED / "catch_and_grids.npz")}
    )
    digests = []
    for number, comparison in enumerate((compared, by_path)):
        options = compare.Options(tmp_path / str(number), 1, False, False, False, False)
        with pytest.raises(RunError, match="1 of 1 cells failed"):
            compare.run(comparison, options, [])
        record = json.loads((tmp_path / str(number) / "comparison.json").read_bytes())
        assert list(record["sha256"]) == [comparison.files["scalar_rule"]]
        digests.append(*record["sha256"].values())
    assert digests[0] == digests[1] == hashlib.sha256((SHIPPED / "catch_and_grids.npz").read_bytes()).hexdigest()


def test_the_job_of_a_cell_is_this_program_with_only(tmp_path):
    (job,) = compare.cell_jobs(one(envs=ENVS[:1], methods=("frodo",)), tmp_path, ["--budget=1e3"])
    assert (job.name, job.folder) == (f"frodo on {ENVS[0]}", cell_folder(tmp_path, ENVS[0], "frodo"))
    assert job.arguments == ("--budget=1e3", f"--out={tmp_path}", f"--only={ENVS[0]}:frodo")


def test_rules_are_discovered_elsewhere_and_go_on(tmp_path):
    jobs = compare.discovery_jobs(tmp_path)
    assert [job.arguments[-1] for job in jobs] == ["--overwrite"] * 2
    (tmp_path / "rules" / "disco" / "checkpoints" / "7").mkdir(parents=True)
    assert [job.arguments[-1] for job in compare.discovery_jobs(tmp_path)] == ["--overwrite", "--resume"]
    for discovery in methods.DISCOVERIES.values():
        envs = settings.parse_envs(discovery.envs)
        settings.population(discovery.rule, envs).validate()
        methods.refuse_seen(one(), discovery.rule, envs, allow_seen=False)
        with pytest.raises(UsageError, match="was discovered in toy/catch/5x5"):
            methods.refuse_seen(one(envs=("toy/catch/5x5",)), discovery.rule, envs, allow_seen=False)


def test_a_cell_is_a_run_of_its_method(tmp_path):
    compared = Comparison(ENVS[:1], 4000, (1,), ("a2c",), {"scalar_rule": "", "disco_rule": ""})
    compare.run_cell(compared, tmp_path, ENVS[0], "a2c")
    folder = cell_folder(tmp_path, ENVS[0], "a2c")
    record = json.loads((folder / "config.json").read_bytes())
    assert record["config"]["rule"]["name"] == "a2c" and record["config"]["env"] == ENVS[0] and record["steps"] == 4000
    assert report.read_cell(compared, tmp_path, ENVS[0], "a2c").columns["env_steps"].max() <= 4000


def test_a_killed_comparison_goes_on_with_the_unfinished_cells_and_gives_the_same_report(tmp_path):
    def start(name, *more):
        flags = (
            f"--envs=toy/catch/4x3 --methods=impala,a2c --seeds=0,1 --budget=60e3 --processes=1 --out={tmp_path / name}"
        )
        command = [sys.executable, "-m", "experiments.compare", *flags.split(), *more]
        return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)

    whole, killed = start("whole"), start("killed")
    first, second = (cell_folder(tmp_path / "killed", "toy/catch/4x3", method) for method in ("impala", "a2c"))
    while not (second / "metrics.csv").exists():
        assert killed.poll() is None
        time.sleep(0.02)
    killed.kill()
    before = {path: path.stat().st_mtime_ns for path in first.rglob("*")}
    assert whole.wait() == 0 and (first / "summary.json").exists() and not (second / "summary.json").exists()
    assert start("killed", "--resume").wait() == 0
    assert before == {path: path.stat().st_mtime_ns for path in first.rglob("*")}
    assert "resumed" in json.loads((second / "config.json").read_bytes())
    for name in ("scores.csv", "statistics.csv"):
        reports = [(tmp_path / folder / "report" / name).read_bytes() for folder in ("whole", "killed")]
        assert reports[0] == reports[1]
