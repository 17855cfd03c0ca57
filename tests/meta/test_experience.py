"""The sliding window: what it holds, what is taken again, who acts, and that it is the same window by window."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.replay import ReplayConfig
from meta import experience
from meta.experience import who_acts, with_experience
from meta.lifetime import AgentState
from tests.trajectories import random_trajectory

NUM_UPDATES = 5


def agent_state(value: float) -> AgentState:
    return AgentState(jnp.array(value), (), (), (), jnp.zeros(()))


def step(meta_params, state, trajectories, validation):
    """Adds η times the trajectories' rewards; the meta-gradient is the sum of them, and the outer state counts."""
    rewards = trajectories.reward.sum(axis=(1, 2))
    is_over = 0 if validation is None else 1
    state = state._replace(params=state.params + meta_params * rewards.sum(), outer_state=state.outer_state + is_over)
    return state, rewards.sum(), {"first": rewards[0]}


def fresh(seed: int, num: int):
    return jax.tree.map(jnp.asarray, random_trajectory(seed, num, 5, 3))


@pytest.mark.parametrize("stride", [1, 2, 3, 5])
def test_each_trajectory_is_in_every_window_of_m_updates(stride):
    num_kept = NUM_UPDATES - stride
    learn = jax.jit(with_experience(step, ReplayConfig(), num_kept))
    state = agent_state(1.0)
    one = jax.tree.map(lambda x: x[0], fresh(0, 1))
    kept = experience.init(ReplayConfig(), num_kept, jax.random.key(0), one, state)
    all_rewards, expected, num_ready = [], 1.0, 0
    for i in range(8):
        trajectories = fresh(100 * i, stride)
        all_rewards.extend(np.asarray(trajectories.reward).sum(axis=(1, 2)))
        meta_params = 1.0 + i
        state, kept, meta_gradient, is_ready, metrics = learn(meta_params, state, kept, trajectories, one)
        if len(all_rewards) - stride < num_kept:  # the window is not yet full
            assert (
                not is_ready
                and meta_gradient == 0
                and np.isnan(metrics["first"])
                and state.params == who_acts(state, kept).params == 1
            )
            continue
        assert is_ready
        num_ready += 1
        window = all_rewards[-NUM_UPDATES:]
        np.testing.assert_allclose(meta_gradient, sum(window), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(metrics["first"], window[0], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(
            who_acts(state, kept).params, expected + meta_params * sum(window), rtol=1e-4, atol=1e-4
        )
        expected += meta_params * sum(window[:stride])  # the next window begins here
        np.testing.assert_allclose(state.params, expected, rtol=1e-4, atol=1e-4)
        assert state.outer_state == num_ready  # once for each validation trajectory
    assert num_ready >= 3


def test_with_replay_the_window_holds_what_was_drawn():
    config = ReplayConfig(capacity=12, batch_size=6, fresh=0.5)
    learn = jax.jit(with_experience(step, config, 3))
    state, one = agent_state(0.0), jax.tree.map(lambda x: x[0], fresh(0, 1))
    kept = experience.init(config, 3, jax.random.key(0), one, state)
    before = kept.window
    assert before.reward.shape == (3, 5, 6)
    for i in range(4):
        state, kept, _, is_ready, metrics = learn(1.0, state, kept, fresh(10 * i, 1), one)
        np.testing.assert_array_equal(kept.window.reward[:-1], before.reward[1:])
        np.testing.assert_array_equal(kept.window.reward[-1, :, :3], fresh(10 * i, 1).reward[0])  # the fresh half
        before = kept.window
        assert np.isnan(metrics["first"]) == (not is_ready) == (i < 3) and kept.replay.num_added == min(3 * (i + 1), 12)
