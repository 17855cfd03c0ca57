"""Episodes of several trials: what ends where, what is observed, and the count of returns, driven by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.toy_envs.stepping import run
from tests.toy_envs.test_base import Corridor, CorridorState, step_through
from tests.trees import check_equal
from toy_envs.changing import Changing
from toy_envs.grid_worlds import GridWorld
from toy_envs.rule_room import RuleRoom
from toy_envs.trials import Trials, TrialStats


class Corridors(Corridor):
    """A corridor whose task is the hundreds of the number of the first trial."""

    def initial_state(self, key):
        return CorridorState(100 * jax.random.randint(key, (), 1, 10_000), jnp.int32(0), jnp.int32(0))

    def time_left(self, state):
        return 1.0 - state.num_steps / 3


# Two steps to the goal; three of waiting; the goal at the time limit; waiting; and the next episode's first step.
ACTIONS = [1, 1, 0, 1, 0, 1, 0, 1, 0, 0, 0, 1]
TRIAL_ENDS = [2, 5, 8, 11]


def test_trials_end_by_termination_or_time_and_only_episodes_show_it():
    steps = step_through(Trials(Corridors(), 2), ACTIONS)
    is_last = np.isin(np.arange(13), [5, 11])
    np.testing.assert_array_equal(steps.reward, [0, *(10 * np.array(ACTIONS))])
    np.testing.assert_array_equal(steps.discount, 1.0 - is_last)
    np.testing.assert_array_equal(steps.is_first, is_last | (np.arange(13) == 0))
    np.testing.assert_array_equal(steps.valid, np.arange(13) > 0)
    assert not np.any(steps.truncated)

    number, position, num_steps = steps.observation[:, :3].T
    np.testing.assert_array_equal(number % 100, [0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 1, 0, 0])
    np.testing.assert_array_equal(position, [0, 1, 0, 0, 1, 0, 1, 1, 0, 0, 0, 0, 1])
    np.testing.assert_array_equal(num_steps, [0, 1, 0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1])
    tasks = number // 100
    assert len({*tasks[:5]}) == len({*tasks[5:11]}) == len({*tasks[11:]}) == 1 and len({*tasks}) == 3


def test_what_trials_add_to_the_observation():
    shown = step_through(Trials(Corridors(), 2), ACTIONS).observation[:, 3:]
    assert shown.shape[1:] == (6 + 1 + 2 + 1,)
    num_left = [2, 2, 1, 1, 1, 2, 2, 2, 1, 1, 1, 2, 2]
    np.testing.assert_array_equal(shown[:, :6], np.eye(6)[np.array(num_left) - 1])
    np.testing.assert_allclose(shown[:, 6], 1 - np.array([0, 1, 0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1]) / 3, rtol=1e-6)
    is_first = np.isin(np.arange(13), [0, 5, 11])
    last = np.array([0, *ACTIONS])  # also across the end of a trial, but of no other episode
    np.testing.assert_array_equal(shown[:, 7:9], np.where(is_first[:, None], 0, np.eye(2)[last]))
    np.testing.assert_array_equal(shown[:, 9], np.where(is_first, 0, 10 * last))


def test_more_trials_than_are_counted():
    shown = step_through(Trials(Corridors(), 8), [1, 1] * 8).observation[::2, 3:9]
    expected = [5, 5, 5, 4, 3, 2, 1, 0, 5]  # the last of six entries is for more than five
    np.testing.assert_array_equal(np.argmax(shown, axis=1), expected)
    np.testing.assert_array_equal(np.sum(shown, axis=1), np.ones(9))


def summed(stats):
    return jax.tree.map(lambda x: jnp.sum(x, axis=0), stats)


def test_returns_by_trial():
    environment = Trials(Corridors(), 2)
    state = jax.vmap(environment.initial_state)(jax.random.split(jax.random.key(0), 2))
    step = jax.jit(lambda state, action: jax.vmap(environment.step)(state, action, action < 0)[0])
    for t, action in enumerate(ACTIONS):
        state = step(state, jnp.array([action, 1]))  # the other one goes on, with trials of two steps
        if t == 3:
            check_equal(summed(state.stats), TrialStats(np.array([2, 1], np.int32), np.array([40, 20], np.float32)))
    # The first: 10 in the second trial, 20 and 0 in those of the next episode.
    check_equal(summed(state.stats), TrialStats(np.array([5, 5], np.int32), np.array([100, 70], np.float32)))


def test_one_trial_of_one_task_is_the_environment_alone():
    room = RuleRoom("main", pool=1)
    actions = np.random.default_rng(0).integers(0, 5, 30)
    alone = step_through(room, actions)
    taken = alone.valid[1:]  # a trial's end is followed by the next one's start, without a step that nobody chose
    trials = step_through(Trials(room, 1), actions[taken])
    shown = np.append(True, taken)
    is_end = alone.truncated[shown]
    np.testing.assert_array_equal(trials.observation[~is_end, :91], alone.observation[shown][~is_end])
    np.testing.assert_array_equal(trials.observation[is_end, :91], alone.observation[~shown])
    check_equal(trials.reward, alone.reward[shown])
    np.testing.assert_array_equal(trials.discount, 1.0 - is_end)  # whose end by time is now seen to come
    assert is_end.sum() == 2 and np.all(trials.valid[1:]) and not np.any(trials.truncated)


def test_an_episode_can_begin_with_a_task_of_choice():
    room = RuleRoom("main")
    environment = Trials(room, 3)
    state = jax.jit(environment.initial_state)(jax.random.key(0))
    state, *_ = jax.jit(lambda state: run(environment, state, jnp.full(13, 4)))(state)
    assert state.trial == 1
    chosen = jax.jit(lambda task_id: room.begin(room.task(task_id)))(np.uint32(7))
    begun = environment.begin(state, chosen)
    check_equal(begun.state, chosen)
    assert (int(begun.trial), int(begun.action), float(begun.reward), float(begun.trial_return)) == (0, -1, 0.0, 0.0)
    check_equal(begun.stats, state.stats)


def test_time_left_of_the_other_toys():
    state = jax.jit(GridWorld(0).initial_state)(jax.random.key(0))
    later, *_ = jax.jit(GridWorld(0).transition)(state, jnp.int32(0))
    assert GridWorld(0).time_left(state) == 1.0
    assert GridWorld(0).time_left(later) == pytest.approx(1 - 1 / int(state.world.horizon))
    changing = Changing(GridWorld(0), "rewards", 5)
    state = jax.jit(changing.initial_state)(jax.random.key(0))
    assert changing.time_left(state._replace(state=later)) == GridWorld(0).time_left(later)
    assert Corridor().time_left(Corridor().initial_state(None)) == 1.0


def test_no_trial_is_refused():
    with pytest.raises(ValueError, match="^num_trials is 0, expected a whole number of at least 1$"):
        Trials(Corridors(), 0)


def test_forgetful_trials_are_marked_at_their_start_and_otherwise_the_same():
    kept, forgetful = (step_through(Trials(Corridors(), 2, is_forgetful=forgets), ACTIONS) for forgets in (False, True))
    np.testing.assert_array_equal(forgetful.is_first, np.isin(np.arange(13), [0, *TRIAL_ENDS]))
    check_equal(kept._replace(is_first=forgetful.is_first), forgetful)
