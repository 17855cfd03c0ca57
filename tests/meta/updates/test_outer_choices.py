"""Outer objectives by choice: the meta-gradient of each beside central differences of the updates, in float64."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from agents.networks.agent import NetworkConfig, make_agent
from agents.rule import OUTER_VALUE, masked_reduce
from meta.targets.disco import DiscoConfig, disco
from meta.targets.scalar import FrodoConfig, frodo
from meta.targets.self_tuned import TUNED, SelfTunedConfig, self_tuned
from meta.updates.lifetime import Setup, init_agent_state, make_agent_step
from meta.updates.outer import OuterConfig, make_outer, with_outer_head
from tests.reference import agents as reference
from tests.trajectories import random_trajectory
from toy_envs.discounting_chain import DiscountingChain

A, M = 3, 3
NETWORK = NetworkConfig("mlp", (5,), activation="tanh")
OUTER = OuterConfig(discount=0.95, lambda_=0.8, entropy_cost=0.15, value_cost=0.4)
HEADS = SelfTunedConfig(
    tuned=TUNED, discount=0.8, lambda_=0.7, value_cost=0.4, policy_cost=0.7, entropy_cost=0.2, alpha=0.5, heads=1
)
OF_NETWORK = dataclasses.replace(HEADS, heads=0, eta_inputs=("mean_rewards",), history=4, eta_hidden=4)
RULES = {
    "numbers": self_tuned(HEADS),
    "network": self_tuned(OF_NETWORK),
    "a2c": self_tuned(dataclasses.replace(OF_NETWORK, tuned=("entropy_cost", "discount"), is_corrected=False)),
    "frodo": frodo(FrodoConfig(lstm=4, discount=0.9, entropy_cost=0.1)),
    "disco": disco(
        DiscoConfig(prediction_size=4, max_value=2, lstm=4, lifetime_lstm=4, action_embedding=(4, 4))
    )._replace(regulariser=None),
    "known": self_tuned(
        SelfTunedConfig(tuned=("discount",), discount=0.8, lambda_=0.7, known_values="toy/discounting_chain/3")
    ),
}
NUM_ACTIONS = {"known": 5}  # of other rules A
OBJECTIVES = {
    "actor_critic": OUTER,
    "kl": dataclasses.replace(OUTER, kl_cost=0.7),
    "head": dataclasses.replace(OUTER, critic="head"),
    "network": dataclasses.replace(OUTER, critic="network", value_hidden=(4,)),
    "bootstrapped_1": dataclasses.replace(OUTER, is_bootstrapped=True),
    "bootstrapped_2": dataclasses.replace(OUTER, is_bootstrapped=True, target_updates=2),
    "bootstrapped_head": dataclasses.replace(OUTER, is_bootstrapped=True, target_updates=2, critic="head"),
}
CASES = [*(("numbers", name) for name in OBJECTIVES), ("network", "actor_critic"), ("a2c", "bootstrapped_2")]
# Rules with constants in their updates, for which differences of the updates say another thing.
OTHERS = [
    ("frodo", "kl"),
    ("frodo", "head"),
    ("frodo", "network"),
    ("frodo", "bootstrapped_head"),
    ("disco", "bootstrapped_2"),
    ("known", "head"),
    ("known", "actor_critic"),
]

pytestmark = pytest.mark.usefixtures("float64")


def check_close(actual, expected):
    for x, y in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-8, atol=1e-10 * np.abs(y).max() + 1e-14)


@functools.cache
def problem(rule_name, objective):
    rule, config, num_actions = RULES[rule_name], OBJECTIVES[objective], NUM_ACTIONS.get(rule_name, A)
    if config.critic == "head" and rule_name != "known":
        rule = with_outer_head(rule, config)
    network = dataclasses.replace(NETWORK, action_model=4) if rule_name == "disco" else NETWORK
    agent = make_agent(network, rule.spec(num_actions), num_actions)
    setup = Setup(agent, rule, optax.sgd(0.3), make_outer(config, rule, NETWORK, num_actions))
    how = dict(num_actions=num_actions, observation=(2,) if rule_name == "known" else (2, 2))
    trajectories, validation = random_trajectory(1, M, 5, 3, **how), random_trajectory(2, 5, 3, **how)
    state = init_agent_state(setup, jax.random.key(0), jnp.asarray(validation.observation[0]))
    meta_params = rule.random_meta_params(jax.random.key(1), num_actions)
    return setup, config, meta_params, state, trajectories, validation


@functools.cache
def after(rule_name, objective, num):
    """The function of η that takes `num` updates of θ, without an outer objective."""
    setup, _, _, state, trajectories, _ = problem(rule_name, objective)
    first, step = jax.tree.map(lambda x: x[:num], trajectories), make_agent_step(setup, "reverse")
    return jax.jit(lambda meta_params: step(meta_params, state, first, None)[0])


def direct(rule_name, objective, params, outer_state):
    """∇θ of the actor-critic loss, KL included, at given parameters."""
    setup, config, _, state, _, validation = problem(rule_name, objective)

    def loss(params):
        predictions = setup.agent.unroll(params, validation)
        if rule_name == "known":  # by the rule's γ, which is .8, or with an outer critic by the outer one
            discount = config.discount if config.critic == "head" else 0.8
            probabilities = jax.lax.stop_gradient(jax.nn.softmax(predictions["policy"]))
            values = DiscountingChain(3).true_values(validation.observation, probabilities, discount)
            predictions |= {"value": values, OUTER_VALUE: values}
        losses, _ = setup.outer.loss(outer_state, predictions, validation)
        if config.kl_cost:
            log_p = jax.nn.log_softmax(setup.agent.unroll(state.params, validation)["policy"][:-1])
            log_q = jax.nn.log_softmax(predictions["policy"][:-1])
            losses += config.kl_cost * jnp.sum(jnp.exp(log_q) * (log_q - log_p), axis=-1)
        return masked_reduce(losses, validation.valid, setup.rule.reduction)

    return jax.grad(loss)(params)


def of_objective(rule_name, objective):
    """The outer objective and ∇θ of it at the θ that the meta-gradient goes through, and the number of its updates."""
    setup, config, meta_params, _, _, validation = problem(rule_name, objective)
    if not config.is_bootstrapped:
        state = after(rule_name, objective, M)(meta_params)
        return None, direct(rule_name, objective, state.params, state.outer_state), M
    last = after(rule_name, objective, M)(meta_params)
    grads = direct(rule_name, objective, last.params, last.outer_state)
    target = jax.tree.map(lambda x, g: x - 0.3 * g, last.params, grads)
    log_p = jax.nn.log_softmax(setup.agent.unroll(target, validation)["policy"][:-1])

    def divergence(params):
        log_q = jax.nn.log_softmax(setup.agent.unroll(params, validation)["policy"][:-1])
        kl = jnp.sum(jnp.exp(log_p) * (log_p - log_q), axis=-1)
        return masked_reduce(kl, validation.valid, setup.rule.reduction)

    num = M - config.target_updates + 1
    return *jax.value_and_grad(divergence)(after(rule_name, objective, num)(meta_params).params), num


def meta_gradient(rule_name, objective, mode="mixed"):
    """The meta-gradient and the outer loss; learning goes on after all M updates by η."""
    setup, _, meta_params, *arguments = problem(rule_name, objective)
    state, gradient, metrics = jax.jit(make_agent_step(setup, mode))(meta_params, *arguments)
    check_close(state.params, after(rule_name, objective, M)(meta_params).params)
    return meta_params, gradient, metrics["outer_loss"]


def relative_error(rule_name, objective, mode="mixed"):
    meta_params, gradient, found = meta_gradient(rule_name, objective, mode)
    loss, of_params, num = of_objective(rule_name, objective)
    if loss is not None:
        np.testing.assert_allclose(found, loss, rtol=1e-8)
    taken, h, errors = after(rule_name, objective, num), 1e-4, []
    difference = lambda a, b, c, d: (8 * (a - b) - (c - d)) / (12 * h)  # the error is of fourth order
    for seed in range(3):
        direction = optax.tree.random_like(jax.random.key(seed), meta_params)
        moved = [optax.tree.add_scale(meta_params, size, direction) for size in (h, -h, 2 * h, -2 * h)]
        slope = jax.tree.map(difference, *(taken(one).params for one in moved))
        errors.append(optax.tree.vdot(gradient, direction) - optax.tree.vdot(of_params, slope))
    return float(max(map(abs, errors)) / optax.tree.norm(gradient))


@pytest.mark.parametrize("rule_name, objective", CASES)
def test_agrees_with_central_differences(rule_name, objective):
    assert relative_error(rule_name, objective) < 1e-6


@pytest.mark.parametrize("rule_name, objective", OTHERS)
def test_other_rules_have_the_same_objectives(rule_name, objective):
    meta_params, gradient, _ = meta_gradient(rule_name, objective)
    _, of_params, num = of_objective(rule_name, objective)
    _, pull = jax.vjp(lambda meta_params: after(rule_name, objective, num)(meta_params).params, meta_params)
    check_close(gradient, pull(of_params)[0])


def test_bootstrapped_with_one_update_is_what_it_comes_to_by_hand():
    """A policy of two logits, the biases of a network that sees zeros; η weighs the entropy, the only inner loss."""
    rate, advantage, logits, weight = 0.5, 2.0, np.array([0.4, -0.3]), 0.6
    settings = dict(policy_cost=0.0, value_cost=0.0, entropy_cost=weight, reduction="mean")
    rule = self_tuned(SelfTunedConfig(tuned=("entropy_cost",), cost_range=(0.0, 1.0), **settings))
    config = OuterConfig(is_bootstrapped=True, value_cost=0.0, entropy_cost=0.0)
    agent = make_agent(NetworkConfig("mlp", ()), rule.spec(2), 2)
    setup = Setup(agent, rule, optax.sgd(rate), make_outer(config, rule, NetworkConfig("mlp", ()), 2))
    one = random_trajectory(0, 5, 3, num_actions=2, observation=(1,))
    one = jax.tree.map(lambda x: x[:1, :1], one)._replace(
        observation=np.zeros((2, 1, 1)),
        is_first=np.array([[True], [True]]),
        action=np.array([[1]], np.int32),
        reward=np.array([[advantage]]),  # values are 0
        discount=np.zeros((1, 1)),
        truncated=np.zeros((1, 1), bool),
        valid=np.ones((1, 1), bool),
        behaviour_logits=np.log([[[0.9, 0.1]]]),  # ratios are clipped to 1
    )
    state = init_agent_state(setup, jax.random.key(0), jnp.zeros((1, 1)))
    biases = lambda x: jnp.asarray(logits) if x.shape == (2,) else x
    state = state._replace(params=jax.tree.map(biases, state.params))
    meta_params = rule.random_meta_params(jax.random.key(0), 2)
    first = jax.tree.map(lambda x: x[None], one)
    _, gradient, metrics = make_agent_step(setup, "mixed")(meta_params, state, first, one)

    softmax = lambda z: np.exp(z) / np.exp(z).sum()
    p = softmax(logits)
    of_entropy = -p * (np.log(p) - p @ np.log(p))  # ∇ of the entropy to the logits
    after_one = softmax(updated := logits + rate * weight * of_entropy)
    target = softmax(updated + rate * advantage * (np.array([0.0, 1.0]) - after_one))
    np.testing.assert_allclose(metrics["outer_loss"], target @ (np.log(target) - np.log(after_one)), rtol=1e-6)
    of_sigmoid = weight * (1 - weight)
    expected = (after_one - target) @ (rate * of_entropy) * of_sigmoid
    np.testing.assert_allclose(gradient["entropy_cost"], [expected], rtol=1e-6)


def test_memory_does_not_hold_the_activations_of_all_updates():
    def size(mode, num):
        setup, _, meta_params, state, trajectories, validation = problem("numbers", "bootstrapped_head")
        large = lambda x: jnp.zeros((num, *np.shape(x)[1:2], 200, *np.shape(x)[3:]), x.dtype)
        more = lambda x: jnp.zeros((*np.shape(x)[:1], 200, *np.shape(x)[2:]), x.dtype)
        own = jax.tree.map(large, trajectories), jax.tree.map(more, validation)
        compiled = jax.jit(make_agent_step(setup, mode)).lower(meta_params, state, *own).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    sizes = {mode: size(mode, 16) for mode in ("reverse", "mixed")}
    assert sizes["mixed"] < 0.2 * sizes["reverse"], sizes


@pytest.mark.parametrize("mode", ["reverse", "remat"])
def test_modes_agree(mode):
    check_close(
        meta_gradient("numbers", "bootstrapped_head", mode)[1], meta_gradient("numbers", "bootstrapped_head")[1]
    )


def test_a_gradient_into_the_target_is_caught(monkeypatch):
    stop_gradient = jax.lax.stop_gradient
    monkeypatch.setattr(jax.lax, "stop_gradient", lambda x: x if isinstance(x, tuple) else stop_gradient(x))
    assert relative_error("numbers", "bootstrapped_2", "reverse") > 1e-3


def test_an_outer_head_learns_v_trace_by_the_outer_discount():
    setup, config, meta_params, _, trajectories, _ = problem("numbers", "head")
    one, rng = jax.tree.map(lambda x: x[0], trajectories), np.random.default_rng(0)
    predictions = {name: rng.normal(size=(6, 3, *x.axes(A))) for name, x in setup.rule.spec(A).items()}
    without = RULES["numbers"]
    targets, _ = setup.rule.apply(meta_params, (), one, predictions, predictions)
    own, _ = without.apply(meta_params, (), one, predictions, predictions)
    added = setup.rule.loss(targets, predictions, one) - without.loss(own, predictions, one)
    rho = reference.importance_ratios(predictions["policy"], one)
    expected, _ = reference.vtrace(one, predictions[OUTER_VALUE], rho, config.discount, config.lambda_)
    error = 0.5 * (expected - predictions[OUTER_VALUE][:-1]) ** 2
    np.testing.assert_allclose(added[one.valid], error[one.valid], rtol=1e-8)
    # The outer objective's advantages are those of the head.
    losses, _ = setup.outer.loss((), predictions, one)
    of_head = {**predictions, "value": predictions[OUTER_VALUE]}
    target, advantage = reference.vtrace(one, of_head["value"], rho, config.discount, config.lambda_)
    costs = 0.0, config.entropy_cost  # the head learns by itself
    expected = reference.actor_critic_loss(target, advantage, predictions, one.action, *costs)
    np.testing.assert_allclose(losses[one.valid], expected[one.valid], rtol=1e-8)


@pytest.mark.parametrize("is_critic_separate", [False, True])
def test_an_outer_head_leaves_policy_and_values_as_they_are_without_it(is_critic_separate):
    network = dataclasses.replace(NETWORK, is_critic_separate=is_critic_separate)
    trajectories, config = random_trajectory(1, M, 5, 3, num_actions=A), OBJECTIVES["head"]
    found, states = {}, {}
    for name, rule in {"agent": RULES["numbers"], "head": with_outer_head(RULES["numbers"], config)}.items():
        setup = Setup(make_agent(network, rule.spec(A), A), rule, optax.sgd(0.3), make_outer(config, rule, network, A))
        state = init_agent_state(setup, jax.random.key(0), jnp.asarray(trajectories.observation[0, 0]))
        meta_params = rule.random_meta_params(jax.random.key(1), A)
        states[name], _, _ = jax.jit(make_agent_step(setup))(meta_params, state, trajectories, None)
        one = jax.tree.map(lambda x: x[0], trajectories)
        found[name] = setup.agent.unroll(states[name].params, one)
    outer = found["head"].pop(OUTER_VALUE)
    check_close(found["head"], found["agent"])
    assert np.abs(outer - found["head"]["value"]).max() > 0.01
    if is_critic_separate:  # it reads what the critic reads
        layers = {name: len(own["heads"]) for name, own in states["head"].params.items()}
        assert layers == {"actor": 4, "critic": 3}  # one hidden layer each; heads of two policies and a value
