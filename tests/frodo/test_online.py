"""One lifetime in one program: going on is never having stopped, seeds do not mix, bad meta-gradients are skipped."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.networks import NetworkConfig
from frodo import presets
from frodo.online import OnlineConfig, make_fused, make_learner
from frodo.rule import RuleConfig
from meta.optimizers import OptimizerConfig
from tests.reference.frodo import FAST_COMPILATION
from tests.trajectories import random_trajectory
from toy_envs.catch import Catch
from toy_envs.random_walk import RandomWalk

jit = functools.partial(jax.jit, compiler_options=FAST_COMPILATION)
TINY = dataclasses.replace(
    presets.catch(),
    batch_size=2,
    num_updates=2,
    validation_unroll=4,
    rule=RuleConfig(lstm=4),
    network=NetworkConfig("mlp", (6,)),
    optimizer=OptimizerConfig(1e-2, epsilon=1e-4),
)
TINY_WALK = dataclasses.replace(
    presets.random_walk(), num_updates=2, rule=dataclasses.replace(presets.random_walk().rule, lstm=4)
)


def leaves(tree):
    return [
        np.asarray(jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x)
        for x in jax.tree.leaves(tree)
    ]


def check_equal(actual, expected):
    for x, y in zip(leaves(actual), leaves(expected), strict=True):
        np.testing.assert_array_equal(x, y)


def check_close(actual, expected):
    for x, y in zip(leaves(actual), leaves(expected), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)


def differs(xs, ys):
    return any(np.any(x != y) for x, y in zip(leaves(xs), leaves(ys), strict=True))


@pytest.mark.parametrize(
    ("config", "environment"), [(TINY, Catch(4, 3)), (TINY_WALK, RandomWalk())], ids=["catch", "random_walk"]
)
def test_going_on_is_never_having_stopped_and_seeds_do_not_mix(config, environment):
    fused = make_fused(config, environment)
    run = jit(fused.run, static_argnums=1)
    keys = jax.random.split(jax.random.key(0), 2)
    init = jit(fused.init)
    start = init(keys[0])
    half, first = run(start, 20)
    two_halves, second = run(half, 20)
    whole, metrics = run(start, 40)
    check_equal(two_halves, whole)
    check_equal(jax.tree.map(lambda x, y: np.concatenate([x, y]), first, second), metrics)
    assert differs(half.learner.meta_params, start.learner.meta_params)
    assert differs(half.learner.agent.params, start.learner.agent.params)
    assert np.sum(metrics["episodes"]) > 0 and np.all(metrics["skipped"] == 0)

    states, all_metrics = jit(jax.vmap(lambda key: fused.run(fused.init(key), 20)))(keys)
    check_close(jax.tree.map(lambda x: x[0], (states, all_metrics)), (half, first))
    check_close(jax.tree.map(lambda x: x[1], (states, all_metrics)), run(init(keys[1]), 20))
    assert differs(*(jax.tree.map(lambda x, i=i: x[i], states.learner) for i in range(2)))


@pytest.mark.parametrize("rule", ["frodo", "impala"])
def test_steps_per_iteration_are_the_steps_that_were_taken(rule):
    config = dataclasses.replace(TINY, rule=dataclasses.replace(TINY.rule, name=rule))
    fused = make_fused(config, Catch(4, 3))
    state, metrics = jit(fused.run, static_argnums=1)(jit(fused.init)(jax.random.key(0)), 3)
    # Three moves an episode: two batches of two trajectories of three steps, and of four for validation.
    assert fused.steps_per_iteration == (2 * (2 * 3 + 4) if rule == "frodo" else 2 * 2 * 3)
    num_steps = 3 * fused.steps_per_iteration
    assert np.sum(metrics["episodes"]) == 2 * (num_steps // 2 // 3)
    np.testing.assert_array_equal(state.actor.env_state.row, (num_steps // 2) % 3)


# The learner alone

OBSERVATION = (4, 3)


def experience(seed, num_updates=2):
    cast = lambda x: jnp.asarray(x, jnp.float32 if x.dtype == np.float64 else x.dtype)
    shape = dict(num_actions=3, observation=OBSERVATION)
    trajectories, validation = (
        random_trajectory(seed, num_updates, 5, 3, **shape),
        random_trajectory(seed + 1, 5, 3, **shape),
    )
    return jax.tree.map(cast, trajectories), jax.tree.map(cast, validation)


@functools.cache
def learner(max_abs_reward):
    made = make_learner(dataclasses.replace(TINY, max_abs_reward=max_abs_reward), 3)
    state = jit(made.init)(jax.random.key(0), jnp.zeros((3, *OBSERVATION)))
    return state, jit(made.learn)


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e30])
def test_a_meta_gradient_that_is_not_finite_leaves_eta_as_it_was_and_is_counted(bad):
    start, learn = learner(float("inf"))
    trajectories, validation = experience(0)
    broken = validation._replace(reward=validation.reward.at[4, 1].set(bad))
    good, metrics = learn(start, trajectories, validation)
    assert (metrics["skipped"], metrics["skipped_in_a_row"]) == (0, 0)
    assert np.isfinite(metrics["meta_gradient_norm"])
    assert differs(good.meta_params, start.meta_params)
    state = good
    for i in (1, 2):
        before = state
        state, metrics = learn(state, trajectories, broken)
        assert not np.isfinite(metrics["meta_gradient_norm"])
        assert (metrics["skipped"], metrics["skipped_in_a_row"]) == (i, i)
        check_equal(state.meta_params, good.meta_params)
        check_equal(state.meta_opt_state.inner_state, good.meta_opt_state.inner_state)
        # The agent learns on: its own updates were finite.
        assert differs(state.agent.params, before.agent.params)
        assert all(np.all(np.isfinite(x)) for x in leaves(state.agent))
    after, metrics = learn(state, trajectories, validation)
    assert (metrics["skipped"], metrics["skipped_in_a_row"]) == (2, 0)
    assert differs(after.meta_params, good.meta_params)
    assert all(np.all(np.isfinite(x)) for x in leaves(after))


def test_rewards_are_clipped_for_learning_in_updates_and_in_validation():
    trajectories, validation = experience(0)
    clip = lambda x: x._replace(reward=jnp.asarray(np.clip(np.asarray(x.reward), -0.5, 0.5)))
    assert np.abs(trajectories.reward).max() > 0.5 and np.abs(validation.reward).max() > 0.5
    start, learn_clipped = learner(0.5)
    _, learn = learner(float("inf"))
    actual = learn_clipped(start, trajectories, validation)
    check_close(actual, learn(start, clip(trajectories), clip(validation)))
    for other in ((clip(trajectories), validation), (trajectories, clip(validation))):
        assert differs(learn(start, *other)[1]["outer_loss"], actual[1]["outer_loss"])


def test_returns_are_of_rewards_that_are_not_clipped():
    rule = dataclasses.replace(TINY.rule, name="impala")
    fused = make_fused(dataclasses.replace(TINY, rule=rule, max_abs_reward=0.25), Catch(4, 3))
    _, metrics = jit(fused.run, static_argnums=1)(jit(fused.init)(jax.random.key(0)), 10)
    misses = (metrics["episodes"] - metrics["return_sum"]) / 2
    np.testing.assert_array_equal(misses, np.round(misses))
    assert np.all(metrics["episodes"] == 4) and 0 < np.sum(misses) < 40


# Configuration


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch_size": 0}, "^batch_size is 0, expected an integer of at least 1"),
        ({"unroll": 0}, "^unroll is 0, expected an integer of at least 1"),
        ({"validation_unroll": -3}, "^validation_unroll is -3, expected an integer of at least 1"),
        ({"stride": 9}, r"^stride is 9, expected at most num_updates \(\d+\), or 0 for as many"),
        ({"num_updates": 0}, "^num_updates is 0, expected an integer of at least 1"),
        ({"max_abs_reward": 0.0}, "^max_abs_reward is 0.0, expected a positive number"),
        ({"max_abs_reward": float("nan")}, "^max_abs_reward is nan, expected a positive number"),
        ({"gradient_mode": "fast"}, "^gradient_mode is 'fast', expected one of reverse, remat, mixed"),
        ({"rule": RuleConfig(discount=2.0)}, "^rule.discount is 2.0"),
        ({"network": NetworkConfig("cnov")}, "^network.torso is 'cnov'"),
        (
            {"optimizer": OptimizerConfig(learning_rate=0.0)},
            "^optimizer.learning_rate is 0.0, expected a positive number",
        ),
        ({"optimizer": OptimizerConfig(decay=1.0)}, "^optimizer.decay is 1.0, expected a number from 0 to below 1"),
        (
            {"meta_optimizer": OptimizerConfig(epsilon=-1.0)},
            "^meta_optimizer.epsilon is -1.0, expected a positive number",
        ),
        (
            {"meta_optimizer": OptimizerConfig(max_gradient_norm=float("nan"))},
            "^meta_optimizer.max_gradient_norm is nan, expected a positive number",
        ),
    ],
    ids=lambda x: next(iter(x)) if isinstance(x, dict) else "",
)
def test_a_bad_configuration_is_named(settings, message):
    OnlineConfig().validate()
    with pytest.raises(ValueError, match=message):
        make_learner(OnlineConfig(**settings), 3)
