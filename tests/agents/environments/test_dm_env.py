"""`dm_env` environments in a batch, at the ends of episodes."""

import dm_env
import numpy as np
import pytest
from dm_env import specs

from agents.environments.dm_env import DmEnvBatch
from tests.agents.environments.stepping import check_next_step_reset, collect
from toy_envs.base import DmEnv
from toy_envs.catch import Catch


class Countdown(dm_env.Environment):
    """Shows (length, steps left) and pays the action; episodes get longer by one, and the even ones are truncated."""

    def __init__(self, length: int):
        self._length, self._left = length - 1, 0

    def reset(self):
        self._length += 1
        self._left = self._length
        return dm_env.restart(self._observation())

    def step(self, action):
        if self._left == 0:
            return self.reset()
        self._left -= 1
        if self._left:
            return dm_env.transition(float(action), self._observation(), discount=0.9)
        end = dm_env.termination if self._length % 2 else dm_env.truncation
        return end(float(action), self._observation())

    def _observation(self):
        return np.array([self._length, self._left], np.int64)

    def observation_spec(self):
        return specs.Array((2,), np.int64)

    def action_spec(self):
        return specs.DiscreteArray(4)


def test_dm_env_batch_at_a_termination_and_at_a_truncation():
    steps = collect(DmEnvBatch([Countdown(1), Countdown(2)]), [[1, 2], [3, 3], [3, 3], [1, 2], [2, 1]])
    check_next_step_reset(steps)
    np.testing.assert_array_equal(
        steps.observation.transpose(1, 0, 2),
        [[[1, 1], [1, 0], [2, 2], [2, 1], [2, 0], [3, 3]], [[2, 2], [2, 1], [2, 0], [3, 3], [3, 2], [3, 1]]],
    )
    np.testing.assert_array_equal(steps.reward.T, [[0, 1, 0, 3, 1, 0], [0, 2, 3, 0, 2, 1]])
    d = np.float32(0.9)
    np.testing.assert_array_equal(steps.discount.T, [[1, 0, 1, d, 1, 1], [1, d, 1, 1, d, d]])
    np.testing.assert_array_equal(steps.truncated.T, [[0, 0, 0, 0, 1, 0], [0, 0, 1, 0, 0, 0]])
    np.testing.assert_array_equal(steps.valid.T, [[0, 1, 0, 1, 1, 0], [0, 1, 1, 0, 1, 1]])


def test_dm_env_batch_reset_in_the_middle_of_an_episode():
    environment = DmEnvBatch([Countdown(5)])
    collect(environment, [[0], [0]])
    np.testing.assert_array_equal(environment.reset().observation, [[6, 6]])


def test_toys_through_dm_env():
    environment = DmEnvBatch([DmEnv(Catch(rows=3), seed) for seed in range(2)])
    assert (environment.num_actions, environment.observation_shape) == (3, (3, 11))
    steps = collect(environment, np.ones((6, 2)))
    check_next_step_reset(steps)
    np.testing.assert_array_equal(steps.discount[:, 0], [1, 1, 0, 1, 1, 0, 1])
    assert np.all(np.abs(steps.reward[[2, 5]]) == 1)


def test_dm_env_batch_refuses_what_agents_cannot_act_in():
    class Pictures(Countdown):
        def observation_spec(self):
            return {"image": specs.Array((2,), np.uint8)}

    class Words(Countdown):
        def observation_spec(self):
            return specs.StringArray(())

    class Continuous(Countdown):
        def action_spec(self):
            return specs.BoundedArray((1,), np.float32, -1, 1)

    for kind in (Pictures, Words, Continuous):
        with pytest.raises(ValueError, match="'fake'.*single-array observation and discrete actions") as error:
            DmEnvBatch([kind(1)], "fake")
        assert "\n" not in str(error.value)
        with pytest.raises(ValueError, match=f"environment '{kind.__name__}' is not supported"):
            DmEnvBatch([kind(1)])


def test_dm_env_batch_is_of_one_kind():
    class Longer(Countdown):
        def observation_spec(self):
            return specs.Array((3,), np.int64)

    class Richer(Countdown):
        def action_spec(self):
            return specs.DiscreteArray(5)

    for other, has in ((Longer(1), r"\(3,\) int64 and 4 actions"), (Richer(1), r"\(2,\) int64 and 5 actions")):
        message = rf"environments\[2\] of 'Countdown' has observations {has}, expected observations \(2,\) int64 and 4"
        with pytest.raises(ValueError, match=message):
            DmEnvBatch([Countdown(1), Countdown(2), other])
