"""What targets depend on: derivatives in closed form, where an episode ends inside, and of targets that are pytrees."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.rules.impala import ImpalaConfig, impala
from agents.rules.q_learning import QLearningConfig, q_learning
from agents.rules.td import TDLambdaConfig, td_lambda
from meta.targets.scalar import FrodoConfig, frodo
from meta.targets.sensitivity import INPUTS, target_derivatives
from tests.reference import agents as reference
from tests.trajectories import random_trajectory

T, B, A, GAMMA, LAMBDA = 6, 4, 3, 0.9, 0.8
TRAJECTORY = random_trajectory(0, T, B, num_actions=A)
RNG = np.random.default_rng(1)
PREDICTIONS = {"policy": RNG.normal(size=(T + 1, B, A)), "value": RNG.normal(size=(T + 1, B))}

pytestmark = pytest.mark.usefixtures("float64")


def derivatives(rule, predictions=PREDICTIONS, meta_params=None, trajectory=TRAJECTORY, slow=None):
    compute = jax.jit(lambda eta, t, p, s: target_derivatives(rule, eta, rule.init(), t, p, s))
    return compute(meta_params or {}, trajectory, predictions, slow or predictions)


def goes_on(k, t, b):
    """Whether what comes of step k reaches the target of step t: no episode ends between them, from t on."""
    return t <= k and not TRAJECTORY.is_last[t:k, b].any() and TRAJECTORY.valid[k, b]


def expected_by_reward(rho):
    """(γλ)^(k − t) times the clipped importance ratios, up to the end of the episode: [T, T, B]."""
    expected = np.zeros((T, T, B))
    for k, t, b in np.ndindex(T, T, B):
        if goes_on(k, t, b):
            expected[k, t, b] = (GAMMA * LAMBDA) ** (k - t) * np.prod(np.minimum(1, rho[t : k + 1, b]))
    return expected


def test_rewards_reach_td_lambda_targets_by_powers_of_gamma_lambda_to_the_end_of_the_episode():
    rule = td_lambda(TDLambdaConfig(GAMMA, LAMBDA))
    found = derivatives(rule, {"value": PREDICTIONS["value"]})
    assert set(found) == set(INPUTS) and found["reward"].shape == (T, T, B)
    np.testing.assert_allclose(found["reward"], expected_by_reward(np.ones((T, B))), atol=1e-10)
    # Column 0 ends at step 1, column 3 does not.
    np.testing.assert_allclose(found["reward"][:3, 0, 0], [1, GAMMA * LAMBDA, 0], atol=1e-10)
    np.testing.assert_allclose(found["reward"][:, 0, 3], (GAMMA * LAMBDA) ** np.arange(T), atol=1e-10)


def test_values_reach_td_lambda_targets_with_what_the_trace_leaves():
    found = derivatives(td_lambda(TDLambdaConfig(GAMMA, LAMBDA)), {"value": PREDICTIONS["value"]})["value"]
    for k, t in np.ndindex(T, T):  # column 3, in which nothing ends
        expected = 0 if k < t else (GAMMA * LAMBDA) ** (k - t) * GAMMA * (1 if k == T - 1 else 1 - LAMBDA)
        np.testing.assert_allclose(found[k, t, 3], expected, atol=1e-10)
    # Of a step that terminates the value after it does not count, of one that is truncated it does in full.
    np.testing.assert_allclose(found[1, :2, 0], 0, atol=1e-10)
    np.testing.assert_allclose(found[2, :3, 1], GAMMA * (GAMMA * LAMBDA) ** np.array([2, 1, 0]), atol=1e-10)


def test_discounts_reach_targets_by_what_they_multiply():
    found = derivatives(td_lambda(TDLambdaConfig(GAMMA, 0.0)), {"value": PREDICTIONS["value"]})["discount"]
    goes_on = TRAJECTORY.valid & (TRAJECTORY.discount > 0)  # where an episode terminated nothing is changed
    expected = np.where(goes_on, GAMMA * reference.successors(TRAJECTORY, PREDICTIONS["value"]), 0)
    for k, t in np.ndindex(T, T):
        np.testing.assert_allclose(found[k, t], expected[t] if k == t else 0, atol=1e-10)


def test_rewards_reach_v_trace_targets_with_the_clipped_ratios_in_both_leaves():
    found = derivatives(impala(ImpalaConfig(GAMMA, lambda_=LAMBDA)))["reward"]
    rho = reference.importance_ratios(PREDICTIONS["policy"], TRAJECTORY)
    assert np.any(rho > 1) and np.any(rho < 1)
    np.testing.assert_allclose(found.value, expected_by_reward(rho), atol=1e-10)
    assert found.advantage.shape == (T, T, B)
    expected = np.where(TRAJECTORY.valid, np.minimum(1, rho), 0)
    np.testing.assert_allclose(np.einsum("ttb->tb", found.advantage), expected, atol=1e-10)


def test_of_agents_without_values_there_is_no_derivative_by_value():
    found = derivatives(q_learning(QLearningConfig()), {"q": RNG.normal(size=(T + 1, B, A))})
    assert set(found) == {"reward", "discount"}


def test_derivatives_of_a_learned_target_are_those_that_jax_computes():
    rule = frodo(FrodoConfig(kind="prediction", lstm=4, discount=GAMMA, inputs=INPUTS[:2] + ("next_value",)))
    meta_params = rule.random_meta_params(jax.random.key(0), A)
    predictions = {"value": jnp.asarray(PREDICTIONS["value"])}
    trajectory = TRAJECTORY._replace(
        behaviour_logits=TRAJECTORY.behaviour_logits[..., :1], action=np.zeros((T, B), int)
    )
    found = derivatives(rule, predictions, meta_params, trajectory)

    @jax.jit
    @jax.jacobian
    def jacobian(change):
        changed = trajectory._replace(reward=trajectory.reward + change["reward"][:, None])
        changed = changed._replace(discount=trajectory.discount + change["discount"][:, None])
        values = predictions["value"].at[1:].add(change["value"][:, None])
        return rule.apply(meta_params, (), changed, {"value": values}, {"value": values})[0]

    expected = jacobian({name: np.zeros(T) for name in INPUTS})
    ended = np.zeros((T, T, B), bool)
    ended[:] = (TRAJECTORY.discount == 0)[:, None]  # where another discount is that of an episode that goes on
    for name in INPUTS:
        is_known = ~ended if name == "discount" else np.ones_like(ended)
        np.testing.assert_allclose(
            found[name][is_known], np.moveaxis(expected[name], -1, 0)[is_known], rtol=1e-3, atol=1e-5
        )
        assert np.abs(found[name][is_known]).max() > 1e-3


def test_the_slow_copys_values_change_with_the_agents():
    rule = td_lambda(TDLambdaConfig(GAMMA, 0.0))
    of_slow = rule._replace(
        apply=lambda eta, state, trajectory, own, slow: rule.apply(eta, state, trajectory, slow, own)
    )
    slow = {"value": PREDICTIONS["value"] + 1}
    found = derivatives(of_slow, {"value": PREDICTIONS["value"]}, slow=slow)["value"]
    np.testing.assert_allclose(found[0, 0], np.where(TRAJECTORY.is_successor_unknown[0], 0, GAMMA), atol=1e-10)
