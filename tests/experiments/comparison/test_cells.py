"""The runs of a comparison: what is tried, what is shown, and what is read."""

import dataclasses
import json
import logging

import jax
import numpy as np
import pytest

from experiments.comparison import cells
from experiments.comparison.cells import CELLS, TUNING, Choice
from experiments.comparison.protocol import Grid, Point
from experiments.runs import training
from frodo.runs.errors import UsageError
from tests.experiments.comparison.small_comparison import ENVS, POINT, one, scalar_rule, write_cell, write_tuning


def test_a_method_tries_the_grid_and_lives_at_the_best_point(tmp_path, monkeypatch):
    compared = one(envs=ENVS[:1], methods=("impala",), grid=Grid((1e-3, 1e-2), (0.01, 0.1), ((4, 5),)), budget=4000)
    cells.run(compared, tmp_path, TUNING, ENVS[0], "impala")
    own = cells.folder_of(tmp_path, TUNING, ENVS[0], "impala")
    assert sorted(path.name for path in own.iterdir()) == [
        "entropy_0.01_batch_4x5",
        "entropy_0.1_batch_4x5",
        "summary.json",
    ]
    record = json.loads((own / "entropy_0.1_batch_4x5" / "config.json").read_bytes())
    assert record["learning_rates"] == [1e-3, 1e-2] and record["seeds"] == [7] and record["steps"] == 4000
    assert record["config"]["rule"]["settings"]["entropy_cost"] == 0.1 and record["config"]["annealing"] == 4000
    returns = cells.tuning_returns(compared, tmp_path, ENVS[0], "impala")
    assert list(returns) == [Point(rate, cost, (4, 5)) for cost in (0.01, 0.1) for rate in (1e-3, 1e-2)]
    assert all(x.shape == (1,) for x in returns.values())
    best = max(returns, key=lambda point: returns[point][0])
    assert cells.choices(compared, tmp_path) == {(ENVS[0], "impala"): Choice(best, best)}
    cells.run(compared, tmp_path, CELLS, ENVS[0], "impala")
    shown = cells.read(compared, tmp_path, ENVS[0], "impala", best)
    assert sorted(set(shown.columns["seed"])) == [0, 3] and shown.columns["env_steps"].max() == 4000
    assert shown.config["config"]["rule"]["settings"]["entropy_cost"] == best.entropy_cost
    monkeypatch.setattr(training, "train", None)  # what is finished is left as it is
    cells.run(compared, tmp_path, CELLS, ENVS[0], "impala")


def test_seeds_and_learning_rates_share_their_programs(tmp_path, caplog):
    grid = Grid((1e-3, 3e-3, 1e-2), (0.01,), ((4, 5),))
    compared = one(envs=ENVS[:1], methods=("impala",), grid=grid, budget=1000)
    compared = dataclasses.replace(compared, tuning_seeds=(7, 8))
    jax.clear_caches()
    with jax.log_compiles(), caplog.at_level(logging.WARNING, "jax"):
        cells.run(compared, tmp_path, TUNING, ENVS[0], "impala")
    own = ("Finished XLA compilation of jit(<lambda>)", "Finished XLA compilation of jit(run)")
    compiled = [text for text in caplog.messages if text.startswith(own)]
    assert len(compiled) == 3  # six lives: how they begin, how they go on, and what is exactly known of them


def test_a_rule_is_shown_at_two_settings(tmp_path, monkeypatch):
    compared = one(scalar_rule=scalar_rule(tmp_path / "rule.npz", ("toy/catch",)))
    for method in ("impala", "scalar_frozen"):
        write_tuning(compared, tmp_path, ENVS[0], method, (0.3, 0.2))
        write_tuning(compared, tmp_path, ENVS[1], method, (0.4, 0.6))
    worse = POINT._replace(learning_rate=1e-3)
    found = cells.choices(compared, tmp_path)
    assert {cell: choice.tuned for cell, choice in found.items()} == {
        (ENVS[0], "impala"): worse,
        (ENVS[1], "impala"): POINT,
        (ENVS[0], "scalar_frozen"): POINT,  # what is best in the other environment
        (ENVS[1], "scalar_frozen"): worse,
    }
    assert {choice.one for choice in found.values()} == {POINT}
    assert cells.untuned(compared, tmp_path) == {"frodo": f"its tuning on {ENVS[0]}: it was not run"}
    runs = []
    monkeypatch.setattr(training, "train", lambda config, options, **_: runs.append(options))
    cells.run(compared, tmp_path, CELLS, ENVS[0], "impala")
    assert [(options.learning_rates, options.seeds) for options in runs] == [((1e-3,), (0, 3)), ((1e-2,), (0, 3))]


def test_scores_of_tuning_are_normalised_means(tmp_path):
    compared = one(methods=("impala",))
    for env in ENVS:
        write_tuning(compared, tmp_path, env, "impala", (-1 / 3, 1.0))
    found = cells.tuning_scores(compared, tmp_path, "impala")
    assert found[ENVS[0], Point(1e-3, 0.01, (2, 20))] == pytest.approx(0, abs=1e-6)  # random play of three columns
    assert found[ENVS[0], POINT] == pytest.approx(1)
    write_cell(compared, tmp_path, ENVS[0], "impala", (0.5, np.nan))
    returns = cells.returns_of(cells.read(compared, tmp_path, ENVS[0], "impala", POINT))
    np.testing.assert_array_equal(returns, [0.5, np.nan])


def test_a_life_that_diverged_is_no_success(tmp_path):
    compared = one(methods=("impala",))
    write_tuning(compared, tmp_path, ENVS[0], "impala", (0.9, 0.8), is_finite=0)
    write_tuning(compared, tmp_path, ENVS[1], "impala", (0.9, 0.8))
    assert {x.item() for x in cells.tuning_returns(compared, tmp_path, ENVS[0], "impala").values()} == {-np.inf}
    found = cells.tuning_scores(compared, tmp_path, "impala")
    assert {score for (env, _), score in found.items() if env == ENVS[0]} == {0.0}


def test_runs_of_other_settings_are_refused(tmp_path):
    compared = one(methods=("impala",))
    for env in ENVS:
        write_tuning(compared, tmp_path, env, "impala")
    folder = cells.folder_of(tmp_path, TUNING, ENVS[0], "impala") / POINT.program.folder
    record = json.loads((folder / "config.json").read_bytes())
    record["config"]["network"]["hidden"] = [8]
    (folder / "config.json").write_text(json.dumps(record))
    message = r"batch_2x20: its config.network.hidden is \[8\], expected \[64, 64\]: runs of one comparison must agree"
    with pytest.raises(UsageError, match=message):
        cells.choices(compared, tmp_path)


def test_a_run_of_before_a_setting_existed_has_its_default(tmp_path):
    compared = one(methods=("impala",))
    write_cell(compared, tmp_path, ENVS[0], "impala", (0.5, 0.6))
    path = cells.folder_of(tmp_path, CELLS, ENVS[0], "impala") / cells.run_name(POINT) / "config.json"
    record = json.loads(path.read_bytes())
    del record["config"]["is_validation_kept"]
    path.write_text(json.dumps(record))
    config = cells.read(compared, tmp_path, ENVS[0], "impala", POINT).config
    assert config["config"]["is_validation_kept"] is False
    record["config"]["is_kept"] = True
    path.write_text(json.dumps(record))
    with pytest.raises(UsageError, match="has a setting that this version does not know: 'is_kept'"):
        cells.read(compared, tmp_path, ENVS[0], "impala", POINT)


def test_what_was_shown_at_another_choice_is_not_finished(tmp_path):
    compared = one(methods=("impala",))
    for env in ENVS:
        write_cell(compared, tmp_path, env, "impala", (0.1, 0.2))
    choice = cells.choices(compared, tmp_path)[ENVS[0], "impala"]
    assert cells.is_shown(tmp_path, ENVS[0], "impala", choice)
    assert not cells.is_shown(tmp_path, ENVS[0], "impala", choice._replace(one=POINT._replace(learning_rate=1e-3)))


def test_cells_need_their_tuning(tmp_path):
    with pytest.raises(UsageError, match=f"impala has no settings yet: its tuning on {ENVS[0]}: it was not run"):
        cells.run(one(methods=("impala",)), tmp_path, CELLS, ENVS[0], "impala")
