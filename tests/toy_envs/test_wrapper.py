"""Environments that are another one but for the size of its rewards."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.toy_envs import stepping
from tests.trees import check_equal
from toy_envs.base import Environment
from toy_envs.catch import Catch
from toy_envs.changing import Changing
from toy_envs.grid_worlds import GridWorld
from toy_envs.rule_room import RuleRoom
from toy_envs.two_colours import TwoColours
from toy_envs.wrapper import Scaled, Wrapper

NUM_STEPS = 40


class Slow(Catch):
    is_restart_slow, no_op = True, 1


@pytest.mark.parametrize("environment", [Catch(4, 5), TwoColours()])
def test_rewards_alone_are_of_another_size(environment):
    actions = jnp.asarray(np.random.default_rng(0).integers(environment.num_actions, size=NUM_STEPS))
    scaled = Scaled(environment, 1e-3)
    (state, first), (own, own_first) = (jax.jit(e.init)(jax.random.key(3)) for e in (scaled, environment))
    check_equal((state, first), (own, own_first))
    _, steps, _ = stepping.run(scaled, state, actions)
    _, expected, _ = stepping.run(environment, own, actions)
    check_equal(steps, expected._replace(reward=np.float32(1e-3) * expected.reward))
    assert np.any(expected.reward) and (expected.is_first.any() or environment == TwoColours())
    if environment.reward_range is not None:
        np.testing.assert_allclose(scaled.reward_range, 1e-3 * np.asarray(environment.reward_range))


def test_a_wrapper_is_the_environment_in_all_that_it_does_not_change():
    # `step` and what it is made of, and what is cached, follow from the rest.
    made_of_others = {"init", "step", "_moved", "_begun", "_seen", "shown", "observation_dtype"}
    own = {name for name in vars(Environment) if not name.startswith("__") and name != "_abc_impl"} - made_of_others
    assert own <= set(vars(Wrapper)), own - set(vars(Wrapper))
    room = Scaled(RuleRoom("mixed", 16), 10)
    state, expected = (jax.jit(e.numbered_state)(np.uint32(room.held_out_ids[0])) for e in (room, room.environment))
    check_equal(state, expected)
    state = room.transition(state, jnp.int32(0))[0]
    assert room.time_left(state) == room.environment.time_left(state) < 1
    assert room.tested == Scaled(room.environment.tested, 10) != room
    for name in ("observation_shape", "num_actions", "horizon", "no_op", "task_ids", "held_out_ids", "has_time_left"):
        assert getattr(room, name) == getattr(room.environment, name)
    assert Scaled(Slow(), 2).is_restart_slow and Changing(Slow(), "rewards", 5).is_restart_slow
    # What an action does changes with the period, so that none always does nothing.
    assert Changing(Slow(), "rewards", 5).no_op == 1 and Changing(Slow(), "actions", 5).no_op is None
    assert Scaled(GridWorld(3), 2).program == Scaled(GridWorld(8), 2).program


@pytest.mark.parametrize("factor", [0.0, -1.0, 1e39, 1e-50, float("inf"), float("nan")])
def test_what_is_no_scale_is_refused(factor):
    with pytest.raises(ValueError, match=rf"^factor is {re.escape(f'{factor:g}')}, expected 1e-30 to 1e\+30$"):
        Scaled(Catch(), factor)
