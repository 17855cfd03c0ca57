"""One step of a lifetime: plain optimiser updates, the modes against each other, what is carried between updates."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from agents.acting.in_jax import Schedule
from agents.acting.replay import ReplayConfig
from agents.networks.agent import NetworkConfig, make_agent
from agents.rule import UpdateRule, masked_reduce
from agents.rules.impala import ImpalaConfig, impala
from agents.rules.td import TDLambdaConfig, td_lambda
from agents.types import PredictionSpec
from meta.targets.scalar import FrodoConfig, frodo
from meta.updates import gradients
from meta.updates.lifetime import LifetimeConfig, Setup, init_agent_state, make_agent_step
from meta.updates.outer import OuterConfig, make_outer
from tests.trajectories import random_trajectory

M, A = 2, 3
CONFIG = FrodoConfig(lstm=4, discount=0.9, entropy_cost=0.1)
TD = TDLambdaConfig(0.9, 0.5)
OUTER = make_outer(OuterConfig(discount=0.9, entropy_cost=0.1), frodo(CONFIG), NetworkConfig(), A)
OUTER_LOSS = lambda predictions, trajectory: OUTER.loss((), predictions, trajectory)[0]


def drawn(seed, init, *arguments, dtype=np.float64):
    """Weights in the shapes of those that `init` makes, none at its initial value."""
    rng = np.random.default_rng(seed)
    scaled = lambda x: (rng.normal(size=x.shape) / np.sqrt(max(x.shape[0] if x.ndim > 1 else 4, 1))).astype(dtype)
    return jax.tree.map(scaled, jax.eval_shape(init, jax.random.key(0), *arguments))


def problem(rule, optimizer, network, observation=(2, 2), dtype=np.float64):
    """What an agent is made of, η, its state, the trajectories of one step and a validation trajectory."""
    agent = make_agent(network, rule.spec(A), A)
    cast = lambda x: x.astype(dtype) if x.dtype == np.float64 else x
    trajectories = jax.tree.map(cast, random_trajectory(1, M, 5, 3, num_actions=A, observation=observation))
    validation = jax.tree.map(cast, random_trajectory(2, 5, 3, num_actions=A, observation=observation))
    params = jax.tree.map(jnp.asarray, drawn(0, agent.init, validation.observation[0], dtype=dtype))
    setup = Setup(agent._replace(init=lambda key, observation: params), rule, optimizer, OUTER)
    state = init_agent_state(setup, jax.random.key(0), validation.observation[0])
    meta_params = jax.tree.map(jnp.asarray, drawn(1, lambda key: rule.random_meta_params(key, A), dtype=dtype))
    return setup, meta_params, state, trajectories, validation


MLP = NetworkConfig("mlp", (5,), activation="tanh")


def at(trajectories, m):
    return jax.tree.map(lambda x: x[m], trajectories)


def check_close(actual, expected, rtol, err_msg=""):
    """Compare trees, in relation to the largest entry of each array."""
    for x, y in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=rtol * np.abs(y).max() + 1e-30, err_msg=err_msg)


# Hand-made rules


HAND_MADE = {"impala": impala(ImpalaConfig(0.9, 0.5, 0.01, lambda_=0.8)), "td_lambda": td_lambda(TD)}


def test_network_and_outer_objective_begin_with_keys_of_their_own():
    used = []
    setup = problem(frodo(CONFIG), optax.sgd(0.1), MLP)[0]
    record = lambda key: used.extend(np.asarray(jax.random.key_data(key)).reshape(-1, 2).tolist())
    agent = setup.agent._replace(init=lambda key, observation: record(jax.random.split(key)))  # as networks do
    outer = setup.outer._replace(init=lambda key, observation: record(key))
    init_agent_state(setup._replace(agent=agent, outer=outer), jax.random.key(3), jnp.zeros((2, 4)))
    assert len(used) == 3 and len({tuple(key) for key in used}) == 3


@pytest.mark.parametrize("rule", HAND_MADE.values(), ids=HAND_MADE)
def test_a_hand_made_rule_takes_plain_optimizer_steps(rule):
    with jax.enable_x64(True):
        optimizer = optax.adam(0.05)
        setup, _, state, trajectories, _ = problem(rule, optimizer, MLP)
        step, agent = jax.jit(make_agent_step(setup)), setup.agent
        after, meta_gradient, metrics = step({}, state, trajectories, None)

        @jax.jit
        @jax.grad
        def gradient(params, trajectory):
            predictions = agent.unroll(params, trajectory)
            targets, _ = rule.apply({}, (), trajectory, predictions, predictions)
            return masked_reduce(rule.loss(targets, predictions, trajectory), trajectory.valid, rule.reduction)

        params, opt_state = state.params, state.opt_state
        for m in range(M):
            updates, opt_state = optimizer.update(gradient(params, at(trajectories, m)), opt_state, params)
            params = optax.apply_updates(params, updates)
        check_close((after.params, after.opt_state), (params, opt_state), 1e-10)
        assert after.opt_state[0].count == M
        assert (meta_gradient, metrics, after.rule_state, after.target_params) == ({}, {}, (), ())


def test_metrics_are_means_over_the_updates():
    metrics = lambda targets, predictions, trajectory: {"reward": jnp.sum(trajectory.reward)}
    rule, optimizer = td_lambda(TD)._replace(metrics=metrics), optax.sgd(0.1)
    setup, _, state, trajectories, _ = problem(rule, optimizer, MLP, dtype=np.float32)
    _, _, logged = jax.jit(make_agent_step(setup))({}, state, trajectories, None)
    np.testing.assert_allclose(logged["reward"], np.sum(trajectories.reward) / M, rtol=1e-5)


# Modes


def test_modes_agree_in_float32_and_with_the_outer_loss_after_the_updates():
    rule, optimizer = frodo(CONFIG), optax.rmsprop(1e-2, 0.9, 1e-2, eps_in_sqrt=True)
    network = NetworkConfig("conv", (64, 64))
    setup, *arguments = problem(rule, optimizer, network, observation=(2, 3, 16), dtype=np.float32)
    results = {}
    for mode in gradients.MODES:
        results[mode] = jax.jit(make_agent_step(setup, mode))(*arguments)
    for mode in ("remat", "mixed"):
        check_close(results[mode], results["reverse"], 1e-4, mode)
    after, meta_gradient, metrics = results["reverse"]
    assert optax.global_norm(meta_gradient) > 1e-3
    validation = arguments[-1]
    loss = np.asarray(OUTER_LOSS(jax.jit(setup.agent.unroll)(after.params, validation), validation))
    np.testing.assert_allclose(metrics["outer_loss"], np.sum(loss[validation.valid]), rtol=1e-5)
    assert metrics["regulariser"] == 0


def test_an_unknown_mode_is_named():
    setup, *arguments = problem(frodo(CONFIG), optax.sgd(0.1), MLP, dtype=np.float32)
    with pytest.raises(ValueError, match="gradient_mode is 'revers', expected one of reverse, remat, mixed"):
        make_agent_step(setup, "revers")(*arguments)


# Losses without meta-gradient


def split_rule() -> UpdateRule:
    """FRODO's rule, with the policy's part of the loss carrying meta-gradient and the value's part not."""
    base = frodo(CONFIG)

    def policy_loss(targets, predictions, trajectory):
        whole = base.loss(targets, predictions, trajectory)
        return whole - value_loss(targets, predictions, trajectory)

    def value_loss(targets, predictions, trajectory):
        return CONFIG.value_cost * 0.5 * jnp.square(targets - predictions["value"][:-1])

    return base._replace(loss=policy_loss, loss_without_meta=value_loss)


@pytest.fixture(scope="module")
def split_results():
    with jax.enable_x64(True):
        rule, optimizer = split_rule(), optax.sgd(0.1)
        setup, meta_params, state, trajectories, validation = problem(rule, optimizer, MLP)
        agent = setup.agent

        def gradient(loss, params, meta_params, trajectory):
            known = agent.unroll(params, trajectory)
            targets, _ = rule.apply(meta_params, (), trajectory, known, known)

            def reduced(params):
                predictions = agent.unroll(params, trajectory)
                return masked_reduce(loss(targets, predictions, trajectory), trajectory.valid, "sum")

            return jax.grad(reduced)(params)

        def constant_gradient(params, trajectory):
            return gradient(rule.loss_without_meta, params, meta_params, trajectory)

        def plain(meta_params, constants):
            """Plain gradient descent, to which constants are added: the gradients at the base η."""
            params = state.params
            for m in range(M):
                moved = gradient(rule.loss, params, meta_params, at(trajectories, m))
                fixed = constants[m] if m < len(constants) else constant_gradient(params, at(trajectories, m))
                constants = [*constants, fixed][:M]
                params = jax.tree.map(lambda p, g, h: p - 0.1 * (g + h), params, moved, fixed)
            loss = masked_reduce(OUTER_LOSS(agent.unroll(params, validation), validation), validation.valid, "sum")
            return loss, (params, constants)

        _, (params, constants) = jax.jit(plain)(meta_params, [])
        constant, _ = jax.jit(jax.grad(plain, has_aux=True))(meta_params, constants)
        actual = {}
        for mode in gradients.MODES:
            step = jax.jit(make_agent_step(setup, mode))
            actual[mode] = step(meta_params, state, trajectories, validation)
        return actual, params, constant


@pytest.mark.parametrize("mode", gradients.MODES)
def test_loss_without_meta_moves_the_parameters_and_carries_no_meta_gradient(split_results, mode):
    actual, params, constant = split_results
    after, meta_gradient, _ = actual[mode]
    check_close(after.params, params, 1e-10)
    check_close(meta_gradient, constant, 1e-8)
    assert optax.global_norm(constant) > 1e-3


# Target networks


def target_rule(target_decay, target_period=0) -> UpdateRule:
    """Move v(S) to 1 + v(S) of the target parameters, and log what that is."""

    def apply(meta_params, rule_state, trajectory, predictions, target_predictions):
        return 1 + target_predictions["value"][:-1], rule_state

    return td_lambda(TD)._replace(apply=apply, target_decay=target_decay, target_period=target_period)


@pytest.mark.parametrize("decay,period", [(None, 0), (0.75, 0), (0.0, 0), (None, 1), (None, 3)])
def test_target_parameters_are_a_moving_average_of_those_that_updates_started_from_or_a_hard_copy(decay, period):
    with jax.enable_x64(True):
        rule, optimizer = target_rule(decay, period), optax.sgd(0.3)
        setup, _, state, trajectories, _ = problem(rule, optimizer, MLP)
        agent = setup.agent
        has_copy = decay is not None or period > 0
        assert (state.target_params != ()) == has_copy
        step = jax.jit(make_agent_step(setup))
        after, _, _ = step({}, state, trajectories, None)
        after, _, _ = step({}, after, trajectories, None)

        @jax.jit
        @jax.grad
        def gradient(params, target_params, trajectory):
            targets = jax.lax.stop_gradient(1 + agent.unroll(target_params, trajectory)["value"][:-1])
            loss = jnp.square(targets - agent.unroll(params, trajectory)["value"][:-1])
            return jnp.sum(loss * trajectory.valid) / jnp.sum(trajectory.valid)

        params = average = state.params
        for update, m in enumerate([*range(M), *range(M)]):
            grads = gradient(params, average if has_copy else params, at(trajectories, m))
            # Used first, then moved towards the parameters that were in force.
            if decay is not None:
                average = jax.tree.map(lambda a, p: decay * a + (1 - decay) * p, average, params)
            params = jax.tree.map(lambda p, g: p - 0.3 * g, params, grads)
            if period and (update + 1) % period == 0:
                average = params
        check_close(after.params, params, 1e-10)
        if has_copy:
            check_close(after.target_params, average, 1e-10)
        if decay is not None or period > 1:
            assert optax.global_norm(jax.tree.map(jnp.subtract, average, params)) > 1e-2


# Rule state


def remembering_rule(is_counting=False) -> UpdateRule:
    """η changes what is remembered, what was remembered multiplies the targets, and η is nowhere else."""

    def apply(meta_params, rule_state, trajectory, predictions, target_predictions):
        targets = rule_state["scale"] * (trajectory.reward + 0.5 * predictions["value"][1:])
        mean = masked_reduce(trajectory.reward, trajectory.valid, "mean")
        scale = jnp.tanh(meta_params["keep"] * rule_state["scale"] + meta_params["add"] * mean)
        return targets, {"scale": scale} | ({"count": rule_state["count"] + 1} if is_counting else {})

    return UpdateRule(
        spec=lambda num_actions: {"policy": PredictionSpec((num_actions,)), "value": PredictionSpec()},
        random_meta_params=lambda key, num_actions: {"keep": jnp.array(0.4), "add": jnp.array(0.7)},
        init=lambda: {"scale": jnp.ones(())} | ({"count": jnp.zeros((), jnp.int32)} if is_counting else {}),
        apply=apply,
        loss=lambda targets, predictions, trajectory: jnp.square(targets - predictions["value"][:-1]),
        policy=lambda predictions: predictions["policy"],
    )


@pytest.mark.parametrize("mode", gradients.MODES)
def test_meta_gradient_flows_through_the_rule_state(mode):
    with jax.enable_x64(True):
        rule, optimizer = remembering_rule(), optax.sgd(0.05)
        setup, meta_params, state, trajectories, validation = problem(rule, optimizer, MLP)
        step, agent = jax.jit(make_agent_step(setup, mode)), setup.agent
        after, meta_gradient, _ = step(meta_params, state, trajectories, validation)
        scale = 1.0
        for m in range(M):
            trajectory = at(trajectories, m)
            mean = np.mean(trajectory.reward[trajectory.valid])
            scale = np.tanh(meta_params["keep"] * scale + meta_params["add"] * mean)
        np.testing.assert_allclose(after.rule_state["scale"], scale, rtol=1e-10)

        @jax.jit
        @jax.grad
        def plain(meta_params):
            params, rule_state = state.params, rule.init()
            for m in range(M):
                trajectory = at(trajectories, m)
                known = agent.unroll(params, trajectory)
                targets, rule_state = rule.apply(meta_params, rule_state, trajectory, known, known)

                def loss(params, targets=targets, trajectory=trajectory):
                    predictions = agent.unroll(params, trajectory)
                    return jnp.sum(rule.loss(targets, predictions, trajectory) * trajectory.valid)

                params = jax.tree.map(lambda p, g: p - 0.05 * g, params, jax.grad(loss)(params))
            return jnp.sum(OUTER_LOSS(agent.unroll(params, validation), validation) * validation.valid)

        check_close(meta_gradient, plain(meta_params), 1e-8)
        assert all(abs(x) > 1e-4 for x in jax.tree.leaves(meta_gradient))
        # What is remembered by the one update there is comes too late for it.
        _, meta_gradient, _ = step(meta_params, state, jax.tree.map(lambda x: x[:1], trajectories), validation)
        assert not any(np.any(x) for x in jax.tree.leaves(meta_gradient))


@pytest.mark.parametrize("mode", gradients.MODES)
def test_the_rule_state_may_hold_integers(mode):
    rule, optimizer = remembering_rule(is_counting=True), optax.sgd(0.05)
    setup, meta_params, state, trajectories, validation = problem(rule, optimizer, MLP, dtype=np.float32)
    step = jax.jit(make_agent_step(setup, mode))
    after, meta_gradient, _ = step(meta_params, state, trajectories, validation)
    assert after.rule_state["count"] == M
    assert all(abs(x) > 1e-4 for x in jax.tree.leaves(meta_gradient))


# Settings


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch_size": 0}, "^batch_size is 0, expected an integer of at least 1$"),
        ({"unroll": 0}, "^unroll is 0, expected an integer of at least 1$"),
        ({"validation_unroll": -3}, "^validation_unroll is -3, expected an integer of at least 1$"),
        ({"num_updates": 0}, "^num_updates is 0, expected an integer of at least 1$"),
        ({"stride": 9}, r"^stride is 9, expected at most num_updates \(5\), or 0 for as many$"),
        ({"stride": -1}, r"^stride is -1, expected at most num_updates \(5\), or 0 for as many$"),
        ({"max_abs_reward": 0.0}, "^max_abs_reward is 0.0, expected a positive number$"),
        ({"max_abs_reward": float("nan")}, "^max_abs_reward is nan, expected a positive number$"),
        ({"gradient_mode": "fast"}, "^gradient_mode is 'fast', expected one of reverse, remat, mixed$"),
        ({"replay": ReplayConfig(-1)}, "^replay.capacity is -1, expected an integer of at least 0$"),
        (
            {"replay": ReplayConfig(100, 10), "is_acting_interleaved": True},
            "^is_acting_interleaved is True and replay.capacity is 100, expected one of the two",
        ),
        (
            {"replay": ReplayConfig(100, 10), "is_validation_kept": True},
            "^is_validation_kept is True and replay.capacity is 100, expected one of the two$",
        ),
        (
            {"validation_unroll": 5, "is_validation_kept": True},
            "^validation_unroll is 5 and unroll 30, expected the same where is_validation_kept is True$",
        ),
    ],
    ids=lambda x: next(iter(x)) if isinstance(x, dict) else "",
)
def test_a_bad_setting_is_named(settings, message):
    LifetimeConfig().validate()
    with pytest.raises(ValueError, match=message):
        LifetimeConfig(**settings).validate()


@pytest.mark.parametrize(("stride", "num"), [(0, 5), (2, 2), (5, 5)])
def test_an_iteration_acts_as_many_trajectories_as_updates_are_new(stride, num):
    config = LifetimeConfig(batch_size=3, unroll=7, validation_unroll=4, num_updates=5, stride=stride)
    assert config.schedule(is_meta=True) == Schedule(num, 7, 4)
    assert config.schedule(is_meta=False) == Schedule(5, 7, 0)
    assert (config.num_env_steps(True), config.num_env_steps(False)) == (3 * (7 * num + 4), 3 * 7 * 5)
