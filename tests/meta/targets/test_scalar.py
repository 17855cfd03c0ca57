"""Consistency against loops, what the learned loss sees, which derivatives the options stop, and bad configurations."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.networks.agent import Agent, NetworkConfig, make_agent
from agents.rules.returns import importance_ratios, vtrace
from meta.targets.scalar import (
    FrodoConfig,
    LearnedLossConfig,
    consistency_loss,
    consistency_targets,
    frodo,
    learned_loss,
)
from meta.updates import gradients
from tests.reference import agents as reference
from tests.trajectories import random_trajectory

GAMMA, T, B, A = 0.9, 6, 4, 3

pytestmark = pytest.mark.usefixtures("float64")


def consistent_targets(trajectory, last):
    """Targets that obey Gₜ = Rₜ₊₁ + γₜ₊₁ Gₜ₊₁ exactly, whatever stands where a step has no successor."""
    targets = np.random.default_rng(5).normal(size=(T, B))
    targets[-1] = last
    for t in reversed(range(T - 1)):
        for b in range(B):
            if trajectory.valid[t, b] and not trajectory.truncated[t, b]:
                targets[t, b] = trajectory.reward[t, b] + GAMMA * trajectory.discount[t, b] * targets[t + 1, b]
    return targets


# Consistency


@pytest.mark.parametrize("is_multi_step", [False, True])
def test_an_exact_td_target_is_consistent(is_multi_step):
    trajectory = random_trajectory(0, T, B)
    targets = consistent_targets(trajectory, last=np.arange(B))
    loss = np.asarray(consistency_loss(jnp.asarray(targets), trajectory, GAMMA, is_multi_step))
    np.testing.assert_allclose(loss[trajectory.valid], 0, atol=1e-20)
    # Any error at a step with a predecessor or a successor is seen.
    targets[4, 3] += 0.1
    loss = np.asarray(consistency_loss(jnp.asarray(targets), trajectory, GAMMA, is_multi_step))
    assert loss[4, 3] > 1e-3 and (loss[3, 3] > 1e-3) == (not is_multi_step)


@pytest.mark.parametrize("is_multi_step", [False, True])
@pytest.mark.parametrize("seed", [0, 1])
def test_consistency_agrees_with_loops(seed, is_multi_step):
    trajectory = random_trajectory(seed, T, B)
    targets = np.random.default_rng(seed + 50).normal(size=(T, B))
    loss = np.asarray(consistency_loss(jnp.asarray(targets), trajectory, GAMMA, is_multi_step))
    assert loss.shape == (T, B)
    for b in range(B):
        for t in range(T):
            if not trajectory.valid[t, b]:
                continue
            expected, weight, u = 0.0, 1.0, t
            while True:  # rewards of t, t + 1, ..., u - 1, then the target of u
                expected += weight * trajectory.reward[u, b]
                weight *= GAMMA * trajectory.discount[u, b]
                u += 1
                is_end = u == T - 1 or not is_multi_step
                if u >= T or is_end or trajectory.truncated[u, b] or not trajectory.valid[u, b]:
                    break
            if t == T - 1 or trajectory.truncated[t, b]:
                assert loss[t, b] == 0
            else:
                expected += weight * targets[u, b]
                np.testing.assert_allclose(loss[t, b], 0.5 * (expected - targets[t, b]) ** 2, rtol=1e-10)


def test_the_multi_step_chain_ends_in_the_last_steps_own_target_and_without_its_reward():
    trajectory = random_trajectory(0, 5, 4)
    trajectory = jax.tree.map(lambda x: x[:3, 3:], trajectory._replace(core_state=()))
    trajectory = trajectory._replace(reward=np.array([[1.0], [2.0], [4.0]]))
    targets = jnp.array([[100.0], [200.0], [8.0]])
    multi_step = consistency_targets(targets, trajectory, 0.5, True)
    np.testing.assert_allclose(multi_step[:, 0], [1 + 0.5 * 6, 2 + 0.5 * 8])
    one_step = consistency_targets(targets, trajectory, 0.5, False)
    np.testing.assert_allclose(one_step[:, 0], [1 + 0.5 * 200, 2 + 0.5 * 8])
    other = trajectory._replace(reward=np.array([[1.0], [2.0], [-50.0]]))
    np.testing.assert_array_equal(consistency_targets(targets, other, 0.5, True), multi_step)
    np.testing.assert_allclose(consistency_loss(targets, trajectory, 0.5, True)[:, 0], [0.5 * 96**2, 0.5 * 194**2, 0])


def test_consistency_moves_each_target_to_its_successors_and_not_the_other_way_round():
    trajectory = random_trajectory(0, T, B)
    targets = jnp.asarray(np.random.default_rng(0).normal(size=(T, B)))
    gradient = jax.grad(lambda g: jnp.sum(consistency_loss(g, trajectory, GAMMA, True)))(targets)
    expected = np.zeros((T, B))
    expected[:-1] = targets[:-1] - consistency_targets(targets, trajectory, GAMMA, True)
    expected[:-1][(trajectory.truncated | ~trajectory.valid)[:-1]] = 0
    np.testing.assert_allclose(gradient, expected, rtol=1e-10, atol=1e-14)


def test_a_step_whose_successor_is_not_known_is_consistent_with_nothing():
    """Truncated where the last observation is lost: step 2 is not valid, and its target an output for no inputs."""
    ones, no = jnp.ones((4, 1)), jnp.zeros((4, 1), bool)
    trajectory = random_trajectory(0, 5, 3)._replace(
        reward=ones, discount=ones, truncated=no.at[2].set(True), valid=(~no).at[2].set(False)
    )
    losses = [consistency_loss(jnp.array([[8.0], [4.0], [x], [1.0]]), trajectory, 0.5, True) for x in (2.0, 9.0)]
    np.testing.assert_array_equal(losses[0], losses[1])
    np.testing.assert_allclose(losses[0][:, 0], [0.5 * (1 + 0.5 * 4 - 8) ** 2, 0, 0, 0])


def test_consistency_is_in_the_outer_loss_with_its_cost():
    config = FrodoConfig(lstm=4, consistency_cost=0.3, discount=GAMMA)
    trajectory = random_trajectory(0, T, B)
    targets = jnp.asarray(np.random.default_rng(0).normal(size=(T, B)))
    for is_multi_step in (True, False):
        rule = frodo(dataclasses.replace(config, is_consistency_multi_step=is_multi_step))
        expected = 0.3 * consistency_loss(targets, trajectory, GAMMA, is_multi_step)
        np.testing.assert_allclose(rule.regulariser(targets, None, trajectory), expected)
    assert frodo(dataclasses.replace(config, consistency_cost=0.0)).regulariser is None


# What the meta-network sees

TARGET_INPUTS = ("reward", "discount", "next_value")


def drawn_predictions(seed=0):
    rng = np.random.default_rng(seed)
    return {"policy": rng.normal(size=(T + 1, B, A)), "value": rng.normal(size=(T + 1, B))}


def drawn_meta_params(rule):
    rng = np.random.default_rng(7)
    shapes = jax.eval_shape(lambda key: rule.random_meta_params(key, A), jax.random.key(0))
    return jax.tree.map(lambda x: 0.5 * rng.normal(size=x.shape), shapes)


@pytest.mark.parametrize(
    ("make", "inputs", "num_inputs", "sees_policy", "sees_value"),
    [
        (frodo, TARGET_INPUTS, 3, False, False),
        (frodo, (*TARGET_INPUTS, "pi", "mu"), 5, True, False),
        (learned_loss, TARGET_INPUTS, 5, True, True),
        (learned_loss, (*TARGET_INPUTS, "value", "log_pi"), 5, True, True),
    ],
)
def test_what_the_meta_network_sees(make, inputs, num_inputs, sees_policy, sees_value):
    config = (
        FrodoConfig(next_value_gradient="literal")
        if make is frodo
        else LearnedLossConfig(is_next_value_differentiated=True)
    )
    rule = make(dataclasses.replace(config, inputs=inputs, lstm=4))
    meta_params = drawn_meta_params(rule)
    assert meta_params["target_network/lstm"]["w"].shape == (num_inputs + 4, 16)
    trajectory = random_trajectory(0, T, B)

    @jax.jit
    @jax.jacobian
    def own(predictions):
        targets, _ = rule.apply(meta_params, (), trajectory, predictions, predictions)
        return targets[0, 3]

    gradient = own(drawn_predictions())
    assert np.any(gradient["policy"]) == sees_policy
    assert np.any(gradient["value"][0, 3]) == sees_value
    assert np.all(np.abs(gradient["value"][1:, 3]) > 1e-12)
    assert not np.any(gradient["policy"][-1])


def test_target_difference_is_the_mean_square_to_the_v_trace_target():
    rule = frodo(FrodoConfig(lstm=4, discount=GAMMA, vtrace_lambda=0.8))
    trajectory, predictions = random_trajectory(0, T, B), drawn_predictions()
    targets = np.random.default_rng(0).normal(size=(T, B))
    rho = reference.importance_ratios(predictions["policy"], trajectory)
    canonical, _ = reference.vtrace(trajectory, predictions["value"], rho, GAMMA, 0.8)
    metrics = rule.metrics(targets, predictions, trajectory)
    squares = np.square(targets - canonical)[trajectory.valid]
    np.testing.assert_allclose(metrics["target_difference"], np.mean(squares), rtol=1e-10)
    np.testing.assert_allclose(metrics["target"], np.mean(targets[trajectory.valid]), rtol=1e-10)
    assert frodo(FrodoConfig(lstm=4, kind="prediction")).metrics(targets, predictions, trajectory) == {}


def test_the_learned_loss_is_the_output_and_the_entropy_bonus():
    rule = learned_loss(LearnedLossConfig(lstm=4, entropy_cost=0.2))
    trajectory, predictions = random_trajectory(0, T, B), drawn_predictions()
    outputs = np.random.default_rng(0).normal(size=(T, B))
    pi = np.exp(predictions["policy"][:-1])
    pi /= pi.sum(axis=-1, keepdims=True)
    expected = outputs + 0.2 * np.sum(pi * np.log(pi), axis=-1)
    np.testing.assert_allclose(rule.loss(outputs, predictions, trajectory), expected, rtol=1e-10)


def test_the_actor_critic_loss_takes_the_advantage_over_the_value():
    rule = frodo(FrodoConfig(lstm=4, entropy_cost=0.2, value_cost=0.3))
    trajectory, predictions = random_trajectory(0, T, B), drawn_predictions()
    targets = np.random.default_rng(0).normal(size=(T, B))
    loss = rule.loss(targets, predictions, trajectory)
    for t, b in np.ndindex(T, B):
        log_pi = predictions["policy"][t, b] - np.log(np.sum(np.exp(predictions["policy"][t, b])))
        advantage = targets[t, b] - predictions["value"][t, b]
        expected = -advantage * log_pi[trajectory.action[t, b]] + 0.3 * 0.5 * advantage**2
        expected += 0.2 * np.exp(log_pi) @ log_pi
        np.testing.assert_allclose(loss[t, b], expected, rtol=1e-10)
    gradient = jax.grad(lambda p: jnp.sum(rule.loss(targets, p, trajectory)))(predictions)
    # The policy's term does not move the critic.
    np.testing.assert_allclose(gradient["value"][:-1], 0.3 * (predictions["value"][:-1] - targets), rtol=1e-10)


# Gradient flow: v of the very last observation is in G of the steps before, and nowhere else in the loss.

FLOW = {  # does the inner gradient reach it? does the derivative of the inner gradient?
    "frodo-literal": (frodo, FrodoConfig(next_value_gradient="literal"), True, True),
    "frodo-semi": (frodo, FrodoConfig(next_value_gradient="semi"), False, True),
    "frodo-stopped": (frodo, FrodoConfig(next_value_gradient="stopped"), False, False),
    "learned_loss": (learned_loss, LearnedLossConfig(), False, False),
    "learned_loss-differentiated": (learned_loss, LearnedLossConfig(is_next_value_differentiated=True), True, True),
}
# An agent whose parameters are its predictions.
IDENTITY = Agent(
    init=None,
    prepare=None,
    initial_state=None,
    step=None,
    unroll_for=lambda params, trajectory, actions: [params] * len(actions),
)


@pytest.mark.parametrize("mode", ["reverse", "mixed"])
@pytest.mark.parametrize("name", FLOW)
def test_gradient_flow_through_the_next_value(name, mode):
    make, config, is_in_inner, is_in_outer = FLOW[name]
    rule = make(dataclasses.replace(config, lstm=4, discount=GAMMA))
    trajectory, predictions = random_trajectory(0, T, B), drawn_predictions()
    meta_params = drawn_meta_params(rule)
    gradient = gradients.inner_gradient(IDENTITY, rule, mode)

    @jax.jit
    def compute(predictions, meta_params):
        inner = lambda p, eta: gradient(p, gradients.UpdateContext(eta, (), ()), trajectory)[0]
        # Any function of the inner gradient.
        weighted = lambda p, eta: sum(
            jnp.sum(jnp.sin(1 + jnp.arange(x.size)) * x.ravel()) for x in inner(p, eta).values()
        )
        return inner(predictions, meta_params), *jax.grad(weighted, argnums=(0, 1))(predictions, meta_params)

    inner, outer, meta = compute(predictions, meta_params)
    # Columns 0, 1 and 3 go on after the last step; column 2 terminates there.
    went_on = np.array([True, True, False, True])
    np.testing.assert_array_equal(np.asarray(inner["value"][-1]) != 0, went_on & is_in_inner)
    np.testing.assert_array_equal(np.asarray(outer["value"][-1]) != 0, went_on & is_in_outer)
    for tree in (inner, outer):
        assert np.all(np.any(tree["policy"][:-1], axis=-1) == trajectory.valid)
        assert not np.any(tree["policy"][-1])
        assert np.all((np.asarray(tree["value"][:-1]) != 0)[trajectory.valid])
    if make is learned_loss:  # adding a constant to a loss changes nothing
        np.testing.assert_array_equal(meta["target_network/target"].pop("b"), 0)
    assert all(np.any(x) for x in jax.tree.leaves(meta))


# Settings

NAN = float("nan")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (FrodoConfig(kind="actor_crtic"), r"^kind is 'actor_crtic', .* \(did you mean 'actor_critic'\?\)$"),
        (
            FrodoConfig(reduction="means"),
            r"^reduction is 'means', expected one of sum, mean \(did you mean 'mean'\?\)$",
        ),
        (
            FrodoConfig(next_value_gradient="stop"),
            r"^next_value_gradient is 'stop', expected one of literal, semi, stopped",
        ),
        (FrodoConfig(inputs=("reward", "next_valu")), r"^inputs is 'next_valu', .* \(did you mean 'next_value'\?\)$"),
        (FrodoConfig(inputs=()), r"^lstm is 256 and inputs \(\), expected units and inputs$"),
        (FrodoConfig(lstm=0), "^lstm is 0 and inputs .* expected units and inputs$"),
        (FrodoConfig(discount=1.1), "^discount is 1.1, expected a number from 0 to 1$"),
        (FrodoConfig(vtrace_lambda=-0.1), "^vtrace_lambda is -0.1, expected a number from 0 to 1$"),
        (FrodoConfig(kind="value_based", epsilon=NAN), "^epsilon is nan, expected a number from 0 to 1$"),
        (FrodoConfig(value_cost=-1.0), "^value_cost is -1.0, expected a number of at least 0$"),
        (FrodoConfig(entropy_cost=NAN), "^entropy_cost is nan, expected a number of at least 0$"),
        (FrodoConfig(consistency_cost=-0.1), "^consistency_cost is -0.1, expected a number of at least 0$"),
        (LearnedLossConfig(entropy_cost=-1.0), "^entropy_cost is -1.0, expected a number of at least 0$"),
        (LearnedLossConfig(lstm=0), "^lstm is 0 and inputs .* expected units and inputs$"),
        (LearnedLossConfig(reduction="average"), "^reduction is 'average', expected one of sum, mean$"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_a_bad_setting_is_named(config, message):
    type(config)().validate()
    with pytest.raises(ValueError, match=message):
        config.validate()


@pytest.mark.parametrize(
    ("kind", "settings", "default"),
    [
        ("value_based", {"entropy_cost": 0.2}, 0.01),
        ("value_based", {"value_cost": 0.0}, 0.5),
        ("prediction", {"vtrace_lambda": 0.5}, 1.0),
        ("prediction", {"epsilon": 0.2}, 0.1),
        ("actor_critic", {"epsilon": 0.0}, 0.1),
    ],
)
def test_a_setting_of_agents_of_another_kind_stays_as_it_is(kind, settings, default):
    FrodoConfig(kind=kind).validate()
    ((name, value),) = settings.items()
    with pytest.raises(
        ValueError, match=f"^{name} is {value}, expected the default, {default}: kind '{kind}' has none$"
    ):
        FrodoConfig(kind=kind, **settings).validate()


# The agent's last layer as an input


def test_the_torsos_output_is_an_input_where_it_is_asked_for():
    rule = frodo(FrodoConfig(lstm=4, torso=5))
    agent = lambda hidden: make_agent(NetworkConfig("mlp", hidden, activation="tanh"), rule.spec(3), 3)
    trajectory = random_trajectory(0, T, B)
    params = agent((6, 5)).init(jax.random.key(0), trajectory.observation[0])
    predictions = agent((6, 5)).unroll(params, trajectory)
    x = trajectory.observation.reshape(T + 1, B, -1)
    for name in ("linear", "linear_1"):
        x = np.tanh(x @ params["heads"][name]["w"] + params["heads"][name]["b"])
    np.testing.assert_allclose(predictions["torso"], x, rtol=1e-5)
    assert set(params["heads"]) == {"linear", "linear_1", "linear_2", "linear_3"}  # the last two are heads

    meta_params = rule.random_meta_params(jax.random.key(1), 3)
    targets = lambda torso: rule.apply(meta_params, (), trajectory, {**predictions, "torso": torso}, {})[0]
    derivative = jax.grad(lambda torso: jnp.sum(targets(torso)))(jnp.asarray(predictions["torso"]))
    np.testing.assert_array_equal(np.any(derivative[:-1], axis=-1), trajectory.valid)
    assert not np.any(derivative[-1])
    # With weights of 0 for it, the targets are those of a rule without it.
    lstm = meta_params["target_network/lstm"]
    with_weights = lambda w: {**meta_params, "target_network/lstm": lstm | {"w": w}}
    zeroed = with_weights(lstm["w"].at[5:10].set(0))
    without = with_weights(jnp.delete(lstm["w"], jnp.s_[5:10], axis=0))
    plain = {name: x for name, x in predictions.items() if name != "torso"}
    np.testing.assert_allclose(
        rule.apply(zeroed, (), trajectory, predictions, {})[0],
        frodo(FrodoConfig(lstm=4)).apply(without, (), trajectory, plain, {})[0],
        rtol=1e-5,
    )
    with pytest.raises(ValueError, match="^rule.torso is 5, expected 7, as the agent's last layer$"):
        agent((7,)).init(jax.random.key(0), trajectory.observation[0])


@pytest.mark.parametrize("name", ["vtrace", "lambda_return", "n_step_return"])
def test_what_corrects_a_hand_made_target_begins_as_it(name):
    inputs = ("td_error", "discount", "pi", "mu")
    config = FrodoConfig(lstm=4, discount=GAMMA, vtrace_lambda=0.8, inputs=inputs, is_relative=True, base=name)
    rule, trajectory = frodo(config), random_trajectory(3, 6, 4)
    keys = jax.random.split(jax.random.key(0))
    predictions = {"policy": jax.random.normal(keys[0], (7, 4, 3)), "value": jax.random.normal(keys[1], (7, 4))}
    meta_params = rule.random_meta_params(jax.random.key(1), 3)
    made = rule.apply(meta_params, (), trajectory, predictions, predictions)[0]
    rho = jnp.ones((6, 4)) if name != "vtrace" else importance_ratios(predictions["policy"], trajectory)
    lambda_ = 1.0 if name == "n_step_return" else 0.8
    np.testing.assert_array_equal(made, vtrace(trajectory, predictions["value"], rho, GAMMA, lambda_)[0])
    gradient = jax.grad(lambda eta: rule.apply(eta, (), trajectory, predictions, predictions)[0].sum())(meta_params)
    assert any(np.any(x) for x in jax.tree.leaves(gradient))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"base": "vtrac", "is_relative": True}, r"^base is 'vtrac', .* \(did you mean 'vtrace'\?\)$"),
        ({"base": "vtrace"}, "^base is 'vtrace' and is_relative False, expected base 'value', or is_relative True$"),
        (
            {"base": "vtrace", "is_relative": True, "kind": "value_based"},
            "^base is 'vtrace', expected another one: kind 'value_based' has no policy that learns$",
        ),
    ],
)
def test_a_base_that_cannot_be_is_named(settings, message):
    with pytest.raises(ValueError, match=message):
        FrodoConfig(**settings).validate()
