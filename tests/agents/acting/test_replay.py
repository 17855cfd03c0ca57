"""Replay: what is kept, what is drawn, in which dtype."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.acting import replay
from agents.acting.replay import ReplayConfig
from agents.types import Trajectory

T = 2


def numbered(first: int, num: int) -> Trajectory:
    """Trajectories whose every entry is their number."""
    numbers = np.arange(first, first + num)
    fill = lambda steps, dtype: jnp.asarray(np.tile(numbers.astype(dtype), (steps, 1)))
    steps = fill(T, np.float32)
    return Trajectory(
        observation=jnp.asarray(np.tile(numbers.astype(np.uint8)[:, None], (T + 1, 1, 4))),
        is_first=fill(T + 1, bool),
        action=fill(T, np.int32),
        reward=steps,
        discount=steps,
        truncated=fill(T, bool),
        valid=fill(T, bool),
        behaviour_logits=steps[..., None],
        core_state=(jnp.asarray(numbers, jnp.float32),),
    )


def test_the_oldest_go_first_and_draws_are_uniform_over_what_is_kept():
    config = ReplayConfig(capacity=5, batch_size=4, fresh=0.25)
    state = replay.init(config, jax.random.key(0), numbered(0, 2))
    assert state.trajectories.observation.dtype == jnp.uint8
    add, sample = jax.jit(replay.add), jax.jit(lambda state, fresh: replay.sample(config, state, fresh))
    for first in (1, 3, 5, 7):
        assert bool(replay.is_ready(config, state)) == (first > 3)
        fresh = numbered(first, 2)
        state = add(state, fresh)
    drawn = []
    for _ in range(300):
        state, batch = sample(state, fresh)
        assert batch.observation.shape == (T + 1, 4, 4) and batch.observation.dtype == jnp.uint8
        for own in (batch.observation[0, :, 0], batch.action[1], batch.reward[0], batch.core_state[0]):
            np.testing.assert_array_equal(own, batch.action[0])
        assert batch.action[0, 0] == 7  # the first of the fresh ones
        drawn.extend(np.asarray(batch.action[0, 1:]).tolist())
    numbers, counts = np.unique(drawn, return_counts=True)
    np.testing.assert_array_equal(numbers, [4, 5, 6, 7, 8])
    assert counts.min() > 140 and counts.max() < 220


def test_before_the_first_draw_only_what_was_added_is_drawn():
    config = ReplayConfig(capacity=50, batch_size=3, fresh=0.0)
    state = replay.add(replay.init(config, jax.random.key(0), numbered(0, 3)), numbered(7, 3))
    for _ in range(20):
        state, batch = replay.sample(config, state, numbered(7, 3))
        assert set(np.asarray(batch.action[0]).tolist()) <= {7, 8, 9}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (ReplayConfig(-1), "replay.capacity is -1"),
        (ReplayConfig(10, 11), r"replay.capacity is 10, expected at least replay.batch_size \(11"),
        (ReplayConfig(10, 0), r"replay.capacity is 10, expected at least replay.batch_size \(0"),
        (ReplayConfig(100, 10, 1.0), "replay.fresh is 1.0"),
        (ReplayConfig(100, 10, 0.5), r"replay.fresh is 0.5, .*no more than batch_size \(2\)"),
    ],
)
def test_a_bad_configuration_is_named(config, message):
    with pytest.raises(ValueError, match=message):
        config.validate(2)
    ReplayConfig(0, -5, 9.0).validate(2)  # nothing of it matters
