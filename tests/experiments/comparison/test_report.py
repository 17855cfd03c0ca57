"""The report says what is there and what is missing."""

import csv
import re

import numpy as np
import pytest

from experiments.comparison import cells, findings, report
from experiments.results import statistics
from frodo import files
from frodo.runs.errors import UsageError
from tests.experiments.comparison.small_comparison import ENVS, POINT, one, scalar_rule, write_cell, write_tuning


def read(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def test_the_report_holds_scores_costs_and_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.setattr(statistics, "REPETITIONS", 50)
    rule = scalar_rule(tmp_path / "rule.npz", ("toy/catch/5x5",))
    compared = one(methods=("impala", "frodo", "scalar_frozen", "disco_frozen", "a2c", "ppo"), scalar_rule=rule)
    for env, scale in zip(ENVS, (1.0, 0.5), strict=True):
        for method, returns in (("impala", (0.2, 0.4)), ("frodo", (0.6, 0.8)), ("scalar_frozen", (0.7, 0.1))):
            write_cell(compared, tmp_path, env, method, [scale * value for value in returns])
        write_tuning(compared, tmp_path, env, "a2c")
    write_cell(compared, tmp_path, ENVS[0], "a2c", (np.nan, 0.1))
    of_a2c = cells.folder_of(tmp_path, cells.CELLS, ENVS[0], "a2c") / cells.run_name(POINT)
    files.write_json(of_a2c / "summary.json", {"steps_per_cpu_second": None})  # one row
    failed = cells.folder_of(tmp_path, cells.CELLS, ENVS[1], "a2c")
    failed.mkdir(parents=True)
    (failed / "log.txt").write_text("hello\nerror: the <disk> is full\nbye\n")
    text = report.write(compared, tmp_path, {"frodo": ["toy/catch/4x3"]})
    assert re.search(r"FRODO \* +0\.\d\d \[", text) and "A2C" not in text
    page = (tmp_path / "report" / "index.html").read_text()
    for line in (
        "A2C on toy/grid_world/46: the &lt;disk&gt; is full",
        "A2C on toy/catch/4x3: no episode ended in the last fifth",
        "discovered π, y, z rule, frozen: no --disco_rule",
        "PPO: its tuning on toy/catch/4x3: it was not run",
        "* FRODO: its rule was discovered in toy/catch/4x3",
        "rate 0.01, entropy 0.01, 2 × 20",
    ):
        assert line in page
    assert {f"{name}.png" for name in re.findall(r'<img src="(\w.*?)\.png"', page)} == {
        path.name for path in (tmp_path / "report").glob("*.png")
    }
    own = [row for row in read(tmp_path / "report" / "scores.csv") if row["settings"] == "tuned"]
    scores = [row for row in own if row["method"] == "impala" and row["environment"] == ENVS[0]]
    assert [row["seed"] for row in scores] == ["0", "3"]
    random = -1 / 3  # of Catch with three columns
    np.testing.assert_allclose([float(row["score"]) for row in scores], (np.array([0.2, 0.4]) - random) / (1 - random))
    costs = {(row["environment"], row["method"]): row for row in read(tmp_path / "report" / "costs.csv")}
    frodo, frozen = costs[ENVS[0], "frodo"], costs[ENVS[0], "scalar_frozen"]
    assert float(frodo["env steps for η"]) == pytest.approx(1000 * 20 / 120) and frodo["env steps before"] == "0"
    assert float(frodo["CPU s"]) == 1000 / 200
    assert float(frodo["CPU s to compile, all seeds"]) == 20.0 - 2 * 1000 / 200
    assert frozen["env steps before"] == "123" and frozen["CPU s before"] == "4.5"
    assert "<td>123</td>" in page and "<td>167</td>" in page
    assert "0.3 [0.2, 0.4]" in page and "0.7 [0.6, 0.8]" in page
    assert {row["is_seen"] for row in scores} == {"False"}
    grid = [row for row in read(tmp_path / "report" / "grid.csv") if row["method"] == "impala"]
    assert [(row["environment"], row["learning_rate"], row["return"], row["is_tuned"]) for row in grid] == [
        (env, rate, value, is_tuned)
        for env in ENVS
        for rate, value, is_tuned in (("0.001", "0.1", "False"), ("0.01", "0.2", "True"))
    ]
    before = page
    report.write(compared, tmp_path, {"frodo": ["toy/catch/4x3"]})
    assert (tmp_path / "report" / "index.html").read_text() == before


def test_differences_are_paired_and_by_family(tmp_path, monkeypatch):
    monkeypatch.setattr(statistics, "REPETITIONS", 50)
    compared = one(methods=("impala", "a2c", "ppo"))
    for env, best in zip(ENVS, (1.0, 2 / 3), strict=True):
        for method, returns in (("impala", (-0.5, 0.5)), ("a2c", (-0.4, 0.6)), ("ppo", (0.0, 0.0))):
            write_cell(compared, tmp_path, env, method, [best * value for value in returns])
    report.write(compared, tmp_path, {})
    rows = {
        (row["environments"], row["method"], row["statistic"]): [float(row[x]) for x in ("value", "low", "high")]
        for row in read(tmp_path / "report" / "statistics.csv")
        if row["settings"] == "tuned"
    }
    by_seed = 0.1 / (4 / 3)  # the same for both seeds of Catch: whatever seeds are drawn, there is no other mean
    np.testing.assert_allclose(rows[ENVS[0], "a2c", "difference to impala"], [by_seed] * 3, rtol=1e-6)
    assert rows["catch", "a2c", "difference to impala"] == rows[ENVS[0], "a2c", "difference to impala"]
    other = rows[ENVS[1], "a2c", "difference to impala"]
    np.testing.assert_allclose(rows["all", "a2c", "difference to impala"][0], (by_seed + other[0]) / 2, rtol=1e-6)
    of_ppo = rows[ENVS[0], "ppo", "difference to impala"]
    assert of_ppo[1] < of_ppo[0] < of_ppo[2] and of_ppo[0] == pytest.approx(0, abs=1e-6)
    assert rows["all", "a2c", "probability of improvement over impala"][0] == pytest.approx(0.75)
    assert rows["catch", "impala", "difference to ppo"][0] == pytest.approx(0, abs=1e-6)
    page = (tmp_path / "report" / "index.html").read_text()
    assert " ▲</td>" in page and " ▼</td>" not in page


def test_what_learns_on_is_compared_with_what_does_not():
    methods = ("impala", "fitted_frozen", "fitted_online", "fitted_fast", "scalar_adapted", "corrected")
    assert findings._pairs(methods) == {
        "impala": list(methods[1:]),
        "fitted_frozen": ["fitted_online", "fitted_fast"],
    }


def test_the_one_setting_is_beside_the_tuned_one(tmp_path, monkeypatch):
    monkeypatch.setattr(statistics, "REPETITIONS", 50)
    compared = one(methods=("impala",))
    worse = POINT._replace(learning_rate=1e-3)
    write_tuning(compared, tmp_path, ENVS[0], "impala", (0.3, 0.2))
    write_tuning(compared, tmp_path, ENVS[1], "impala", (0.0, 0.6))
    write_cell(compared, tmp_path, ENVS[0], "impala", (0.5, 0.5), point=worse)
    write_cell(compared, tmp_path, ENVS[0], "impala", (0.1, 0.1))
    write_cell(compared, tmp_path, ENVS[1], "impala", (0.4, 0.4))
    report.write(compared, tmp_path, {})
    rows = read(tmp_path / "report" / "scores.csv")
    found = {(row["settings"], row["environment"]): row["return"] for row in rows}
    assert found == {
        ("tuned", ENVS[0]): "0.5",
        ("one", ENVS[0]): "0.1",
        ("tuned", ENVS[1]): "0.4",
        ("one", ENVS[1]): "0.4",
    }
    tuned, one_ = (
        next(
            float(row["value"])
            for row in read(tmp_path / "report" / "statistics.csv")
            if tuple(row.values())[:4] == key
        )
        for key in (("tuned", "all", "impala", "IQM"), ("one", "all", "impala", "IQM"))
    )
    assert tuned > one_


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"budget": 2000}, "its steps is 2000, expected 1000"),
        ({"seeds": (0, 1)}, r"its seeds is \[0, 1\], expected \[0, 3\]"),
    ],
)
def test_runs_that_do_not_belong_together_are_refused(tmp_path, settings, message):
    compared = one(methods=("impala",))
    for env in ENVS:
        write_cell(compared, tmp_path, env, "impala", (0.0, 1.0), **settings)
    with pytest.raises(UsageError, match=message):
        report.write(compared, tmp_path, {})
    assert not (tmp_path / "report").exists()


def test_a_life_that_diverged_counts_as_random_play(tmp_path, monkeypatch):
    monkeypatch.setattr(statistics, "REPETITIONS", 50)
    compared = one(methods=("impala",))
    for env in ENVS:
        write_cell(compared, tmp_path, env, "impala", (1.0, 0.6), is_finite=int(env == ENVS[1]))
    report.write(compared, tmp_path, {})
    rows = [row for row in read(tmp_path / "report" / "scores.csv") if row["settings"] == "tuned"]
    assert [float(row["score"]) for row in rows if row["environment"] == ENVS[0]] == pytest.approx([0, 0])
    assert [row["return"] for row in rows if row["environment"] == ENVS[1]] == ["1.0", "0.6"]
    page = (tmp_path / "report" / "index.html").read_text()
    assert "IMPALA on toy/catch/4x3: parameters of 2 of 2 seeds were not finite at the end" in page
