"""Runs read back: curves hold seeds apart and go over gaps, and runs that differ in seeds alone are one."""

import json
from pathlib import Path

import numpy as np
import pytest

from experiments.results import reading
from tests.experiments.results.made_run import make_run


@pytest.fixture
def folder(tmp_path):
    """A run of two seeds whose return is the number of the row, plus 10 for the second seed."""
    return make_run(tmp_path / "run")


def test_runs_that_differ_in_seeds_alone_are_one_curve(tmp_path):
    folders = [make_run(tmp_path / f"run/{seed}", seeds=(seed,)) for seed in (2, 0, 1)]
    folders += [make_run(tmp_path / "again", seeds=(0,))]
    pooled, again = reading.pool([reading.read(folder) for folder in folders])
    assert pooled.folder == tmp_path / "run"
    np.testing.assert_array_equal(reading.curve(pooled, "return").y, np.arange(20) + [[20], [0], [10]])
    np.testing.assert_array_equal(reading.final_values(pooled, "return"), [37.5, 17.5, 27.5])
    assert again.folder == folders[-1]
    config = json.loads((folders[0] / "config.json").read_bytes())
    (folders[0] / "config.json").write_text(json.dumps(config | {"config": {"other": 1}}))
    other, pooled, again = reading.pool([reading.read(folder) for folder in folders])
    assert [len(set(one.columns["seed"])) for one in (other, pooled, again)] == [1, 2, 1]


def test_curve_holds_seeds_apart(folder):
    series = reading.curve(reading.read(folder), "return")
    np.testing.assert_array_equal(series.x, 5 * np.arange(20))
    np.testing.assert_array_equal(series.y, [np.arange(20), np.arange(20) + 10])


def test_seeds_with_other_log_points_are_interpolated():
    columns = {"seed": [0, 0, 0, 1, 1], "env_steps": [0, 10, 20, 0, 10], "return": [0, 1, 2, 4, 8]}
    results = reading.Results(Path("a"), {}, {name: np.array(values, float) for name, values in columns.items()})
    np.testing.assert_array_equal(reading.curve(results, "return").y, [[0, 1, 2], [4, 8, np.nan]])


def test_a_curve_goes_over_log_points_without_a_value():
    columns = {"seed": [0, 0, 0, 0], "env_steps": [0, 10, 20, 30], "return": [np.nan, 1, np.nan, 5]}
    results = reading.Results(Path("a"), {}, {name: np.array(values, float) for name, values in columns.items()})
    np.testing.assert_array_equal(reading.curve(results, "return").y, [[np.nan, 1, 3, 5]])


def test_lives_with_several_learning_rates_are_held_apart():
    columns = {
        "seed": [0, 1, 0, 1],
        "learning_rate": [0.1, 0.1, 0.2, 0.2],
        "env_steps": [5] * 4,
        "return": [1, 2, 3, 4],
    }
    results = reading.Results(Path("run"), {}, {name: np.array(x, float) for name, x in columns.items()})
    np.testing.assert_array_equal(reading.final_values(results, "return"), [1, 2, 3, 4])
    own = reading.with_rate(results, 0.2)
    np.testing.assert_array_equal(reading.curve(own, "return").y, [[3], [4]])
