"""Formulas for scalar targets: a formula's own targets are explained by it alone, and what is found is a rule."""

import csv
import dataclasses

import jax
import numpy as np
import pytest

import frodo
from experiments.analyses import target_formulas
from experiments.runs.loaded_agent import of_result
from frodo.rules.files import Origin, fit_rule, load_rule, make_rule
from frodo.runs.errors import UsageError
from meta.programs.evaluation import Given, evaluate, no_draws
from meta.programs.language import TARGETS, parse
from meta.programs.targets import FORMULAS, inputs_of, is_cut, probe, targets, with_next

DISCOUNT = 0.9


def stages_of(formula):
    """Return what an agent would see whose rule were a formula, with ends of all kinds."""
    trajectory, values, logits = probe()
    compute = lambda inputs: evaluate(TARGETS, parse(TARGETS, formula), Given(inputs), no_draws(), None)
    found = targets(compute, trajectory, values, logits, DISCOUNT)
    steps = inputs_of(trajectory, values, logits, DISCOUNT)
    following = np.concatenate([found[1:], values[-1:]])
    inputs = with_next(steps, following, is_cut(trajectory))
    predictions = {"value": values, "policy": logits}
    given = {"trajectory": trajectory, "predictions": predictions, "inputs": inputs, "targets": found}
    return [jax.tree.map(np.asarray, given)]


@pytest.mark.parametrize("formula", [FORMULAS["vtrace"], "0.98 * (r + G_next)"])
def test_targets_of_a_formula_are_explained_by_it(formula, monkeypatch):
    monkeypatch.setattr(target_formulas, "fit", lambda *_, **__: [])
    stages = stages_of(formula)
    assert np.isfinite(target_formulas.spread(stages))
    assert target_formulas.errors_of(parse(TARGETS, formula), DISCOUNT, stages) < 1e-10
    rule = make_rule("frodo", discount=DISCOUNT)
    (row,) = target_formulas.formulas(rule, stages)
    assert row["formula"] == FORMULAS["vtrace"]
    assert (max(row["error"], row["alone"]) < 1e-10) == (formula == FORMULAS["vtrace"])
    assert row["alone"] > row["error"] or formula == FORMULAS["vtrace"]  # its errors add up


def test_what_is_found_is_written_as_rules(tmp_path, monkeypatch, capsys):
    for name, value in {"ENV_STEPS": 2000, "STAGES": 2, "NUM_PROGRAMS": 2000, "NUM_POINTS": 200}.items():
        monkeypatch.setattr(target_formulas, name, value)
    rule = dataclasses.replace(fit_rule("n_step_return"), origin=Origin(("toy/catch/5x4",) * 2, 10, 2.0))
    rule.save(tmp_path / "known.npz")
    path = target_formulas.of_file(tmp_path / "known.npz", load_rule(tmp_path / "known.npz"))
    assert path == tmp_path / "analysis" / "known_formulas.csv"
    with path.open(newline="") as file:
        *rows, vtrace = csv.DictReader(file)
    assert vtrace["formula"] == FORMULAS["vtrace"] and vtrace["formula"] in capsys.readouterr().out
    assert float(rows[-1]["error"]) < min(0.2, float(vtrace["error"]))
    for row in rows:
        found = load_rule(path.with_name(f"known_{row['size']}.npz"))
        assert (found.config.rule.name, found.origin) == ("target_program", rule.origin)
        own, of = found.config.rule.settings, rule.config.rule.settings
        assert (own.formula, own.discount, own.entropy_cost) == (row["formula"], of.discount, of.entropy_cost)


def test_a_run_has_formulas_for_its_own_agent(tmp_path, monkeypatch):
    for name, value in {"STAGES": 2, "NUM_PROGRAMS": 600, "NUM_POINTS": 100, "NUM_COLUMNS": 6}.items():
        monkeypatch.setattr(target_formulas, name, value)
    settings = dict(network=frodo.NetworkConfig("mlp", (8,)), unroll=5, validation_unroll=5, batch_size=4)
    result = frodo.discover_online("toy/catch/5x4", "frodo", num_steps=120, key=jax.random.key(0), **settings)
    result.save(tmp_path / "agent.npz")
    loaded = of_result(str(tmp_path / "agent.npz"), "toy/catch/5x4")
    stages = target_formulas.of_trained(loaded)
    assert [stage["targets"].shape for stage in stages] == [(5, 6)] * 6
    for before, after in zip(stages, stages[1:], strict=False):
        np.testing.assert_array_equal(before["predictions"]["value"][-1], after["predictions"]["value"][0])
    goes_on = (stages[0]["inputs"]["gamma"] > 0)[:-1]
    assert 0 < goes_on.sum() < goes_on.size  # episodes end inside
    np.testing.assert_array_equal(stages[0]["inputs"]["G_next"][:-1][goes_on], stages[0]["targets"][1:][goes_on])
    path = target_formulas.of_run(loaded, tmp_path)
    jax.tree.map(np.testing.assert_array_equal, load_rule(path.with_name("rule.npz")).meta_params, result.meta_params)
    assert path == tmp_path / "analysis" / "rule_formulas.csv" and list(path.parent.glob("rule_*.npz"))


@pytest.mark.parametrize(
    ("settings", "origin", "reason"),
    [
        ({}, None, "holds a rule from environments without names, expected"),
        (
            {"kind": "prediction"},
            Origin(("toy/catch",), 1, 1.0),
            "holds a rule of prediction agents, expected actor-critics",
        ),
    ],
)
def test_a_rule_without_known_environments_or_policy_is_refused(settings, origin, reason, tmp_path):
    rule = dataclasses.replace(make_rule("frodo", **settings), origin=origin)
    with pytest.raises(UsageError, match=f"rule.npz {reason}"):
        target_formulas.of_file(tmp_path / "rule.npz", rule)
    assert not list(tmp_path.iterdir())
