"""What targets depend on: the known answers of TD(λ) and Monte Carlo come out."""

import csv
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.rules.impala import ImpalaConfig, impala
from agents.rules.td import TDLambdaConfig, td_lambda
from experiments.analyses import derivatives as sensitivity
from frodo.runs.errors import UsageError
from frodo.runs.folders import RunOptions
from frodo.settings import presets
from frodo.settings.registry import RuleConfig
from meta.targets.scalar import FrodoConfig, frodo
from tests.trajectories import random_trajectory

T, B = 6, 8


def experience(discount_everywhere=1.0):
    trajectory = jax.tree.map(jnp.asarray, random_trajectory(0, T, B))
    no = jnp.zeros((T, B), bool)
    discount = jnp.full((T, B), discount_everywhere, jnp.float32)
    trajectory = trajectory._replace(discount=discount, truncated=no, valid=~no)
    keys = jax.random.split(jax.random.key(0))
    policy = jax.random.normal(keys[1], (T + 1, B, 3))
    return trajectory, {"value": jax.random.normal(keys[0], (T + 1, B)), "policy": policy}


@pytest.mark.parametrize("lambda_", [0.0, 0.7, 1.0])
def test_the_derivatives_of_td_lambda_are_those_of_its_formula(lambda_):
    trajectory, predictions = experience()
    found = sensitivity.derivatives(td_lambda(TDLambdaConfig(0.9, lambda_)), {}, (), trajectory, predictions)
    expected = sensitivity.td_lambda_derivatives(0.9, lambda_, T)
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, atol=1e-4)
    assert expected["value"][-1] == pytest.approx(0.9 * (0.9 * lambda_) ** (T - 1))
    bootstrapped = 0.9 * predictions["value"][1] if lambda_ == 0 else None
    if bootstrapped is not None:  # d(r + γ d v)/dd = γ v
        np.testing.assert_allclose(found["discount"][0], np.mean(bootstrapped), atol=1e-4)


def test_what_comes_after_an_episode_is_left_out():
    trajectory, predictions = experience()
    known = sensitivity.td_lambda_derivatives(0.9, 0.5, T)
    some = trajectory._replace(discount=trajectory.discount.at[2, : B // 2].set(0.0))
    every = trajectory._replace(discount=trajectory.discount.at[2].set(0.0))
    for cut, num_rewards, num_values in ((some, T, T), (every, 3, 2)):
        found = sensitivity.derivatives(td_lambda(TDLambdaConfig(0.9, 0.5)), {}, (), cut, predictions)
        np.testing.assert_allclose(found["reward"][:num_rewards], known["reward"][:num_rewards], atol=1e-4)
        np.testing.assert_allclose(found["value"][:num_values], known["value"][:num_values], atol=1e-4)
        assert np.isnan(found["reward"][num_rewards:]).all() and np.isnan(found["value"][num_values:]).all()


def test_the_learned_target_agrees_with_its_gradient():
    rule = frodo(FrodoConfig(lstm=8))
    meta_params = rule.random_meta_params(jax.random.key(1), 3)
    trajectory, predictions = experience()
    found = sensitivity.derivatives(rule, meta_params, (), trajectory, predictions)

    def mean_target(reward, values):
        own = {**predictions, "value": values}
        return jnp.mean(rule.apply(meta_params, (), trajectory._replace(reward=reward), own, own)[0][0])

    of_reward, of_value = jax.grad(mean_target, (0, 1))(trajectory.reward, predictions["value"])
    np.testing.assert_allclose(found["reward"], of_reward.sum(1), atol=2e-4)
    np.testing.assert_allclose(found["value"], of_value[1:].sum(1), atol=2e-4)


def test_vtrace_cuts_what_was_chosen_too_rarely_and_td_lambda_does_not():
    trajectory, predictions = experience()
    vtrace = impala(ImpalaConfig())
    key = jax.random.key(3)
    found = sensitivity.off_policy(vtrace, {}, (), trajectory, predictions, key)
    assert found["rho"].min() < 0.8 and found["rho"].max() > 1.2 and found["valid"].all()
    np.testing.assert_allclose(found["reward"], np.minimum(1, found["rho"]), atol=1e-3)
    found = sensitivity.off_policy(td_lambda(TDLambdaConfig(0.9, 0.5)), {}, (), trajectory, predictions, key)
    np.testing.assert_allclose(found["reward"], 1, atol=1e-3)


@pytest.mark.long
def test_the_program_measures_over_a_lifetime(tmp_path):
    config = presets.catch()
    network = dataclasses.replace(config.network, hidden=(8,))
    rule = RuleConfig("frodo", FrodoConfig(lstm=4, discount=1.0))
    config = config.replace(batch_size=4, network=network, rule=rule)
    figure = sensitivity.run(config, RunOptions((0, 1), 2000, out=str(tmp_path)))
    assert figure.exists()
    with (tmp_path / "sensitivity.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * 11 * 3 * config.unroll and {row["rule"] for row in rows} == {"frodo", "TD(0.9)", "V-trace"}
    known = sensitivity.td_lambda_derivatives(1.0, 0.9, config.unroll)["value"]
    for row in rows:
        if row["rule"] == "TD(0.9)" and row["value"]:
            assert float(row["value"]) == pytest.approx(known[int(row["k"]) - 1], abs=1e-3)
    with (tmp_path / "off_policy.csv").open() as file:
        corrections = list(csv.DictReader(file))
    assert {row["seed"] for row in corrections} == {"0", "1"} and len(corrections) == 2 * 3 * 4
    for row in corrections:
        if row["rule"] == "V-trace":
            assert float(row["reward"]) == pytest.approx(min(1, float(row["rho"])), abs=2e-3)
    with pytest.raises(UsageError, match="--resume: a measurement begins anew"):
        sensitivity.run(config, RunOptions((0,), 2000, out=str(tmp_path), resume=True))
    with pytest.raises(UsageError, match="holds a measurement"):
        sensitivity.run(config, RunOptions((0,), 2000, out=str(tmp_path)))
    with pytest.raises(UsageError, match="give an environment written in JAX"):
        sensitivity.run(presets.for_environment("bsuite/catch/0"), RunOptions((0,), 2000, out=str(tmp_path / "b")))
