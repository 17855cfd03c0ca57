"""Formulas for policy targets: π̂ of a formula is explained by it, the error is KL, and what is found is a rule."""

import csv
import dataclasses

import jax
import numpy as np
import pytest

import frodo
from experiments.analyses import policy_formulas, target_formulas
from experiments.runs import settings
from frodo.regimes.learner import make_learner
from frodo.rules.files import load_rule, make_rule
from frodo.runs.errors import UsageError
from meta.programs.language import POLICIES, parse
from meta.programs.policies import FORMULAS
from meta.programs.regression import values_of
from meta.targets import policy_fitting
from meta.targets.disco import DiscoConfig, disco
from tests.reference import muesli

CONFIG = DiscoConfig(prediction_size=4, max_value=3, lstm=4, lifetime_lstm=0, action_embedding=(5, 3))


def stage():
    """Return what is seen of a rule at random η on a made-up trajectory, and its π̂."""
    rule = make_rule("disco", **vars(CONFIG))
    learner = make_learner(rule, 3, network=frodo.NetworkConfig("mlp", (8,), action_model=4))
    inputs = policy_fitting.make_up_for_disco(jax.random.key(0), CONFIG, 3)
    meta_params = jax.tree.map(lambda x: 3 * x, disco(CONFIG).random_meta_params(jax.random.key(1), 3))
    logits = disco(CONFIG).apply(meta_params, *inputs)[0].policy
    found = policy_formulas.stage_of(learner, meta_params, *inputs)
    return jax.tree.map(np.asarray, found), np.asarray(jax.nn.softmax(logits))


def of_formula(found, formula):
    """Return the same of a rule whose targets are those of a formula."""
    flat = {name: x.ravel() for name, x in found["inputs"].items()}
    change = values_of(parse(POLICIES, formula), flat).reshape(found["targets"].shape)
    pi = found["inputs"]["pi"] * np.exp(change)
    policy = pi / pi.sum(axis=-1, keepdims=True)
    return found | {"policy": policy, "targets": np.log(policy / found["inputs"]["pi"])}


def test_the_error_is_the_divergence_from_what_is_held_out(monkeypatch):
    found, policy = stage()
    valid = found["trajectory"].valid
    np.testing.assert_allclose(found["policy"], policy, rtol=1e-5)
    np.testing.assert_allclose(found["targets"][valid], np.log(policy / found["inputs"]["pi"])[valid], atol=1e-5)
    steps = [(t, b) for t, b in np.argwhere(valid) if b % 3 == 1]
    of_pi = np.mean([muesli.kl(policy[at], found["inputs"]["pi"][at]) for at in steps])
    before = policy_formulas.divergence([found], lambda inputs: np.zeros_like(inputs["A"]))
    np.testing.assert_allclose(before, of_pi, rtol=1e-4)
    points = []
    monkeypatch.setattr(policy_formulas, "fit", lambda inputs, y, **_: points.append((inputs, y)) or [])
    (row,) = policy_formulas.formulas([found])
    assert row["formula"] == FORMULAS["cmpo"] and row["error"] > 0.5
    ((inputs, y),) = points
    assert len(y) == 3 * valid[:, np.arange(valid.shape[1]) % 3 != 1].sum() and list(inputs) == list(POLICIES.inputs)
    (row,) = policy_formulas.formulas([of_formula(found, FORMULAS["cmpo"])])
    assert abs(row["error"]) < 1e-6


def test_a_formula_is_found_again():
    found, _ = stage()
    own = of_formula(found, "0.7 * A + 0.5 * taken")
    *rows, _ = policy_formulas.formulas([own])
    assert rows[-1]["error"] < 1e-3  # though what a state's normaliser adds is no function of the inputs


def test_what_is_found_is_written_as_rules(tmp_path, monkeypatch):
    for name, value in {"ENV_STEPS": 2000, "STAGES": 2, "NUM_PROGRAMS": 600, "NUM_POINTS": 200}.items():
        monkeypatch.setattr(target_formulas, name, value)
    rule = load_rule("catch_disco")
    path = policy_formulas.of_rule("catch_disco", rule, tmp_path, ["toy/catch/5x4"])
    with path.open(newline="") as file:
        *rows, cmpo = csv.DictReader(file)
    assert path == tmp_path / "catch_disco_formulas.csv" and cmpo["formula"] == FORMULAS["cmpo"] and rows
    for row in rows:
        found = load_rule(path.with_name(f"catch_disco_{row['size']}.npz"))
        own, of = found.config.rule.settings, rule.config.rule.settings
        assert (found.config.rule.name, own.formula, found.origin) == ("policy_program", row["formula"], rule.origin)
        for name in ("discount", "lambda_", "max_value", "policy_cost", "value_cost", "target_decay"):
            assert getattr(own, name) == getattr(of, name)


def test_what_is_replayed_is_looked_at(monkeypatch):
    monkeypatch.setattr(target_formulas, "ENV_STEPS", 2000)
    monkeypatch.setattr(target_formulas, "STAGES", 1)
    look = lambda learner, *inputs: {"reward": inputs[2].reward}
    rule, configure = load_rule("catch_disco"), settings.configure_frozen
    of_size = lambda: target_formulas.of_fresh("catch_disco", rule, "toy/catch/5x4", look)[0]["reward"].shape
    assert of_size() == (16, 32)
    replay = frodo.ReplayConfig(capacity=64, batch_size=8, fresh=0.0)
    monkeypatch.setattr(settings, "configure_frozen", lambda *of: configure(*of).replace(replay=replay))
    assert of_size() == (16, 8)


def test_a_rule_without_action_values_is_refused(tmp_path):
    rule = make_rule("disco", without=("q",))
    with pytest.raises(UsageError, match="^x.npz holds a rule whose agents learn no action values"):
        policy_formulas.of_rule("x.npz", rule, tmp_path)
    with pytest.raises(UsageError, match="^x.npz does not say where its rule was discovered: give --envs, or a run"):
        policy_formulas.of_rule("x.npz", dataclasses.replace(rule, config=make_rule("disco").config), tmp_path)
    assert not list(tmp_path.iterdir())
