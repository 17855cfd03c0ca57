"""Outer objectives against loops in float64: by what agents predict, what moves, and the meta-value function."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.networks.agent import NetworkConfig
from agents.rules.impala import ImpalaConfig, impala
from agents.rules.q_learning import QLearningConfig, q_learning
from agents.rules.td import TDLambdaConfig, td_lambda
from meta.targets.disco import DiscoConfig, disco
from meta.updates.optimizers import OptimizerConfig
from meta.updates.outer import OuterConfig, make_outer, make_value_agent
from tests.reference import agents as reference
from tests.reference import disco as averages
from tests.trajectories import random_trajectory

T, B, A = 5, 4, 3
CONFIG = OuterConfig(discount=0.9, lambda_=0.8, value_cost=0.3, entropy_cost=0.2, temperature=1.3, value_hidden=(4,))
NETWORK = NetworkConfig("mlp", (4,))
TRAJECTORY = random_trajectory(0, T, B, num_actions=A)
VALID = TRAJECTORY.valid

pytestmark = pytest.mark.usefixtures("float64")


def predictions_of(rule, seed=1):
    rng = np.random.default_rng(seed)
    return {name: rng.normal(size=(T + 1, B, *one.axes(A))) for name, one in rule.spec(A).items()}


def losses_and_gradient(outer, state, predictions):
    """The losses, the new state, and which way predictions are moved."""

    @jax.jit
    def compute(predictions):
        fn = lambda p: jnp.sum(outer.loss(state, p, TRAJECTORY)[0] * VALID)
        return outer.loss(state, predictions, TRAJECTORY), jax.grad(fn)(predictions)

    (losses, state), gradient = compute(predictions)
    return np.asarray(losses), state, gradient


def check_valid(actual, expected):
    np.testing.assert_allclose(actual[VALID], expected[VALID], rtol=1e-8, atol=1e-12)


def test_agents_that_predict_values_alone_are_judged_by_the_lambda_return():
    rule = td_lambda(TDLambdaConfig())
    predictions, outer = predictions_of(rule), make_outer(CONFIG, rule, NETWORK, A)
    losses, state, gradient = losses_and_gradient(outer, (), predictions)
    ones = np.ones((T, B))
    returns, _ = reference.vtrace(TRAJECTORY, predictions["value"], ones, CONFIG.discount, CONFIG.lambda_)
    check_valid(losses, (returns - predictions["value"][:-1]) ** 2)
    check_valid(gradient["value"][:-1], 2 * (predictions["value"][:-1] - returns))  # the return is a constant
    assert state == () == outer.init(jax.random.key(0), TRAJECTORY.observation[0])


def test_agents_with_action_values_are_judged_under_the_rules_own_policy():
    rule = q_learning(QLearningConfig(epsilon=0.3))
    predictions = predictions_of(rule)
    losses, _, gradient = losses_and_gradient(make_outer(CONFIG, rule, NETWORK, A), (), predictions)
    q = predictions["q"]
    policy = 0.7 * (q == q.max(axis=-1, keepdims=True)) + 0.1
    values, ones = np.sum(policy * q, axis=-1), np.ones((T, B))
    returns, _ = reference.vtrace(TRAJECTORY, values, ones, CONFIG.discount, CONFIG.lambda_)
    error = reference.taken(q, TRAJECTORY.action) - returns
    check_valid(losses, 0.5 * error**2)
    check_valid(np.sum(gradient["q"][:-1], axis=-1), error)


@pytest.mark.parametrize("is_normalised", [False, True])
def test_actor_critics_are_judged_by_v_trace_at_the_temperature(is_normalised):
    rule, config = impala(ImpalaConfig()), dataclasses.replace(CONFIG, is_advantage_normalised=is_normalised)
    outer = make_outer(config, rule, NETWORK, A)
    state, average = outer.init(jax.random.key(0), TRAJECTORY.observation[0]), (0.0, 0.0, 1.0)
    for seed in (1, 2):
        predictions = predictions_of(rule, seed)
        losses, state, gradient = losses_and_gradient(outer, state, predictions)
        rho = reference.importance_ratios(predictions["policy"], TRAJECTORY, config.temperature)
        targets, advantages = reference.vtrace(TRAJECTORY, predictions["value"], rho, config.discount, config.lambda_)
        if is_normalised:  # by what was seen so far, this trajectory included
            average = averages.average(average, advantages[VALID])
            advantages = averages.normalise(average, advantages)
            np.testing.assert_allclose(state, average, rtol=1e-9)
        else:
            assert state == ()
        costs = config.value_cost, config.entropy_cost, config.temperature
        check_valid(losses, reference.actor_critic_loss(targets, advantages, predictions, TRAJECTORY.action, *costs))
        error = config.value_cost * (predictions["value"][:-1] - targets)
        check_valid(gradient["value"][:-1], error)


# Agents that predict no values

RULE = disco(DiscoConfig(prediction_size=4, max_value=2, lstm=4, lifetime_lstm=0))


@pytest.mark.parametrize("is_normalised", [False, True])
def test_a_meta_value_function_judges_and_learns_beside(is_normalised):
    optimizer = OptimizerConfig(0.1, decay=0.9, epsilon=0.5)
    config = dataclasses.replace(
        CONFIG, is_advantage_normalised=is_normalised, value_optimizer=optimizer, prediction_entropy_cost=0.05
    )
    outer, value_agent = make_outer(config, RULE, NETWORK, A), make_value_agent(config, NETWORK)
    predictions = predictions_of(RULE)
    state = outer.init(jax.random.key(0), jnp.asarray(TRAJECTORY.observation[0]))
    state = state._replace(params=jax.tree.map(lambda x: x + 0.3, state.params))
    losses, after, gradient = losses_and_gradient(outer, state, predictions)

    values = np.asarray(value_agent.unroll(state.params, TRAJECTORY)["value"])
    rho = reference.importance_ratios(predictions["policy"], TRAJECTORY, config.temperature)
    targets, advantages = reference.vtrace(TRAJECTORY, values, rho, config.discount, config.lambda_)
    average = averages.average((0.0, 0.0, 1.0), advantages[VALID])
    np.testing.assert_allclose(after.advantage, average, rtol=1e-9)
    if is_normalised:
        advantages = averages.normalise(average, advantages)
    with_values = predictions | {"value": values}
    expected = reference.actor_critic_loss(
        targets, advantages, with_values, TRAJECTORY.action, 0.0, config.entropy_cost, config.temperature
    )
    entropy = lambda x: -np.sum(reference.probabilities(x) * np.log(reference.probabilities(x)), axis=-1)
    taken_z = reference.taken(predictions["z"][:-1], TRAJECTORY.action)
    check_valid(losses, expected - 0.05 * (entropy(predictions["y"][:-1]) + entropy(taken_z)))
    assert {name for name, x in gradient.items() if np.any(x)} == {"policy", "y", "z"}

    # Its own update is one step towards the targets, of the mean over valid steps.
    @jax.grad
    def own(params):
        error = targets - value_agent.unroll(params, TRAJECTORY)["value"][:-1]
        return 0.5 * jnp.sum(error**2 * VALID) / VALID.sum()

    grads = own(state.params)
    moved = jax.tree.map(lambda p, g: p - 0.1 * g / np.sqrt(0.1 * g**2 + 0.5), state.params, grads)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-8), after.params, moved)
    assert all(np.any(g) for g in jax.tree.leaves(grads))


def test_the_meta_value_function_has_the_agents_torso_and_layers_of_its_own():
    network = NetworkConfig("conv", (7,), core=3, action_model=5)
    agent = make_value_agent(dataclasses.replace(CONFIG, value_hidden=(6, 5)), network)
    params = agent.init(jax.random.key(0), agent.prepare(np.zeros((1, 2, 16, 16), np.uint8)))
    assert set(params["torso"]) == {"conv_0", "conv_1"}
    assert [layer["b"].shape for layer in params["heads"].values()] == [(6,), (5,), (1,)]
    assert agent.initial_state(2) == ()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (OuterConfig(discount=2.0), "^discount is 2.0, expected a number from 0 to 1$"),
        (OuterConfig(lambda_=-0.1), "^lambda_ is -0.1, expected a number from 0 to 1$"),
        (OuterConfig(value_cost=-1.0), "^value_cost is -1.0, expected a number of at least 0$"),
        (OuterConfig(entropy_cost=float("nan")), "^entropy_cost is nan, expected a number of at least 0$"),
        (
            OuterConfig(prediction_entropy_cost=-1.0),
            "^prediction_entropy_cost is -1.0, expected a number of at least 0$",
        ),
        (OuterConfig(temperature=0.0), "^temperature is 0.0, expected a positive number$"),
        (OuterConfig(value_hidden=(4, 0)), r"^value_hidden is \(4, 0\), expected a tuple of positive layer sizes$"),
        (
            OuterConfig(value_optimizer=OptimizerConfig(0.0)),
            "^value_optimizer.learning_rate is 0.0, expected a positive",
        ),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_a_bad_setting_is_named(config, message):
    OuterConfig().validate()
    with pytest.raises(ValueError, match=message):
        config.validate()
