"""Changing environments beside the ones that they change, driven by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.toy_envs import stepping
from tests.trees import check_equal
from toy_envs.catch import Catch
from toy_envs.changing import Changing
from toy_envs.grid_worlds import GridWorld

PERIOD, NUM_STEPS = 7, 40  # episodes of Catch below have three steps: periods end within them, and at their ends


def run(environment, actions):
    state, first = jax.jit(environment.init)(jax.random.key(3))
    state, steps, _ = stepping.run(environment, state, actions)
    return state, first, steps


@pytest.mark.parametrize("environment", [Catch(4, 5), GridWorld(1)])
@pytest.mark.parametrize("change", ["rewards", "actions"])
def test_periods_change_what_they_say_and_nothing_else(environment, change):
    num_actions, period = environment.num_actions, np.arange(NUM_STEPS) // PERIOD
    actions = np.random.default_rng(0).integers(num_actions, size=NUM_STEPS)
    state, first, steps = run(Changing(environment, change, PERIOD), jnp.asarray(actions))
    done = (actions + period) % num_actions if change == "actions" else actions
    inner, inner_first, expected = run(environment, jnp.asarray(done))
    sign = np.where(period % 2 == 1, -1.0, 1.0) if change == "rewards" else np.ones(NUM_STEPS)
    check_equal(steps, expected._replace(reward=expected.reward * sign))
    check_equal((first, state.state), (inner_first, inner))
    assert state.num_steps == steps.valid.sum() and steps.is_first.sum() >= 1  # a reset is no step
    if isinstance(environment, Catch):
        rewards = [set(np.asarray(steps.reward)[period == n].tolist()) for n in range(max(period))]
        assert all(found - {0.0} for found in rewards)  # some in each period


def test_worlds_that_share_a_program_do_so_when_they_change():
    one, other = (Changing(GridWorld(index), "rewards", PERIOD) for index in (3, 8))
    assert one != other and one.program == other.program
    assert (one.observation_shape, one.num_actions) == (GridWorld(3).observation_shape, 5)


def test_what_cannot_change_is_refused():
    with pytest.raises(ValueError, match="^period is 0, expected at least 1 step$"):
        Changing(Catch(), "rewards", 0)
    with pytest.raises(ValueError, match="^change is 'reward', expected one of rewards, actions$"):
        Changing(Catch(), "reward", 1)
