"""Programs as drifts in PPO's loop: PPO's own, one in NumPy, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.rules.ppo import PPOConfig, PPOTargets, ppo
from meta.programs.drifts import DriftProgramConfig, drift_program
from meta.targets.proximal import LPOTargets
from tests.trajectories import random_trajectory

T, B, A = 6, 4, 3


def losses(rule, advantage, progress, log_ratio, predictions, trajectory, is_plain=False):
    log_pi = jax.nn.log_softmax(predictions["policy"])[:-1]
    log_pi = jnp.take_along_axis(log_pi, jnp.asarray(trajectory.action)[..., None], -1)[..., 0]
    zeros = jnp.zeros((T, B))
    own = PPOTargets(zeros, jnp.asarray(advantage), zeros, log_pi - log_ratio)
    if is_plain:
        return rule.loss(own, predictions, trajectory)
    targets, eta = LPOTargets(own, jnp.asarray(progress)), rule.random_meta_params(jax.random.key(0), A)
    return rule.loss(targets, predictions, trajectory) + rule.meta_loss(eta, targets, predictions, trajectory)


@pytest.fixture
def of_steps():
    random = np.random.default_rng(0)
    advantage, progress, log_ratio = random.normal(size=(T, B)), random.uniform(size=(T, B)), random.normal(size=(T, B))
    trajectory = random_trajectory(0, T, B, num_actions=A)
    trajectory = jax.tree.map(jnp.asarray, trajectory._replace(valid=np.ones((T, B), bool)))
    predictions = {"policy": jnp.asarray(random.normal(size=(T + 1, B, A))), "value": jnp.zeros((T + 1, B))}
    return advantage, progress, log_ratio, predictions, trajectory


@pytest.mark.usefixtures("float64")
def test_the_program_at_first_is_ppo(of_steps):
    shared = dict(entropy_cost=0.1, clip=0.2)
    ours = losses(drift_program(DriftProgramConfig(**shared)), *of_steps)
    np.testing.assert_allclose(ours, losses(ppo(PPOConfig(**shared)), *of_steps, is_plain=True), rtol=1e-9)


@pytest.mark.usefixtures("float64")
def test_a_program_is_its_formula(of_steps):
    formula = "x = (r - 1.0) * A; max(0.0, x * x - 0.1 * t) + log(r) * 0.5"
    config = DriftProgramConfig(entropy_cost=0.0, is_advantage_normalised=False, formula=formula)
    a, t, log_r, *_ = of_steps
    r = np.exp(log_r)
    expected = np.maximum(0, ((r - 1) * a) ** 2 - 0.1 * t) + 0.5 * log_r - r * a
    np.testing.assert_allclose(losses(drift_program(config), *of_steps), expected, rtol=1e-9)
    assert drift_program(config).random_meta_params(jax.random.key(0), A)["program"]["constants"].shape == (4,)


@pytest.mark.parametrize(
    "formula, message",
    [
        ("r * B", "^formula: 'B' is no name"),
        ("max(r, A", "^formula: 'max\\(r, A' cannot be read"),
        ("dpo", "^formula: 'dpo' is no name"),
    ],
)
def test_a_formula_that_is_none_is_named(formula, message):
    with pytest.raises(ValueError, match=message):
        DriftProgramConfig(formula=formula).validate()
