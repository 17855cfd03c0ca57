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
    is_out = target_formulas.is_held_out(found)
    assert 2 < is_out[0].sum() < is_out.shape[1] / 2 and (is_out == is_out[0]).all()  # whole trajectories
    again = found | {"trajectory": jax.tree.map(lambda x: x[:, ::-1], found["trajectory"])}
    np.testing.assert_array_equal(target_formulas.is_held_out(again)[0], is_out[0, ::-1])  # and each wherever it is
    steps = [(t, b) for t, b in np.argwhere(valid & is_out)]
    of_pi = np.mean([muesli.kl(policy[at], found["inputs"]["pi"][at]) for at in steps])
    before = policy_formulas.divergence([found], lambda inputs: np.zeros_like(inputs["A"]))
    np.testing.assert_allclose(before, of_pi, rtol=1e-4)
    points = []
    monkeypatch.setattr(policy_formulas, "fit", lambda inputs, y, **how: points.append((inputs, y, how)) or [])
    (row,) = policy_formulas.formulas([found])
    assert row["formula"] == FORMULAS["cmpo"] and row["error"] > 0.5
    ((inputs, y, how),) = points
    assert len(y) == 3 * (valid & ~is_out).sum() and list(inputs) == list(POLICIES.inputs)
    np.testing.assert_array_equal(np.bincount(how["group"]), np.full(len(y) // 3, 3))
    np.testing.assert_allclose(np.bincount(how["group"], how["p"]), np.ones(len(y) // 3), rtol=1e-5)
    np.testing.assert_allclose(how["p"], inputs["pi"] * np.exp(y), rtol=1e-4)
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
        assert (found.config.rule.name, own.formula) == ("policy_program", row["formula"])
        assert found.origin.envs == ("toy/catch/5x5", "toy/catch/5x4")
        assert found.origin.note == "formulas for catch_disco, fitted in toy/catch/5x4"
        for name in set(vars(own)) - {"formula"}:
            assert getattr(own, name) == getattr(of, name)


def test_what_is_replayed_is_looked_at(monkeypatch):
    monkeypatch.setattr(target_formulas, "ENV_STEPS", 2000)
    monkeypatch.setattr(target_formulas, "STAGES", 1)
    look = lambda learner, *inputs: {
        "reward": inputs[2].reward,
        "mu": inputs[2].behaviour_logits,
        "pi": inputs[3]["policy"],
    }
    rule, configure = load_rule("catch_disco"), settings.configure_frozen
    seen = lambda: target_formulas.of_fresh("catch_disco", rule, "toy/catch/5x4", look)[0]
    is_on_policy = lambda stage: np.allclose(stage["mu"], stage["pi"][:-1], atol=1e-5)
    fresh = seen()
    assert fresh["reward"].shape == (16, 32) and is_on_policy(fresh)
    replay = frodo.ReplayConfig(capacity=64, batch_size=8, fresh=0.0)
    monkeypatch.setattr(settings, "configure_frozen", lambda *of: configure(*of).replace(replay=replay))
    replayed = seen()
    assert replayed["reward"].shape == (16, 8) and not is_on_policy(replayed)


def test_a_rule_without_action_values_is_refused(tmp_path):
    rule = make_rule("disco", without=("q",))
    with pytest.raises(UsageError, match="^x.npz holds a rule whose agents learn no action values"):
        policy_formulas.of_rule("x.npz", rule, tmp_path)
    with pytest.raises(UsageError, match="^x.npz does not say where its rule was discovered: give --envs"):
        policy_formulas.of_rule("x.npz", dataclasses.replace(rule, config=make_rule("disco").config), tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["catch_dsco"], "there is no run catch_dsco, and no rule of that name (did you mean 'catch_disco'?)"),
        (
            ["catch_disco", "--envs=bsuite/catch/0"],
            "--envs: bsuite/catch/0 is on the host, expected --envs in JAX",
        ),
        (["catch_disco", "--seed=1"], "--seed=1: catch_disco is a rule, expected a run"),
        (["run", "--envs=toy/catch"], "--envs=toy/catch: run is a run, expected a rule"),
        (["own.npz"], "own.npz is a rule of the kind policy_program; one of the kind lpo or corrected_ppo has a drift"),
        (["own.npz", "--envs=toy/catch"], "own.npz is a rule of the kind policy_program, expected frodo or disco"),
        (["cmpo"], "cmpo holds a run of another version"),  # a folder of that name is there
    ],
)
def test_what_cannot_be_analysed_is_refused(args, said, start, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    own = make_rule("policy_program")
    meta_params = own.update_rule.random_meta_params(jax.random.key(0), 2)
    dataclasses.replace(own, meta_params=meta_params).save(tmp_path / "own.npz")
    (tmp_path / "cmpo").mkdir()
    (tmp_path / "cmpo" / "config.json").write_text("{}")
    done = start("experiments.analyse", *args)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1) and said in done.stderr, done.stderr
    assert sorted(x.name for x in tmp_path.iterdir()) == ["cmpo", "own.npz", "run"]


def test_a_rule_by_its_name_has_its_formulas_where_it_is_said(start, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = []
    monkeypatch.setattr(policy_formulas, "of_rule", lambda *of: found.append(of))
    assert start("experiments.analyse", "catch_disco", "--envs=toy/catch/5x4").returncode == 0
    ((name, rule, folder, envs),) = found
    assert (name, rule.name, str(folder), envs) == ("catch_disco", "catch_disco", "results/analyse", ("toy/catch/5x4",))
