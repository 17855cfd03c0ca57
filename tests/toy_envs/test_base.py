"""What happens at an episode's end, in pure environments and in their dm_env bridge."""

from typing import NamedTuple

import dm_env
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest
from dm_env import test_utils

from tests.toy_envs.stepping import run
from toy_envs import base
from toy_envs.catch import Catch
from toy_envs.changing import Changing


class CorridorState(NamedTuple):
    episode: base.Array
    position: base.Array
    num_steps: base.Array


class Corridor(base.Environment[CorridorState]):
    """Action 1 goes on; the third cell is the goal, three steps are the time limit. Episodes are numbered from 1."""

    observation_shape = (3,)
    num_actions = 2

    def initial_state(self, key):
        del key
        return CorridorState(jnp.int32(1), jnp.int32(0), jnp.int32(0))

    def restart(self, state):
        return CorridorState(state.episode + 1, jnp.int32(0), jnp.int32(0))

    def transition(self, state, action):
        state = CorridorState(state.episode, state.position + action, state.num_steps + 1)
        return state, 10.0 * action, state.position == 2, state.num_steps == 3

    def observe(self, state):
        return jnp.stack(state).astype(jnp.float32)


def step_through(environment, actions):
    state, first = environment.init(jax.random.key(0))
    _, steps, _ = jax.jit(lambda state: run(environment, state, jnp.asarray(actions)))(state)
    return jax.tree.map(lambda x, xs: np.concatenate([x[None], xs]), first, steps)


def test_ends_by_termination_by_time_and_by_both():
    # Two steps to the goal; three steps, and the reset that ignores its action; the goal at the time limit.
    steps = step_through(Corridor(), [1, 1, 0, 1, 0, 1, 1, 0, 1])
    np.testing.assert_array_equal(
        steps.observation,
        [[1, 0, 0], [1, 1, 1], [2, 0, 0], [2, 0, 1], [2, 1, 2], [2, 1, 3], [3, 0, 0], [3, 1, 1], [3, 1, 2], [4, 0, 0]],
    )
    np.testing.assert_array_equal(steps.reward, [0, 10, 10, 0, 10, 0, 0, 10, 0, 10])
    np.testing.assert_array_equal(steps.discount, [1, 1, 0, 1, 1, 1, 1, 1, 1, 0])
    np.testing.assert_array_equal(steps.truncated, [0, 0, 0, 0, 0, 1, 0, 0, 0, 0])
    np.testing.assert_array_equal(steps.valid, [0, 1, 1, 1, 1, 1, 0, 1, 1, 1])
    np.testing.assert_array_equal(steps.is_first, [1, 0, 1, 0, 0, 0, 1, 0, 0, 1])


def test_a_reset_is_no_step_of_what_counts_steps():
    environment = Changing(Corridor(), "rewards", 100)
    state, _ = environment.init(jax.random.key(0))
    state, steps, _ = run(environment, state, jnp.zeros(8, jnp.int32))
    assert state.num_steps == steps.valid.sum() == 6


def test_a_batch_goes_on_as_each_environment_does():
    """Where some episodes end and others do not, in nested batches, too."""
    environment = Catch(4, 3)
    start = lambda key: environment.init(key)[0]
    states = jax.vmap(start)(jax.random.split(jax.random.key(0), 6))
    states, _, _ = run(environment, states, np.zeros((1, 6), np.int32))
    states = states._replace(row=jnp.array([0, 1, 0, 2, 1, 0]))
    actions = np.random.default_rng(0).integers(3, size=(9, 6))
    whole = run(environment, states, actions)[1:]
    for i in range(6):
        one = run(environment, jax.tree.map(lambda x, i=i: x[i], states), actions[:, i])[1:]
        assert_same(one, jax.tree.map(lambda x, i=i: x[:, i], whole))
    nested = jax.tree.map(lambda x: jnp.reshape(x, (2, 3, *x.shape[1:])), states)
    in_both = jax.vmap(lambda states, actions: run(environment, states, actions)[1:])(
        nested, np.moveaxis(np.reshape(actions, (9, 2, 3)), 1, 0)
    )
    assert_same(jax.tree.map(lambda x: jnp.reshape(jnp.moveaxis(x, 0, 1), (9, 6, *x.shape[3:])), in_both), whole)


def assert_same(found, expected):
    data = lambda x: jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x
    jax.tree.map(lambda x, y: np.testing.assert_array_equal(data(x), data(y)), found, expected)


def test_dm_env_shows_the_last_observation_and_ignores_the_action_after_it():
    environment = base.DmEnv(Corridor(), seed=0)
    shown = [environment.step(action) for action in (1, 1, 1, 1, 0, 0, 0, 1, 1)]
    observations = [step.observation.tolist() for step in shown]
    # The first action, the fourth and the eighth do nothing.
    assert observations == [
        [1, 0, 0],
        [1, 1, 1],
        [1, 2, 2],
        [2, 0, 0],
        [2, 0, 1],
        [2, 0, 2],
        [2, 0, 3],
        [3, 0, 0],
        [3, 1, 1],
    ]
    first, mid, last = dm_env.StepType
    assert [step.step_type for step in shown] == [first, mid, last, first, mid, mid, last, first, mid]
    assert [step.reward for step in shown] == [None, 10, 10, None, 0, 0, 0, None, 10]
    assert [step.discount for step in shown] == [None, 1, 0, None, 1, 1, 1, None, 1]


def test_dm_env_reset_starts_the_first_episode_once_and_a_new_one_after_it():
    environment = base.DmEnv(Corridor(), seed=0)
    assert environment.reset().observation[0] == 1
    environment.step(1)
    assert environment.reset().observation.tolist() == [2, 0, 0]
    assert environment.reset().observation[0] == 3


def test_dm_env_seed():
    pellets = [
        [int(np.argmax(environment.reset().observation[0])) for _ in range(8)]
        for environment in (base.DmEnv(Catch(), seed) for seed in (0, 0, 1))
    ]
    assert pellets[0] == pellets[1] != pellets[2] and len(set(pellets[0])) > 1


class DmEnvConformity(test_utils.EnvironmentTestMixin, absltest.TestCase):
    """The checks that dm_env has for its implementers."""

    def make_object_under_test(self):
        return base.DmEnv(Catch(rows=4), seed=0)

    def make_action_sequence(self):
        return [np.int32(action) for action in (0, 1, 2, 2, 1, 0, 0, 0, 1)]
