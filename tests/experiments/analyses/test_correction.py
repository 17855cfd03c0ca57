"""What is drawn of rules in PPO's loop: of one that begins, PPO's loss and nothing else; of others what η does."""

import csv
import dataclasses

import jax
import numpy as np
import optax
import pytest

from experiments.analyses import correction
from frodo.rules.files import load_rule, make_rule
from frodo.runs.errors import UsageError
from meta.programs.language import DRIFTS, parse
from meta.programs.regression import values_of
from meta.targets.proximal import GAIN, LARGEST_CONSTANTS, PARTS


def rule_of(name, scale, **settings):
    rule = make_rule(name, **settings)
    meta_params = rule.update_rule.random_meta_params(jax.random.key(0), 3)
    other = optax.tree.random_like(jax.random.key(1), meta_params)
    return dataclasses.replace(rule, meta_params=jax.tree.map(lambda x, y: x + scale * y, meta_params, other))


def select(rows, **of):
    return np.array([row["y"] for row in rows if all(row.get(name) == x for name, x in of.items())])


def test_a_rule_that_begins_is_drawn_as_ppo():
    rows = correction.rows_of(rule_of("corrected_ppo", 0.0, parts=PARTS))
    r = correction.RATIOS
    for advantage in correction.ADVANTAGES:
        of_ppo = -np.minimum(r * advantage, np.clip(r, 0.8, 1.2) * advantage) + advantage
        for time in correction.TIMES:
            of = dict(part="loss", time=time, advantage=advantage)
            np.testing.assert_allclose(select(rows, rule="ppo", **of), of_ppo, atol=1e-6)
            np.testing.assert_allclose(select(rows, rule="corrected_ppo", **of), of_ppo, atol=1e-6)
    for part, expected in (("clip", 0.2), ("entropy_cost", 0.01), ("lambda", 0.95), ("value_cost", 0.5)):
        np.testing.assert_allclose(select(rows, part=part), np.full(21, expected), rtol=1e-6)
    for part in ("advantage", "value"):
        np.testing.assert_allclose(select(rows, part=part), np.zeros(61), atol=1e-6)


def test_the_life_is_that_of_the_rules_agents():
    rule = make_rule("corrected_ppo")
    with_annealing = lambda steps: dataclasses.replace(rule, config=rule.config.replace(annealing=steps))
    of_a_trajectory = rule.config.batch_size * rule.config.unroll
    assert correction.lived(with_annealing(0)).settings.life == correction.LIFE
    assert correction.lived(with_annealing(9 * of_a_trajectory)).settings.life == 9


@pytest.mark.parametrize("name, num_parts", [("lpo", 1), ("corrected_ppo", 8)])
def test_what_a_rule_does_is_drawn_and_written(name, num_parts, tmp_path, monkeypatch):
    monkeypatch.setattr(correction, "NUM_PROGRAMS", 510)
    rule = rule_of(name, 0.3, **({"parts": PARTS} if name == "corrected_ppo" else {"is_temporal": True}))
    rule.save(tmp_path / "rule.npz")
    figure = correction.draw(tmp_path / "rule.npz", load_rule(tmp_path / "rule.npz"))
    assert figure == tmp_path / "analysis" / "rule.png" and figure.stat().st_size > 10_000
    with figure.with_suffix(".csv").open(newline="") as file:
        rows = [
            {x: y if x in ("part", "rule") else float(y or "nan") for x, y in row.items()}
            for row in csv.DictReader(file)
        ]
    assert len({row["part"] for row in rows}) == num_parts
    first, last = (select(rows, part="loss", rule=name, time=time, advantage=1.0) for time in (0.0, 1.0))
    assert np.abs(first - last).max() > 1e-3
    with figure.with_name("rule_formulas.csv").open(newline="") as file:
        formulas = list(csv.DictReader(file))
    assert {row["part"] for row in formulas} >= {"drift"} | (
        {"lambda", "advantage"} if name == "corrected_ppo" else set()
    )
    one = np.argmin(np.abs(correction.RATIOS - 1))
    assert first[one] == pytest.approx(0, abs=1e-6)


def test_the_formula_of_a_corrected_drift_is_ppos_and_what_is_added(monkeypatch):
    monkeypatch.setattr(correction, "NUM_PROGRAMS", 2000)
    rule = rule_of("corrected_ppo", 0.1, parts=("drift", "constants"))
    inputs, drift = correction.drift_of(rule)
    clip = 0.2 * np.exp(LARGEST_CONSTANTS["clip"] * np.tanh(GAIN * rule.meta_params["constants"]["clip"]))
    r, advantage = inputs["r"], inputs["A"]
    of_ppo = lambda r, advantage: r * advantage - np.minimum(r * advantage, np.clip(r, 1 - clip, 1 + clip) * advantage)
    clipped = of_ppo(r, advantage)
    found = [row for row in correction.formulas(rule, correction.rows_of(rule)) if row["part"] == "drift"]
    made = values_of(parse(DRIFTS, found[-1]["formula"]), inputs)
    share = np.mean(np.square(made - drift)) / np.var(drift - clipped)
    assert share == pytest.approx(found[-1]["error"], rel=0.1) and share < 0.5
    far = {"r": np.array([1e-3, 0.4, 1.8, 50.0]), "A": np.full(4, -2.0), "t": np.ones(4)}
    added = values_of(parse(DRIFTS, found[-1]["formula"]), far) - of_ppo(far["r"], far["A"])
    np.testing.assert_allclose(added[[0, 3]], added[[1, 2]], atol=1e-3)


def test_what_does_not_change_has_no_formula():
    rule = rule_of("corrected_ppo", 0.1, parts=("constants",))
    assert not correction.formulas(rule, correction.rows_of(rule))


def test_another_rule_is_refused(tmp_path):
    rule_of("learned_loss", 0.0).save(tmp_path / "rule.npz")
    with pytest.raises(
        UsageError, match="rule.npz is a rule of the kind learned_loss; one of the kind lpo or corrected_ppo has"
    ):
        correction.draw(tmp_path / "rule.npz", load_rule(tmp_path / "rule.npz"))
