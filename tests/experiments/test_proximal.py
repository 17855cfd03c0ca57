"""Rules compared in PPO's loop: the same agent for all of them, and statistics of pairs of the same seeds."""

import csv
import dataclasses

import jax
import numpy as np
import pytest

from experiments import proximal
from experiments.analyses.proximal import statistics
from frodo.rules.files import make_rule
from frodo.runs.errors import UsageError


def save_rule(path):
    rule = make_rule("corrected_ppo", parts=("constants",), entropy_cost=0.02)
    meta_params = rule.update_rule.random_meta_params(jax.random.key(0), 3)
    dataclasses.replace(rule, meta_params=meta_params).save(path)
    return path


def test_all_rules_have_the_same_agent(tmp_path, monkeypatch):
    monkeypatch.setattr(proximal.command_line, "given_settings", dict)
    file = str(save_rule(tmp_path / "rule.npz"))
    configs = [proximal.make_config("gymnax/Breakout-MinAtar", rule, 100_000) for rule in ("ppo", "dpo", file)]
    for config in configs:
        config.validate()
        assert config.annealing == 100_000 and config.epochs == 4 and config.minibatches == 8
        assert config.network == configs[0].network and config.num_env_steps(False) == 8192
    assert [config.rule.settings.entropy_cost for config in configs] == [0.01, 0.01, 0.02]
    assert [config.optimizer.learning_rate for config in configs] == [5e-3, 5e-3, 1e-3]
    with pytest.raises(
        UsageError, match="^--rules: rule is 'frodo', expected one of lpo, corrected_ppo, drift_program"
    ):
        proximal.make_config("toy/catch", "catch_and_grids", 1000)
    with pytest.raises(
        UsageError, match="^--rules=ppo,ppo: give each rule once, ppo, dpo, a file or a folder of files$"
    ):
        proximal.rules_of(["ppo", "ppo"])


def test_statistics_are_of_the_same_seeds():
    random, scores = np.random.default_rng(0), []
    base = random.normal(10, 5, size=20)
    for rule, values in (("ppo", base), ("other", base + 1 + 0.1 * random.normal(size=20))):
        scores += [{"env": "e", "rule": rule, "search": "", "seed": i, "score": x} for i, x in enumerate(values)]
    first, other = statistics(scores, "ppo")
    assert first["difference"] == first["difference_low"] == 0
    assert first["iqm"] == pytest.approx(np.mean(np.sort(base)[5:15]))
    assert first["iqm_low"] < first["iqm"] < first["iqm_high"]
    assert 0.9 < other["difference_low"] < other["difference"] < other["difference_high"] < 1.1
    assert first["p"] == 1 and other["p"] < 0.001


def test_an_interval_is_over_searches_too():
    """Three searches of which one is bad: their seeds are no thirty independent runs of this kind of search."""
    random, scores = np.random.default_rng(0), []
    for rule, of_searches in (("ppo", (0, 0, 0)), ("found", (1, 1, -0.5))):
        for i in range(30):
            scores += [{"env": "e", "rule": rule, "search": i % 3, "seed": i, "score": of_searches[i % 3]}]
            scores[-1]["score"] += 0.1 * random.normal()
    alone = statistics([row | {"search": ""} for row in scores], "ppo")[1]
    found = statistics(scores, "ppo")[1]
    assert 0.4 < alone["difference"] == found["difference"] < 0.6
    assert 0.1 < alone["difference_low"] and np.isnan(alone["searches_low"])
    assert 0.4 < found["difference_low"] and found["p"] < 0.01  # of these searches
    assert (
        found["searches_low"] < -1 and found["searches_high"] > 2
    )  # of such: means 1, 1 and −.5, two degrees of freedom
    with pytest.raises(UsageError, match="^--rules: found and ppo have other numbers of searches, expected as many"):
        statistics([row | {"search": row["seed"] % (2 + (row["rule"] == "ppo"))} for row in scores], "ppo")
    scores[0]["score"] = np.nan
    assert np.isnan(statistics(scores, "ppo")[1]["p"])


def test_rules_are_compared(start, tmp_path):
    """With an η that changes nothing, corrected rules score as PPO does; two of a folder share the seeds."""
    found, out = tmp_path / "found", tmp_path / "out"
    for name in ("a.npz", "b.npz"):
        save_rule(found / name)
    small = ("batch_size=4", "unroll=8", "minibatches=2", "network.hidden=8", "rule.entropy_cost=.02")
    args = ["--envs=toy/catch/4x3", "--seeds=0,1", "--steps=640", f"--out={out}"]
    args += [f"--config.{x}" for x in (*small, "optimizer.learning_rate=1e-2")]
    formula = "--formula=max(0.0, (r - max(0.8, min(1.2, r))) * A)"  # PPO's own drift
    done = start("experiments.proximal", *args, f"--rules=ppo,{found}", formula)
    assert done.returncode == 0, done.stderr
    with (out / "scores.csv").open(newline="") as text:
        rows = list(csv.DictReader(text))
    assert len(rows) == 6 and [row["rule"] for row in rows[4:]] == ["formula_1"] * 2
    assert [(row["search"], row["seed"]) for row in rows[2:4]] == [("a", "0"), ("b", "1")]
    of_ppo, ours, of_formula = ([float(row["score"]) for row in rows[i : i + 2]] for i in (0, 2, 4))
    assert of_ppo == ours
    np.testing.assert_allclose(of_formula, of_ppo, atol=0.1)  # rounded otherwise
    assert (out / "statistics.csv").exists()
