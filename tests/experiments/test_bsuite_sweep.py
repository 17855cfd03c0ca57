"""bsuite's sweep: records and scores are bsuite's own, whatever is less than all episodes says so."""

import dataclasses
import json

import jax
import matplotlib.image
import numpy as np
import pytest
from bsuite import sweep
from bsuite.logging import csv_load

from experiments.analyses import bsuite_runs, bsuite_scores
from experiments.analyses.bsuite_runs import EXPERIMENTS
from frodo.rules.files import Origin, Rule
from frodo.runs.errors import RunError, UsageError
from frodo.runs.folders import RunOptions
from frodo.settings import population_presets


def test_a_run_is_recorded_and_scored_as_by_bsuite_and_ends_with_its_episodes(tmp_path, monkeypatch):
    monkeypatch.setattr(sweep, "EPISODES", {**sweep.EPISODES, "catch/0": 20})
    for bsuite_id, steps in (("catch/0", 3000), ("bandit/0", 100)):
        config = bsuite_runs.configure(bsuite_id, "impala")
        config = dataclasses.replace(config, network=dataclasses.replace(config.network, hidden=(8,)))
        bsuite_runs.run_id(bsuite_id, config, RunOptions((0,), steps), tmp_path)
    summary = json.loads((tmp_path / "ids" / "catch_0" / "summary.json").read_bytes())
    assert summary["env_steps"] < 1000  # twenty episodes are two hundred steps
    (tmp_path / "ids" / "cartpole_0").mkdir()  # which was begun, not more
    theirs, _ = csv_load.load_bsuite(str(tmp_path / "records"))
    catch = theirs[(theirs.bsuite_id == "catch/0") & (theirs.episode <= 20)]
    assert catch.episode.max() == 20 and (catch.steps == 9 * catch.episode).all()
    assert list(catch.total_return) == list(catch.episode - catch.total_regret)

    table = bsuite_scores.report(tmp_path, "impala", ["catch/0", "bandit/0", "cartpole/0"], [])
    assert "1 of 20 ids" in table and "% of episodes" in table and "cartpole" not in table
    own = bsuite_scores.read(tmp_path / "scores.csv")
    summary = bsuite_scores._summary_analysis()
    assert own.score["catch"] == pytest.approx(summary.BSUITE_INFO["catch"].score(catch))
    bandit = theirs[theirs.bsuite_id == "bandit/0"]
    assert own.score["bandit"] == pytest.approx(summary.BSUITE_INFO["bandit"].score(bandit)) and own.score["bandit"] > 0
    assert own.part["bandit"] == f"1 of 20 ids, {bandit.episode.max() / 100:.3g} % of episodes"
    image = matplotlib.image.imread(tmp_path / "bars.png")[..., :3]
    assert len(np.unique(image.reshape(-1, 3), axis=0)) > 50  # axes, text and the colour of the sweep
    (tmp_path / "other").mkdir()
    lines = (tmp_path / "scores.csv").read_text().splitlines(keepends=True)
    (tmp_path / "other" / "scores.csv").write_text("".join(lines[:-1]))  # without the last experiment
    assert bsuite_scores.report(tmp_path, "impala", [], [tmp_path / "other"]) == table
    assert matplotlib.image.imread(tmp_path / "bars.png").shape != image.shape  # there are two bars for each
    with pytest.raises(RunError, match="no id has a score"):
        bsuite_scores.report(tmp_path / "empty", "impala", [], [])


def test_ids_are_those_of_bsuite():
    assert [x.split("/")[0] for x in bsuite_runs.FEW] == list(EXPERIMENTS) and len(EXPERIMENTS) == 23
    assert set(bsuite_runs.FEW) <= set(sweep.SWEEP) and bsuite_runs.parse_ids("all") == sweep.SWEEP
    settings = {name: sweep.SETTINGS[bsuite_id] for name, bsuite_id in zip(EXPERIMENTS, bsuite_runs.FEW, strict=True)}
    assert settings["catch_noise"]["noise_scale"] == 1 and settings["bandit_scale"]["reward_scale"] == 30
    assert bsuite_runs.parse_ids("catch/3, bandit,catch/3")[:2] == ("catch/3", "bandit/0")
    assert len(bsuite_runs.parse_ids("catch/3,bandit")) == 21


def test_an_unknown_id_is_refused_before_anything_is_written(start, tmp_path):
    done = start("experiments.bsuite_sweep", "--ids=cach/0", f"--out={tmp_path}/out")
    message = "error: --ids=cach/0: 'cach/0' is no id and no experiment of bsuite (did you mean 'catch/0'?)\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", message)
    assert not list(tmp_path.iterdir())


def test_every_regime_has_one_environment(tmp_path):
    with pytest.raises(UsageError, match="--rule=td_lambda: it predicts values and does not act"):
        bsuite_runs.configure("catch/0", "td_lambda")
    with pytest.raises(UsageError, match="--rule: nothing is no rule"):
        bsuite_runs.configure("catch/0", "nothing")
    config, path = population_presets.small("frodo").agent_only(), str(tmp_path / "rule.npz")
    meta_params = Rule("frodo", config).update_rule.random_meta_params(jax.random.key(0), 2)
    Rule("frodo", config, meta_params, Origin(("toy/catch",), 1, 1.0)).save(path)
    for rule, init, name, is_frozen in (
        ("a2c", "", "a2c", False),
        ("disco", "", "disco", False),
        (path, "", "frodo", True),
        ("", path, "frodo", False),
    ):
        config = bsuite_runs.configure("catch/0", rule, init)
        config.validate()
        assert (config.rule.name, config.is_frozen) == (name, is_frozen)
        assert (config.env, config.batch_size, config.init_meta_params) == (
            "bsuite/catch/0",
            1,
            path * (name == "frodo"),
        )
