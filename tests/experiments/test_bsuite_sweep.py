"""bsuite's sweep: records and scores are bsuite's own, whatever is less than all episodes says so."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import matplotlib.image
import numpy as np
import pandas as pd
import pytest
from bsuite import sweep
from bsuite.logging import csv_load, logging_utils

from experiments import bsuite_scores, bsuite_sweep, rules
from experiments.bsuite_scores import EXPERIMENTS, Score
from experiments.command_line import RunOptions
from experiments.files import RunError, UsageError
from experiments.population_config import small
from frodo.rule import make_rule


def of_episodes(bsuite_id: str, episodes, **columns) -> pd.DataFrame:
    """A record with rows at these episodes; columns are multiples of the episode, or lists."""
    episodes = np.array(episodes)
    values = {name: x if isinstance(x, list) else x * episodes for name, x in columns.items()}
    return pd.DataFrame({"bsuite_id": bsuite_id, "episode": episodes, **values})


def scores(*records: pd.DataFrame) -> dict[str, Score]:
    return {one.experiment: one for one in bsuite_scores.scores(logging_utils.join_metadata(pd.concat(records)))}


def test_a_run_is_recorded_and_scored_as_by_bsuite_and_ends_with_its_episodes(tmp_path, monkeypatch):
    monkeypatch.setattr(sweep, "EPISODES", {**sweep.EPISODES, "catch/0": 20})
    for bsuite_id, steps in (("catch/0", 3000), ("bandit/0", 100)):
        config = bsuite_sweep.configure(bsuite_id, "impala")
        config = dataclasses.replace(config, network=dataclasses.replace(config.network, hidden=(8,)))
        bsuite_sweep.run_id(bsuite_id, config, RunOptions((0,), steps), tmp_path)
    summary = json.loads((tmp_path / "ids" / "catch_0" / "summary.json").read_bytes())
    assert summary["env_steps"] < 1000  # twenty episodes are two hundred steps
    (tmp_path / "ids" / "cartpole_0").mkdir()  # which was begun, not more
    theirs, _ = csv_load.load_bsuite(str(tmp_path / "records"))
    catch = theirs[(theirs.bsuite_id == "catch/0") & (theirs.episode <= 20)]
    assert catch.episode.max() == 20 and (catch.steps == 9 * catch.episode).all()
    assert list(catch.total_return) == list(catch.episode - catch.total_regret)

    table = bsuite_sweep.report(tmp_path, "impala", ["catch/0", "bandit/0", "cartpole/0"], [])
    assert "1 of 20 ids" in table and "% of episodes" in table and "cartpole" not in table
    own = {one.experiment: one for one in bsuite_scores.read(tmp_path / "scores.csv")}
    summary = bsuite_scores._summary_analysis()
    assert own["catch"].score == pytest.approx(summary.BSUITE_INFO["catch"].score(catch))
    bandit = theirs[theirs.bsuite_id == "bandit/0"]
    assert own["bandit"].score == pytest.approx(summary.BSUITE_INFO["bandit"].score(bandit)) and own["bandit"].score > 0
    assert own["bandit"].part == f"1 of 20 ids, {bandit.episode.max() / 100:.3g} % of episodes"
    for name in ("radar.png", "bars.png"):
        image = matplotlib.image.imread(tmp_path / name)[..., :3]
        assert len(np.unique(image.reshape(-1, 3), axis=0)) > 50  # axes, text and the colour of the sweep
    with pytest.raises(RunError, match="no id has a score"):
        bsuite_sweep.report(tmp_path / "empty", "impala", [], [])


def test_scores_are_over_the_episodes_that_all_ids_have():
    regret = [160 * 0.25, 1600 * 0.75]
    whole, half = (
        of_episodes("catch/0", [100, 1000], total_regret=regret),
        of_episodes("catch/1", [100], total_regret=1.6),
    )
    catch = scores(whole, half)["catch"]
    assert catch == Score("catch", pytest.approx((0.75 + 0) / 2), 2, 20, 100, 10000)
    assert catch.part == "2 of 20 ids, 1 % of episodes"
    too_many = of_episodes("catch/0", [1000, 10000, 12000], total_regret=[0.0, 8000.0, 19200.0])
    assert scores(too_many)["catch"] == Score("catch", pytest.approx(0.5), 1, 20, 10000, 10000)
    everything = [of_episodes(f"catch/{i}", [10000], total_regret=0.4) for i in range(20)]
    assert scores(*everything)["catch"] == Score("catch", pytest.approx(0.75), 20, 20, 10000, 10000)
    assert scores(*everything)["catch"].part == ""


def test_scores_that_bsuite_cannot_compute_any_more_or_yet():
    solved, unsolved = (
        of_episodes(f"deep_sea/{i}", [100, 1000], total_bad_episodes=x) for i, x in ((0, 0.5), (1, 1.0))
    )
    assert scores(solved, unsolved)["deep_sea"].score == 0.5
    assert not hasattr(pd.Series, "append")
    early = of_episodes("mnist/0", [1, 10], total_regret=1.0)  # its accuracy is that of the last tenth
    both = scores(early, solved)
    assert np.isnan(both["mnist"].score) and both["deep_sea"].score == 1
    tags = bsuite_scores.by_tag([*both.values(), Score("deep_sea_stochastic", 0.0, 1, 21, 1, 1)])
    assert tags["exploration"] == 0.5 and tags["noise"] == 0 and np.isnan(tags["basic"])


def test_ids_are_those_of_bsuite():
    assert [x.split("/")[0] for x in bsuite_sweep.FEW] == list(EXPERIMENTS) and len(EXPERIMENTS) == 23
    assert set(bsuite_sweep.FEW) <= set(sweep.SWEEP) and bsuite_sweep.parse_ids("all") == sweep.SWEEP
    settings = {name: sweep.SETTINGS[bsuite_id] for name, bsuite_id in zip(EXPERIMENTS, bsuite_sweep.FEW, strict=True)}
    assert settings["catch_noise"]["noise_scale"] == 1 and settings["bandit_scale"]["reward_scale"] == 30
    assert bsuite_sweep.parse_ids("catch/3, bandit,catch/3")[:2] == ("catch/3", "bandit/0")
    assert len(bsuite_sweep.parse_ids("catch/3,bandit")) == 21


def test_an_unknown_id_is_refused_before_anything_is_written(tmp_path):
    command = [sys.executable, "-m", "experiments.bsuite_sweep", "--ids=cach/0", f"--out={tmp_path}/out"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])
    message = "error: --ids=cach/0: 'cach/0' is no id and no experiment of bsuite; did you mean catch/0?\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", message)
    assert not list(tmp_path.iterdir())
    with pytest.raises(UsageError, match="scores.csv is no file of scores"):
        bsuite_scores.read(tmp_path / "scores.csv")


def test_every_regime_has_one_environment(tmp_path):
    with pytest.raises(UsageError, match="--rule=td_lambda: it predicts values and does not act"):
        bsuite_sweep.configure("catch/0", "td_lambda")
    config = small("frodo").agent
    params = make_rule(config.rule).init_meta_params(np.array([0, 0], np.uint32), 2)
    path = str(tmp_path / "rule.npz")
    rules.save(Path(path), config, params, rules.Origin(("toy/catch",), 1, 1.0))
    for rule, init, name, is_frozen in (
        ("a2c", "", "a2c", False),
        ("disco", "", "disco", False),
        (path, "", "frodo", True),
        ("", path, "frodo", False),
    ):
        config = bsuite_sweep.configure("catch/0", rule, init)
        config.validate()
        assert (config.rule.name, config.is_frozen) == (name, is_frozen)
        assert (config.env, config.batch_size, config.init_meta_params) == (
            "bsuite/catch/0",
            1,
            path * (name == "frodo"),
        )
