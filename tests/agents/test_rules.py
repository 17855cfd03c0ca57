"""Hand-made rules: targets and losses against loops, which predictions get a gradient, and bad settings."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.rule import masked_reduce
from agents.rules.impala import A2CConfig, ImpalaConfig, a2c, impala
from agents.rules.q_learning import QLearningConfig, q_learning
from agents.rules.td import TDLambdaConfig, td_lambda
from tests.reference import agents as reference
from tests.trajectories import random_trajectory

GAMMA, LAMBDA, VALUE_COST, ENTROPY_COST = 0.9, 0.8, 0.3, 0.2
COSTS = dict(discount=GAMMA, value_cost=VALUE_COST, entropy_cost=ENTROPY_COST)
RULES = {
    "td_lambda": td_lambda(TDLambdaConfig(GAMMA, LAMBDA)),
    "q_learning": q_learning(QLearningConfig(GAMMA, LAMBDA, epsilon=0.2)),
    "impala": impala(ImpalaConfig(lambda_=LAMBDA, **COSTS)),
    "a2c": a2c(A2CConfig(**COSTS)),
    "a2c_no_bootstrap": a2c(A2CConfig(**COSTS), is_bootstrapped=False),
}

pytestmark = pytest.mark.usefixtures("float64")


def drawn(rule, seed=0, num_steps=6, batch_size=4, num_actions=3):
    trajectory = random_trajectory(seed, num_steps, batch_size, num_actions=num_actions)
    rng = np.random.default_rng(seed + 100)
    axes = {name: one.axes(num_actions) for name, one in rule.spec(num_actions).items()}
    return trajectory, {name: rng.normal(size=(num_steps + 1, batch_size, *shape)) for name, shape in axes.items()}


def targets_and_loss(rule, trajectory, predictions):
    @jax.jit
    def compute(trajectory, predictions):
        targets, _ = rule.apply({}, (), trajectory, predictions, predictions)
        return targets, rule.loss(targets, predictions, trajectory)

    return compute(trajectory, predictions)


def test_the_weight_of_the_entropy_follows_its_schedule():
    scheduled = impala(ImpalaConfig(lambda_=LAMBDA, **COSTS, entropy_end=0.05, entropy_updates=4))
    trajectory, predictions = drawn(scheduled)
    state = scheduled.init()
    for cost in (0.2, 0.1625, 0.125, 0.0875, 0.05, 0.05):
        targets, state = scheduled.apply({}, state, trajectory, predictions, predictions)
        expected = targets_and_loss(
            impala(ImpalaConfig(lambda_=LAMBDA, **COSTS | {"entropy_cost": cost})), trajectory, predictions
        )
        np.testing.assert_allclose(scheduled.loss(targets, predictions, trajectory), expected[1], rtol=1e-6)


# Q-learning


def test_q_learning_with_lambda_0_is_one_step_q_learning():
    rule = q_learning(QLearningConfig(GAMMA, 0.0, epsilon=0.2))
    trajectory, predictions = drawn(rule)
    targets, loss = targets_and_loss(rule, trajectory, predictions)
    q, after = predictions["q"], reference.successors(trajectory, predictions["q"])
    for t, b in np.argwhere(trajectory.valid):
        target = trajectory.reward[t, b] + GAMMA * trajectory.discount[t, b] * max(after[t, b])
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
    rule = impala(ImpalaConfig(GAMMA, value_cost=0.0, entropy_cost=1.0, lambda_=LAMBDA))
    trajectory, predictions = drawn(rule)
    targets = jax.tree.map(jnp.zeros_like, targets_and_loss(rule, trajectory, predictions)[0])
    loss = lambda policy: jnp.sum(rule.loss(targets, predictions | {"policy": policy}, trajectory))
    entropy = lambda policy: -np.sum(reference.probabilities(policy) * np.log(reference.probabilities(policy)))
    moved = predictions["policy"] - 0.1 * jax.grad(loss)(predictions["policy"])
    assert entropy(np.asarray(moved)[:-1]) > entropy(predictions["policy"][:-1])


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
    # Eq. 10 of Xu et al. 2020: v moves by c₁ (g − v) ∇v
    rule = RULES["impala"]
    trajectory, predictions = drawn(rule)
    targets, _ = targets_and_loss(rule, trajectory, predictions)
    gradient = jax.grad(lambda p: jnp.sum(rule.loss(targets, p, trajectory)))(predictions)["value"]
    np.testing.assert_allclose(gradient[:-1], VALUE_COST * (predictions["value"][:-1] - targets.value), rtol=1e-10)


# Settings


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (ImpalaConfig(lambda_=1.5), "^lambda_ is 1.5, expected a number from 0 to 1$"),
        (ImpalaConfig(value_cost=-1.0), "^value_cost is -1.0, expected a number of at least 0$"),
        (A2CConfig(discount=1.1), "^discount is 1.1, expected a number from 0 to 1$"),
        (A2CConfig(entropy_cost=float("nan")), "^entropy_cost is nan, expected a number of at least 0$"),
        (A2CConfig(reduction="means"), r"^reduction is 'means', expected one of sum, mean \(did you mean 'mean'"),
        (QLearningConfig(epsilon=-0.1), "^epsilon is -0.1, expected a number from 0 to 1$"),
        (QLearningConfig(discount=2.0), "^discount is 2.0, expected a number from 0 to 1$"),
        (QLearningConfig(lambda_=2.0), "^lambda_ is 2.0, expected a number from 0 to 1$"),
        (TDLambdaConfig(lambda_=float("nan")), "^lambda_ is nan, expected a number from 0 to 1$"),
        (TDLambdaConfig(discount=-1.0), "^discount is -1.0, expected a number from 0 to 1$"),
    ],
    ids=str,
)
def test_a_bad_setting_is_named(config, message):
    type(config)().validate()
    with pytest.raises(ValueError, match=message):
        config.validate()
