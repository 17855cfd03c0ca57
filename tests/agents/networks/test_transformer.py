"""Transformer-XL against loops, stepping against unrolling, and what a step can and cannot see."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from agents.networks.agent import TORSO, NetworkConfig, make_agent
from agents.networks.transformer import Memory, Weights, attend, attend_once, write
from agents.types import PredictionSpec
from meta.targets.scalar import FrodoConfig, frodo
from meta.updates.lifetime import Setup, init_agent_state, make_agent_step
from meta.updates.outer import OuterConfig, make_outer
from tests.reference import transformer as reference
from tests.trajectories import random_trajectory
from tests.trees import differs

B, D, M = 3, 6, 3  # environments, size of the core, steps that it reaches back
CONFIG = NetworkConfig("mlp", (), core=D, activation="tanh", core_kind="transformer", core_heads=2, memory=M)
TRAJECTORY = random_trajectory(0, 5, B)

pytestmark = pytest.mark.usefixtures("float64")


@functools.cache
def core_alone(**settings):
    """An agent whose one prediction is what its core puts out, its parameters, and its functions, jitted."""
    agent = make_agent(dataclasses.replace(CONFIG, **settings), {TORSO: PredictionSpec((D,))}, 3)
    shapes = jax.eval_shape(agent.init, jax.random.key(0), np.zeros((B, 2, 2)))
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda x: rng.normal(size=x.shape) * (0.5 if x.ndim > 1 else 1.0), shapes)
    return agent, params, jax.jit(agent.step), jax.jit(agent.unroll)


def seen(num: int, seed: int = 0, chance: float = 0.2):
    """Observations [num, B, 2, 2], and is_first [num, B] at random."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(num, B, 2, 2)), rng.random((num, B)) < chance


def play(observation, is_first, num_steps: int, dtype=np.float64, **settings):
    """Outputs one step at a time, [num, B, D], and of trajectories of so many steps, with the states of the steps."""
    agent, params, step, unroll = core_alone(**settings)
    with jax.enable_x64(dtype == np.float64):
        params, observation = jax.tree.map(lambda x: jnp.asarray(x, dtype), (params, observation))
        is_first, states, outs = jnp.asarray(is_first), [agent.initial_state(B)], []
        for x, starts in zip(observation, is_first, strict=True):
            out, state = step(params, x, starts, states[-1])
            outs.append(out[TORSO])
            states.append(state)
        unrolled = []
        for i in range(0, len(observation) - 1, num_steps):
            part = slice(i, i + num_steps + 1)
            trajectory = TRAJECTORY._replace(
                observation=observation[part], is_first=is_first[part], core_state=states[i]
            )
            unrolled.append(unroll(params, trajectory)[TORSO][: None if part.stop == len(observation) else -1])
        assert outs[0].dtype == unrolled[0].dtype == dtype
        return np.array(outs), np.concatenate(unrolled)


def test_attention_is_four_terms_over_what_is_reached():
    rng, num_steps = np.random.default_rng(0), np.array([5, 2, 9])
    shapes = dict.fromkeys(Weights._fields, (D, 2, 3)) | {"key_bias": (2, 3), "distance_bias": (2, 3)}
    own = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    weights = Weights(**own)
    ring, inputs = jnp.asarray(rng.normal(size=(B, M + 1, D))), jnp.asarray(rng.normal(size=(B, 5, D)))
    is_first = np.zeros((B, 5), bool)
    is_first[0, 0] = is_first[1, 2] = True
    once = attend_once(weights, inputs[:, 0], write(ring, inputs[:, 0], num_steps), num_steps)
    actual = jax.jit(attend)(weights, inputs, is_first, ring, num_steps)
    for b, n in enumerate(num_steps):
        read = [ring[b, i % (M + 1)] for i in range(max(0, n - M), n)]
        expected = reference.attention(inputs[b, 0], [*read, inputs[b, 0]], own)
        np.testing.assert_allclose(once[b], expected, rtol=1e-11)
        for t in range(5):
            read = [*([] if is_first[b, t] else read), inputs[b, t]]
            expected = reference.attention(inputs[b, t], read[-M - 1 :], own)
            np.testing.assert_allclose(actual[b, t], expected, rtol=1e-11)


@pytest.mark.parametrize("num_steps", [2, 7])
def test_stepping_and_unrolling_are_the_loop_over_trajectories_with_the_state_handed_on(num_steps):
    observation, is_first = seen(2 * num_steps + 1, seed=num_steps)
    stepped, unrolled = play(observation, is_first, num_steps)
    params = jax.tree.map(np.asarray, core_alone()[1]["heads"])
    for b in range(B):
        expected = reference.core(observation[:, b].reshape(-1, 4), is_first[:, b], params, M)
        np.testing.assert_allclose(stepped[:, b], expected, rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(unrolled, stepped, rtol=0, atol=1e-12)
    stepped, unrolled = play(observation, is_first, num_steps, np.float32)
    np.testing.assert_allclose(unrolled, stepped, rtol=0, atol=1e-5)


def test_nothing_before_the_first_observation_of_an_episode_counts_and_what_is_after_does():
    observation, is_first = seen(9, chance=0.0)
    first = np.array([2, 4, 5])  # the trajectory of the second half begins with an episode, or within one
    is_first[first, np.arange(B)] = True
    outs = play(observation, is_first, 4)
    others = np.where(np.arange(9)[:, None] < first, 100.0, 0.0)[..., None, None] + observation
    is_after = np.arange(9)[:, None] >= first
    for out, other in zip(outs, play(others, is_first, 4), strict=True):
        np.testing.assert_array_equal(other[is_after], out[is_after])
        assert not np.any(np.all(other[~is_after] == out[~is_after], axis=-1))
    others = np.array(observation)
    others[first, np.arange(B)] += 1.0
    for out, other in zip(outs, play(others, is_first, 4), strict=True):
        np.testing.assert_array_equal(np.any(out != other, axis=-1), is_after)


@pytest.mark.parametrize("core_layers", [1, 2])
def test_each_layer_reaches_back_as_far_as_the_memory_and_no_farther(core_layers):
    observation, is_first = seen(13, chance=0.0)
    for num_steps in (4, 12):
        outs = play(observation, is_first, num_steps, core_layers=core_layers)
        for t in (0, 3):
            others = observation + (np.arange(13) == t)[:, None, None, None]
            expected = (np.arange(13) >= t) & (np.arange(13) <= t + core_layers * M)
            for out, other in zip(outs, play(others, is_first, num_steps, core_layers=core_layers), strict=True):
                np.testing.assert_array_equal(np.any(out != other, axis=(1, 2)), expected)
                np.testing.assert_array_equal(np.all(np.any(out != other, axis=2), axis=1), expected)


def test_no_gradient_flows_into_the_cache_and_one_does_within_a_trajectory():
    agent, params, step, _ = core_alone()
    trajectory = TRAJECTORY
    state = agent.initial_state(B)
    for observation in seen(4)[0]:
        _, state = step(params, observation, np.zeros(B, bool), state)

    def outs(observation, inputs):
        now = state._replace(inputs=inputs)
        unrolled = agent.unroll(params, trajectory._replace(observation=observation, core_state=now))[TORSO]
        return unrolled, agent.step(params, observation[0], trajectory.is_first[0], now)[0][TORSO]

    observation = jnp.asarray(trajectory.observation)
    others = jax.tree.map(lambda x: x + 1.0, state.inputs)
    assert differs(outs(observation, state.inputs), outs(observation, others))
    slopes = jax.jit(jax.jacrev(outs, argnums=(0, 1)))(observation, state.inputs)
    for of_observation, of_inputs in slopes:
        assert not any(np.any(x) for x in of_inputs) and np.any(of_observation)
    moves = np.any(slopes[0][0], axis=(2, 5, 6))  # [T + 1, B, T + 1, B]
    episode = np.cumsum(trajectory.is_first, axis=0)
    for t, b, s, c in np.ndindex(moves.shape):
        assert moves[t, b, s, c] == (b == c and s <= t <= s + 2 * M and episode[t, b] == episode[s, b])


@pytest.mark.long
def test_the_meta_gradient_through_this_core_is_the_same_in_reverse_and_in_mixed_mode():
    rule = frodo(FrodoConfig(lstm=4))
    agent = make_agent(dataclasses.replace(CONFIG, core_layers=1), rule.spec(3), 3)
    setup = Setup(agent, rule, optax.sgd(0.1), make_outer(OuterConfig(), rule, CONFIG, 3))
    rng = np.random.default_rng(0)
    memory = lambda *shape: Memory((rng.normal(size=(*shape, M + 1, D)),), np.broadcast_to([0, 2, 9], shape))
    trajectories = random_trajectory(1, 2, 5, B)._replace(core_state=memory(2, B))
    validation = random_trajectory(2, 5, B)._replace(core_state=memory(B))
    state = init_agent_state(setup, jax.random.key(0), jnp.asarray(validation.observation[0]))
    given = rule.random_meta_params(jax.random.key(1), 3), state, trajectories, validation
    ends = [jax.jit(make_agent_step(setup, mode))(*given)[:2] for mode in ("reverse", "mixed")]
    assert all(np.any(x) for x in jax.tree.leaves(ends[0]))  # parameters, and meta-gradients
    for x, y in zip(*map(jax.tree.leaves, ends), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(core_kind="gru"), "network.core_kind is 'gru', expected one of lstm, transformer"),
        (dict(memory=0), "network.memory is 0, expected an integer of at least 1"),
        (dict(core_layers=0), "network.core_layers is 0, expected an integer of at least 1"),
        (dict(core_heads=4), "network.core is 6, expected a positive multiple of network.core_heads, 4, for a transf"),
        (dict(core=0), "network.core is 0, expected a positive multiple of network.core_heads, 2, for a transformer"),
    ],
)
def test_a_bad_setting_is_named(settings, message):
    with pytest.raises(ValueError, match=message):
        NetworkConfig(**(dataclasses.asdict(CONFIG) | settings)).validate()
