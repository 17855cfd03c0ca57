"""Comparisons: what is refused, what is run once more, and a report that says what is there and what is missing."""

import csv
import json
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from experiments import compare, compare_report, comparison, discover, files, population_config, rules, statistics
from experiments.comparison import Comparison, cell_folder
from experiments.files import UsageError
from experiments.population_config import small
from frodo.rule import make_rule

ROOT = Path(__file__).parents[2]
ENVS = ("toy/catch/4x3", "toy/grid_world/46")


def one(envs=ENVS, methods=("impala", "frodo", "scalar_frozen"), **settings) -> Comparison:
    return Comparison(envs, 1000, (0, 3), methods, {"scalar_rule": "", "disco_rule": ""} | settings)


def write_cell(out, env, method, returns, budget=1000, seeds=(0, 3)):
    """A finished run whose return is the same at each of ten log points."""
    folder = cell_folder(out, env, method)
    config = {"env": env, "stride": 0, "num_updates": 5, "unroll": 20, "validation_unroll": 25, "is_frozen": False}
    config |= {"network": {}, "batch_size": 2, "replay": {}}
    config["rule"] = {"name": "frodo" if method == "frodo" else "impala"}
    files.write_json(folder / "config.json", {"config": config, "steps": budget, "seeds": seeds})
    with (folder / "metrics.csv").open("w") as file:
        file.write("seed,update,env_steps,env_frames,seconds,cpu_seconds,return\n")
        for number, (seed, value) in enumerate(zip(seeds, returns, strict=True)):
            for i in range(1, 11):
                file.write(f"{seed},{i},{i * budget // 10},0,0,{10 * number + i},{value}\n")
    files.write_json(folder / "summary.json", {"steps_per_cpu_second": 200 if method == "frodo" else 400})


def scalar_rule(path, envs):
    config = small("frodo").agent
    params = make_rule(config.rule).init_meta_params(np.array([0, 0], np.uint32), 2)
    rules.save(path, config, params, rules.Origin(envs, 123, 4.5))
    return str(path)


def test_the_report_holds_scores_costs_and_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.setattr(statistics, "REPETITIONS", 50)
    rule = scalar_rule(tmp_path / "rule.npz", ("toy/catch/5x5",))
    compared = one(methods=("impala", "frodo", "scalar_frozen", "disco_frozen", "a2c"), scalar_rule=rule)
    for env, scale in zip(ENVS, (1.0, 0.5), strict=True):
        for method, returns in (("impala", (0.2, 0.4)), ("frodo", (0.6, 0.8)), ("scalar_frozen", (0.7, 0.1))):
            write_cell(tmp_path, env, method, [scale * value for value in returns])
    write_cell(tmp_path, ENVS[0], "a2c", (np.nan, 0.1))
    files.write_json(cell_folder(tmp_path, ENVS[0], "a2c") / "summary.json", {"steps_per_cpu_second": None})  # one row
    cell_folder(tmp_path, ENVS[1], "a2c").mkdir(parents=True)
    (cell_folder(tmp_path, ENVS[1], "a2c") / "log.txt").write_text("hello\nerror: the <disk> is full\nbye\n")
    text = compare_report.write(compared, tmp_path, {"frodo": ["toy/catch/4x3"]})
    assert re.search(r"FRODO \* +0\.\d\d \[", text) and "A2C" not in text
    page = (tmp_path / "report" / "index.html").read_text()
    for line in (
        "A2C on toy/grid_world/46: the &lt;disk&gt; is full",
        "A2C on toy/catch/4x3: no episode ended in the last fifth",
        "discovered π, y, z rule, frozen: no --disco_rule",
        "* FRODO: its rule was discovered in toy/catch/4x3",
    ):
        assert line in page
    assert "http" not in page and page.count("data:image/png;base64,") == 4
    with (tmp_path / "report" / "scores.csv").open() as file:
        scores = [row for row in csv.DictReader(file) if row["method"] == "impala" and row["environment"] == ENVS[0]]
    assert [row["seed"] for row in scores] == ["0", "3"]
    random = -1 / 3  # of Catch with three columns
    np.testing.assert_allclose([float(row["score"]) for row in scores], (np.array([0.2, 0.4]) - random) / (1 - random))
    with (tmp_path / "report" / "costs.csv").open() as file:
        costs = {(row["environment"], row["method"]): row for row in csv.DictReader(file)}
    frodo, frozen = costs[ENVS[0], "frodo"], costs[ENVS[0], "scalar_frozen"]
    assert float(frodo["env steps for η"]) == 1000 * 25 / 125 and frodo["env steps before"] == "0"
    assert float(frodo["CPU s"]) == 1000 / 200
    assert float(frodo["CPU s for η"]) == 1000 / 200 - 800 / 400  # what 800 steps cost where η is frozen
    assert float(frodo["CPU s to compile, all seeds"]) == 20.0 - 2 * 1000 / 200
    assert frozen["env steps before"] == "123" and frozen["CPU s before"] == "4.5" and frozen["CPU s for η"] == "0.0"
    assert "before: 123 steps, 4.5 CPU s" in page and "during: 200 steps, 3 CPU s" in page
    assert "0.3 [0.2, 0.4]" in page and "0.7 [0.6, 0.8] ←" in page
    assert {row["is_seen"] for row in scores} == {"False"}
    before = page
    compare_report.write(compared, tmp_path, {"frodo": ["toy/catch/4x3"]})
    assert (tmp_path / "report" / "index.html").read_text() == before


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"budget": 2000}, "its budget is 2000, expected 1000"),
        ({"seeds": (0, 1)}, r"its seeds is \[0, 1\], expected \[0, 3\]"),
    ],
)
def test_runs_that_do_not_belong_together_are_refused(tmp_path, settings, message):
    for env in ENVS:
        write_cell(tmp_path, env, "impala", (0.0, 1.0), **settings)
    with pytest.raises(UsageError, match=message):
        compare_report.write(one(methods=("impala",)), tmp_path, {})
    assert not (tmp_path / "report").exists()


def test_what_cannot_be_compared_is_refused_before_anything_runs(tmp_path):
    with pytest.raises(UsageError, match="no scores of random and of best play are known for toy/grid_world/1"):
        comparison.check(one(envs=("toy/grid_world/1",)), allow_seen=False)
    seen = one(scalar_rule=scalar_rule(tmp_path / "rule.npz", (ENVS[1], "toy/catch")))
    with pytest.raises(UsageError, match="rule.npz was discovered in toy/grid_world/46, which .* say --allow_seen"):
        comparison.check(seen, allow_seen=False)
    assert comparison.check(seen, allow_seen=True) == {"scalar_frozen": [ENVS[1]]}
    for known, env in (
        ("toy/catch", "toy/catch/6x11"),
        ("toy/grid_world/046", "toy/grid_world/46"),
        ("bsuite/catch/1", "bsuite/catch/0"),
        ("toy/catch/10x5", "bsuite/catch/0"),
    ):
        with pytest.raises(UsageError, match=f"was discovered in {env}"):
            comparison.refuse_seen(one(envs=(env,)), "rule", (known,), allow_seen=False)
    other = one(disco_rule=scalar_rule(tmp_path / "other.npz", ("toy/catch",)))
    with pytest.raises(UsageError, match="other.npz holds a rule named frodo, expected disco"):
        comparison.check(other, allow_seen=False)
    with pytest.raises(UsageError, match="toy/catch/6x11, which is toy/catch is to be compared twice"):
        comparison.check_names(one(envs=("toy/catch", "toy/catch/6x11")))
    with pytest.raises(UsageError, match="impala is to be compared twice"):
        comparison.check_names(one(methods=("impala", "impala")))
    published = one(envs=("atari/Pong",), methods=("disco103_frozen",))
    with pytest.raises(UsageError, match="disco103 was discovered in atari/Pong"):
        comparison.check(published, allow_seen=False)


def test_what_cannot_be_compared_is_refused_before_anything_is_discovered(tmp_path, monkeypatch):
    made = {name: str(tmp_path / "rules" / found.rule / "rule.npz") for name, found in comparison.DISCOVERIES.items()}
    options = compare.Options(tmp_path / "out", 1, True, False, False, False)
    with pytest.raises(UsageError, match="no scores of random and of best play are known for toy/grid_world/47"):
        compare.run(one(envs=("toy/grid_world/47",), **made), options, [])
    assert not (tmp_path / "out").exists()
    monkeypatch.setattr(compare, "run_all", lambda *_: None)
    with pytest.raises(files.RunError, match="discovery of frodo failed: it was not run"):
        compare.run(one(**made), options, [])


def test_the_job_of_a_cell_is_this_program_with_only(tmp_path):
    (job,) = compare.cell_jobs(one(envs=ENVS[:1], methods=("frodo",)), tmp_path, ["--budget=1e3"])
    assert (job.name, job.folder) == (f"frodo on {ENVS[0]}", cell_folder(tmp_path, ENVS[0], "frodo"))
    assert job.arguments == ("--budget=1e3", f"--out={tmp_path}", f"--only={ENVS[0]}:frodo")


def test_rules_are_discovered_elsewhere_and_go_on(tmp_path):
    jobs = compare.discovery_jobs(tmp_path)
    assert [job.arguments[-1] for job in jobs] == ["--overwrite"] * 2
    (tmp_path / "rules" / "disco" / "checkpoints" / "7").mkdir(parents=True)
    assert [job.arguments[-1] for job in compare.discovery_jobs(tmp_path)] == ["--overwrite", "--resume"]
    for discovery in comparison.DISCOVERIES.values():
        envs = discover.parse_envs(discovery.envs)
        population_config.preset(discovery.rule, envs, "small").validate()
        comparison.refuse_seen(one(), discovery.rule, envs, allow_seen=False)
        with pytest.raises(UsageError, match="was discovered in toy/catch/5x5"):
            comparison.refuse_seen(one(envs=("toy/catch/5x5",)), discovery.rule, envs, allow_seen=False)


def test_a_cell_is_a_run_of_its_method(tmp_path):
    compared = Comparison(ENVS[:1], 4000, (1,), ("a2c",), {"scalar_rule": "", "disco_rule": ""})
    compare.run_cell(compared, tmp_path, ENVS[0], "a2c")
    folder = cell_folder(tmp_path, ENVS[0], "a2c")
    record = json.loads((folder / "config.json").read_bytes())
    assert record["config"]["rule"]["name"] == "a2c" and record["config"]["env"] == ENVS[0] and record["steps"] == 4000
    assert compare_report.read_cell(compared, tmp_path, ENVS[0], "a2c").columns["env_steps"].max() <= 4000


def test_a_killed_comparison_goes_on_with_the_unfinished_cells_and_gives_the_same_report(tmp_path):
    def start(name, *more):
        flags = f"--envs=toy/catch/4x3 --methods=impala,a2c --budget=400e3 --processes=1 --out={tmp_path / name}"
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
