"""The random walk: its values by a linear solve, its non-stationary reward, and how it moves."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.reference import toy_envs as reference
from tests.toy_envs import stepping
from toy_envs.random_walk import RandomWalk, RandomWalkState


def run(walk: RandomWalk, num_steps: int, seed: int = 0):
    state, first = walk.init(jax.random.key(seed))
    state, steps, _ = stepping.run(walk, state, jnp.zeros(num_steps, jnp.int32))
    return state, first, steps


@pytest.mark.parametrize("num_states", [1, 5, 8])
def test_true_values_solve_the_linear_system(num_states):
    walk = RandomWalk(num_states)
    for num_steps, left_reward in ((0, 0.0), (959, 0.0), (960, -1.0), (1919, -1.0), (1920, 0.0)):
        expected = reference.random_walk_values(num_states, left_reward)
        np.testing.assert_allclose(walk.true_values(jnp.int32(num_steps)), expected, atol=1e-6)


def test_left_reward_switches_at_exactly_960_steps():
    walk, num_keys = RandomWalk(), 32
    for num_steps, left_reward in ((0, 0.0), (959, 0.0), (960, -1.0), (1919, -1.0), (1920, 0.0)):
        key = jax.random.split(jax.random.key(1), num_keys)
        counts = jnp.full(num_keys, num_steps)
        left = RandomWalkState(key, jnp.zeros_like(counts), counts)
        _, step = jax.vmap(walk.step)(left, counts, counts < 0)
        assert np.any(step.is_first) and not np.all(step.is_first)
        np.testing.assert_array_equal(step.reward, np.where(step.is_first, left_reward, 0.0))
        _, step = jax.vmap(walk.step)(left._replace(position=jnp.full_like(counts, 4)), counts, counts < 0)
        np.testing.assert_array_equal(step.reward, np.where(step.is_first, 1.0, 0.0))


def test_the_lifetime_counts_steps_across_episodes():
    walk = RandomWalk(phase_length=100)
    state, first, steps = run(walk, 3000)
    assert int(state.num_steps) == 3000
    position, count_left = 2, 0
    np.testing.assert_array_equal(first.observation, np.eye(5)[2])
    for t in range(3000):
        left_reward = -1.0 if (t // 100) % 2 else 0.0
        if steps.is_first[t]:
            at_left = position == 0
            count_left += at_left
            assert position in (0, 4) and steps.reward[t] == (left_reward if at_left else 1.0)
            assert steps.discount[t] == 0.0
            position = 2
        else:
            new = int(np.argmax(steps.observation[t]))
            assert abs(new - position) == 1 and steps.reward[t] == 0.0 and steps.discount[t] == 1.0
            position = new
        np.testing.assert_array_equal(steps.observation[t], np.eye(5)[position])
    assert count_left > 100 and np.all(steps.valid) and not np.any(steps.truncated)


def test_moves_are_fair_and_lifetimes_differ():
    _, _, steps = run(RandomWalk(), 20_000)
    ends = np.flatnonzero(steps.is_first)
    assert 20_000 / len(ends) == pytest.approx(9, abs=0.75)  # (n + 1)² / 4 steps from the centre; five standard errors
    assert np.mean(steps.reward[ends] == 1.0) == pytest.approx(0.5, abs=0.055)
    _, _, other = run(RandomWalk(), 100, seed=1)
    assert np.any(other.observation != steps.observation[:100])
