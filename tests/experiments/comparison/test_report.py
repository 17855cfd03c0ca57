"""The report says what is there and what is missing."""

import csv
import re

import numpy as np
import pytest

from experiments.comparison import report
from experiments.comparison.methods import cell_folder
from experiments.results import statistics
from experiments.runs.errors import UsageError
from frodo import files
from tests.experiments.comparison.small_comparison import ENVS, one, scalar_rule, write_cell


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
    text = report.write(compared, tmp_path, {"frodo": ["toy/catch/4x3"]})
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
    report.write(compared, tmp_path, {"frodo": ["toy/catch/4x3"]})
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
        report.write(one(methods=("impala",)), tmp_path, {})
    assert not (tmp_path / "report").exists()
