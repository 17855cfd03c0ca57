"""Hand-made rules: targets and losses against loops, the masked reduction, and which predictions get a gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.impala import a2c, impala
from agents.q_learning import epsilon_greedy_policy, expected_values, q_learning
from agents.rule import masked_reduce
from agents.td import td_lambda
from tests.reference import agents as reference
from tests.trajectories import random_trajectory

GAMMA, LAMBDA, VALUE_COST, ENTROPY_COST = 0.9, 0.8, 0.3, 0.2
RULES = {
    "td_lambda": td_lambda(GAMMA, LAMBDA),
    "q_learning": q_learning(GAMMA, LAMBDA, epsilon=0.2),
    "impala": impala(GAMMA, LAMBDA, VALUE_COST, ENTROPY_COST, "sum"),
    "a2c": a2c(GAMMA, VALUE_COST, ENTROPY_COST, "sum", is_bootstrapped=True),
    "a2c_no_bootstrap": a2c(GAMMA, VALUE_COST, ENTROPY_COST, "sum", is_bootstrapped=False),
}


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def drawn(rule, seed=0, num_steps=6, batch_size=4, num_actions=3):
    trajectory = random_trajectory(seed, num_steps, batch_size, num_actions=num_actions)
    rng = np.random.default_rng(seed + 100)
    axes = {
        name: ((num_actions, *s.shape) if s.is_per_action else s.shape) for name, s in rule.spec(num_actions).items()
    }
    return trajectory, {name: rng.normal(size=(num_steps + 1, batch_size, *shape)) for name, shape in axes.items()}


def targets_and_loss(rule, trajectory, predictions):
    @jax.jit
    def compute(trajectory, predictions):
        targets, _ = rule.apply({}, (), trajectory, predictions, predictions)
        return targets, rule.loss(targets, predictions, trajectory)

    return compute(trajectory, predictions)


# Q-learning


def test_q_learning_with_lambda_0_is_one_step_q_learning():
    rule = q_learning(GAMMA, 0.0, epsilon=0.2)
    trajectory, predictions = drawn(rule)
    targets, loss = targets_and_loss(rule, trajectory, predictions)
    q = predictions["q"]
    for t, b in np.argwhere(trajectory.valid):
        target = trajectory.reward[t, b] + GAMMA * trajectory.discount[t, b] * max(q[t + 1, b])
        np.testing.assert_allclose(targets[t, b], target, rtol=1e-12)
        np.testing.assert_allclose(loss[t, b], 0.5 * (target - q[t, b, trajectory.action[t, b]]) ** 2, rtol=1e-10)


def test_q_learning_agrees_with_loops():
    rule = RULES["q_learning"]
    trajectory, predictions = drawn(rule)
    targets, loss = targets_and_loss(rule, trajectory, predictions)
    values = np.max(predictions["q"], axis=-1)
    expected, _ = reference.vtrace(trajectory, values, np.ones_like(values[1:]), GAMMA, LAMBDA)
    np.testing.assert_allclose(targets, expected, rtol=1e-12)
    error = expected - reference.taken(predictions["q"], trajectory.action)
    np.testing.assert_allclose(loss, 0.5 * error**2, rtol=1e-10)


def test_epsilon_greedy_policy_takes_the_best_action_but_for_epsilon():
    predictions = {"q": np.array([[1.0, 3.0, 2.0, -1.0], [5.0, 5.0, 0.0, 1.0]])}
    logits = epsilon_greedy_policy(predictions, 0.2)
    probabilities = [[0.05, 0.85, 0.05, 0.05], [0.45, 0.45, 0.05, 0.05]]  # ties are shared
    np.testing.assert_allclose(jax.nn.softmax(logits), probabilities, rtol=1e-6)
    np.testing.assert_allclose(expected_values(predictions, logits), [0.85 * 3 + 0.05 * 2, 0.9 * 5 + 0.05], rtol=1e-6)
    np.testing.assert_allclose(RULES["q_learning"].policy(predictions), logits)


# Actor-critic


@pytest.mark.parametrize("name", ["impala", "a2c", "a2c_no_bootstrap"])
@pytest.mark.parametrize("seed", [0, 1])
def test_actor_critic_targets_and_loss_agree_with_loops(name, seed):
    trajectory, predictions = drawn(RULES[name], seed)
    targets, loss = targets_and_loss(RULES[name], trajectory, predictions)
    values = predictions["value"].copy()
    if name == "impala":
        rho, lambda_ = reference.importance_ratios(predictions["policy"], trajectory), LAMBDA
        assert np.any(rho > 1) and np.any(rho < 1)
    else:
        rho, lambda_ = np.ones_like(values[1:]), 1.0
    if name == "a2c_no_bootstrap":
        values[-1] = 0
    expected = reference.vtrace(trajectory, values, rho, GAMMA, lambda_)
    np.testing.assert_allclose(targets.value, expected[0], rtol=1e-10)
    np.testing.assert_allclose(targets.advantage, expected[1], rtol=1e-10, atol=1e-12)
    expected_loss = reference.actor_critic_loss(*expected, predictions, trajectory.action, VALUE_COST, ENTROPY_COST)
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-10, atol=1e-12)


def test_a2c_without_bootstrap_ends_in_0():
    trajectory, predictions = drawn(RULES["a2c_no_bootstrap"])
    r, last = trajectory.reward, len(trajectory.reward) - 1
    targets, _ = targets_and_loss(RULES["a2c_no_bootstrap"], trajectory, predictions)
    np.testing.assert_allclose(targets.value[last, 3], r[last, 3], rtol=1e-12)
    np.testing.assert_allclose(targets.value[0, 3], GAMMA ** np.arange(last + 1) @ r[:, 3], rtol=1e-12)
    # An end by time limit inside of the trajectory still bootstraps.
    bootstrapped = r[2, 1] + GAMMA * predictions["value"][3, 1]
    np.testing.assert_allclose(targets.value[2, 1], bootstrapped, rtol=1e-12)
    with_bootstrap, _ = targets_and_loss(RULES["a2c"], trajectory, predictions)
    np.testing.assert_allclose(
        with_bootstrap.value[last, 3], r[last, 3] + GAMMA * predictions["value"][-1, 3], rtol=1e-12
    )


def test_the_entropy_bonus_raises_entropy():
    rule = impala(GAMMA, LAMBDA, 0.0, 1.0, "sum")
    trajectory, predictions = drawn(rule)
    targets = jax.tree.map(jnp.zeros_like, targets_and_loss(rule, trajectory, predictions)[0])
    loss = lambda policy: jnp.sum(rule.loss(targets, predictions | {"policy": policy}, trajectory))
    entropy = lambda policy: -np.sum(reference.probabilities(policy) * np.log(reference.probabilities(policy)))
    moved = predictions["policy"] - 0.1 * jax.grad(loss)(predictions["policy"])
    assert entropy(np.asarray(moved)[:-1]) > entropy(predictions["policy"][:-1])


# The reduction


def test_masked_reduce_counts_valid_steps_only():
    loss = np.array([[1.0, np.nan], [2.0, 4.0]])
    valid = np.array([[True, False], [True, True]])
    assert masked_reduce(loss, valid, "sum") == 7
    np.testing.assert_allclose(masked_reduce(loss, valid, "mean"), 7 / 3)
    assert masked_reduce(loss, np.zeros_like(valid), "mean") == 0
    with pytest.raises(ValueError, match="reduction is 'average', expected 'sum' or 'mean'"):
        masked_reduce(loss, valid, "average")


def test_a_rule_has_the_reduction_that_was_asked_for():
    for reduction in ("sum", "mean"):
        assert impala(GAMMA, LAMBDA, VALUE_COST, ENTROPY_COST, reduction).reduction == reduction
        assert a2c(GAMMA, VALUE_COST, ENTROPY_COST, reduction, is_bootstrapped=True).reduction == reduction
    assert (RULES["q_learning"].reduction, RULES["td_lambda"].reduction) == ("sum", "mean")


# Gradients

FLOW = {  # the predictions whose gradient is not zero
    "td_lambda": {"value"},
    "q_learning": {"q"},
    "impala": {"policy", "value"},
    "a2c": {"policy", "value"},
    "a2c_no_bootstrap": {"policy", "value"},
}


@pytest.mark.parametrize("name", RULES)
def test_gradient_flow(name):
    rule = RULES[name]
    trajectory, predictions = drawn(rule)
    targets, _ = targets_and_loss(rule, trajectory, predictions)

    def loss(predictions, targets):
        return masked_reduce(rule.loss(targets, predictions, trajectory), trajectory.valid, rule.reduction)

    def loss_through_targets(predictions):
        return loss(predictions, rule.apply({}, (), trajectory, predictions, predictions)[0])

    direct = jax.jit(jax.grad(loss))(predictions, targets)
    through = jax.jit(jax.grad(loss_through_targets))(predictions)
    assert set(direct) == FLOW[name]
    for key, gradient in direct.items():
        gradient = np.asarray(gradient)
        # Targets are constants: computing them from the predictions adds nothing.
        np.testing.assert_allclose(through[key], gradient, rtol=1e-10, atol=1e-14)
        per_step = np.abs(gradient).reshape(*gradient.shape[:2], -1).max(axis=-1)
        np.testing.assert_array_equal(per_step[:-1] > 0, trajectory.valid)
        np.testing.assert_array_equal(per_step[-1], 0)


def test_the_critic_is_moved_by_the_value_cost_alone():
    rule = RULES["impala"]
    trajectory, predictions = drawn(rule)
    targets, _ = targets_and_loss(rule, trajectory, predictions)
    gradient = jax.grad(lambda p: jnp.sum(rule.loss(targets, p, trajectory)))(predictions)["value"]
    np.testing.assert_allclose(gradient[:-1], 2 * VALUE_COST * (predictions["value"][:-1] - targets.value), rtol=1e-10)


def test_no_gradient_flows_through_the_epsilon_greedy_policy():
    q = np.random.default_rng(0).normal(size=(5, 3))
    gradient = jax.grad(lambda q: jnp.sum(epsilon_greedy_policy({"q": q}, 0.2) * np.arange(3)))(q)
    np.testing.assert_array_equal(gradient, 0)
