"""gymnasium's vector environments at the ends of episodes, with both ways of resetting, and what is refused."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.envs.classic_control import PendulumEnv
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TimeLimit
from gymnasium.wrappers.vector import TransformReward

from agents.environments.gymnasium import GymnasiumEnvironment
from tests.agents.environments.stepping import check_next_step_reset, collect
from toy_envs.base import TimeStep

NEXT_STEP, SAME_STEP = AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP


class Episodes(gymnasium.Env):
    """Shows (episode, step) and pays the action; odd episodes terminate after `length` steps, the others go on."""

    def __init__(self, episode: int = 1, length: int = 2, first_action: int = 0, dtype=np.int64):
        self.observation_space = spaces.Box(0, 100, (2,), dtype)
        self.action_space = spaces.Discrete(4, start=first_action)
        self._episode, self._length, self._step = episode - 1, length, 0

    def reset(self, *, seed=None, options=None):
        self._episode, self._step = self._episode + 1, 0
        return self._observation(), {}

    def step(self, action):
        assert self.action_space.contains(action)
        self._step += 1
        terminated = self._episode % 2 == 1 and self._step == self._length
        return self._observation(), float(action), terminated, False, {}

    def _observation(self):
        return np.array([self._episode, self._step], self.observation_space.dtype)


def vector(*environments: gymnasium.Env, mode: AutoresetMode = NEXT_STEP, limit: int = 3, **options) -> SyncVectorEnv:
    make = lambda environment: lambda: TimeLimit(environment, limit)
    return SyncVectorEnv([make(one) for one in environments], autoreset_mode=mode, **options)


# A termination after two steps and a truncation after three, in the one order and in the other.

ACTIONS = [[1, 3], [2, 2], [3, 1], [1, 1], [2, 1], [3, 2], [1, 3]]


def test_next_step_reset():
    steps = collect(GymnasiumEnvironment(vector(Episodes(1), Episodes(2))), ACTIONS)
    check_next_step_reset(steps)
    np.testing.assert_array_equal(
        steps.observation.transpose(1, 0, 2),
        [
            [[1, 0], [1, 1], [1, 2], [2, 0], [2, 1], [2, 2], [2, 3], [3, 0]],
            [[2, 0], [2, 1], [2, 2], [2, 3], [3, 0], [3, 1], [3, 2], [4, 0]],
        ],
    )
    np.testing.assert_array_equal(steps.reward.T, [[0, 1, 2, 0, 1, 2, 3, 0], [0, 3, 2, 1, 0, 1, 2, 0]])
    np.testing.assert_array_equal(steps.discount.T, [[1, 1, 0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 0, 1]])
    np.testing.assert_array_equal(steps.truncated.T, [[0, 0, 0, 0, 0, 0, 1, 0], [0, 0, 0, 1, 0, 0, 0, 0]])
    np.testing.assert_array_equal(steps.valid.T, [[0, 1, 1, 0, 1, 1, 1, 0], [0, 1, 1, 1, 0, 1, 1, 0]])


def test_same_step_reset():
    steps = collect(GymnasiumEnvironment(vector(Episodes(1), Episodes(2), mode=SAME_STEP)), ACTIONS)
    np.testing.assert_array_equal(
        steps.observation.transpose(1, 0, 2),
        [
            [[1, 0], [1, 1], [2, 0], [2, 1], [2, 2], [3, 0], [3, 1], [4, 0]],
            [[2, 0], [2, 1], [2, 2], [3, 0], [3, 1], [4, 0], [4, 1], [4, 2]],
        ],
    )
    np.testing.assert_array_equal(steps.is_first.T, [[1, 0, 1, 0, 0, 1, 0, 1], [1, 0, 0, 1, 0, 1, 0, 0]])
    np.testing.assert_array_equal(steps.reward.T, [[0, 1, 2, 3, 1, 2, 3, 1], [0, 3, 2, 1, 1, 1, 2, 3]])
    np.testing.assert_array_equal(steps.discount.T, [[1, 1, 0, 1, 1, 1, 1, 0], [1, 1, 1, 1, 1, 0, 1, 1]])
    np.testing.assert_array_equal(steps.truncated.T, [[0, 0, 0, 0, 0, 1, 0, 0], [0, 0, 0, 1, 0, 0, 0, 0]])
    np.testing.assert_array_equal(steps.valid.T, [[0, 1, 1, 1, 1, 1, 1, 1], [0, 1, 1, 1, 1, 1, 1, 1]])


def test_last_observations_are_those_of_truncated_episodes():
    environment = GymnasiumEnvironment(vector(Episodes(1), Episodes(2), mode=SAME_STEP))
    environment.reset()
    found = []
    for actions in ACTIONS:
        environment.step(np.asarray(actions, np.int32))
        found.append({lane: last.tolist() for lane, last in environment.last_observations.items()})
    assert found == [{}, {}, {1: [2, 3]}, {}, {0: [2, 3]}, {}, {}]
    environment.step(np.asarray([1, 1], np.int32))
    environment.reset()
    assert environment.last_observations == {}


@pytest.mark.parametrize("mode", [NEXT_STEP, SAME_STEP])
def test_an_end_at_the_time_limit_is_a_termination(mode):
    steps = collect(GymnasiumEnvironment(vector(Episodes(length=2), mode=mode, limit=2)), [[0], [0]])
    np.testing.assert_array_equal(steps.discount[:, 0], [1, 1, 0])
    np.testing.assert_array_equal(steps.truncated[:, 0], False)
    np.testing.assert_array_equal(steps.valid[:, 0], [False, True, True])


@pytest.mark.parametrize("mode", [NEXT_STEP, SAME_STEP])
def test_reset_in_the_middle_of_an_episode_and_after_an_end(mode):
    environment = GymnasiumEnvironment(vector(Episodes(1, length=2), mode=mode))
    for num_steps in (2, 3, 2):
        steps = collect(environment, np.zeros((num_steps - 1, 1)))  # and one more
        assert steps.observation[0, 0, 1] == 0
        np.testing.assert_array_equal(steps.valid[:2, 0], [False, True])


# CartPole, with ends of both kinds


def lifetime(environment: gymnasium.Env, seed: int, actions: np.ndarray, is_same_step: bool) -> TimeStep:
    """What one environment should show, one step at a time."""
    environment.reset(seed=seed)
    observation, _ = environment.reset()
    steps, is_over = [TimeStep(observation, 0.0, 1.0, truncated=False, valid=False, is_first=True)], False
    for action in actions:
        if is_over:
            is_over = False
            observation, _ = environment.reset()
            steps.append(TimeStep(observation, 0.0, 1.0, truncated=False, valid=False, is_first=True))
            continue
        observation, reward, terminated, truncated, _ = environment.step(action)
        is_cut = truncated and not terminated
        is_over = terminated or truncated
        is_first = is_over and is_same_step
        if is_first:
            observation, _ = environment.reset()
            is_over = False
        discount = 0.0 if terminated else 1.0
        steps.append(TimeStep(observation, reward, discount, is_cut, True, is_first))
    return TimeStep(*(np.stack(field) for field in zip(*steps, strict=True)))


@pytest.mark.parametrize("mode", [NEXT_STEP, SAME_STEP])
def test_cart_pole_is_what_single_environments_show(mode):
    make = lambda: gymnasium.make("CartPole-v1", max_episode_steps=15)
    envs = SyncVectorEnv([make, make], autoreset_mode=mode)
    envs.reset(seed=[3, 4])
    actions = np.random.default_rng(0).integers(0, 2, (100, 2))
    steps = collect(GymnasiumEnvironment(envs), actions)
    assert np.any(steps.discount == 0) and np.any(steps.truncated)
    for b in range(2):
        expected = lifetime(make(), 3 + b, actions[:, b], mode is SAME_STEP)
        for name, field, other in zip(TimeStep._fields, steps, expected, strict=True):
            np.testing.assert_array_equal(field[:, b], other, err_msg=name)


def test_a_vector_environment_of_its_own_kind():
    envs = gymnasium.make_vec("CartPole-v1", 3, vectorization_mode="vector_entry_point")
    steps = collect(GymnasiumEnvironment(envs), np.ones((30, 3)))
    check_next_step_reset(steps)
    assert np.all(np.any(steps.discount == 0, axis=0))


# Actions, rewards and observations


@pytest.mark.parametrize("first_action", [5, -2])
def test_actions_may_start_at_another_number_than_0(first_action):
    environment = GymnasiumEnvironment(vector(Episodes(2, first_action=first_action)))
    assert environment.num_actions == 4
    steps = collect(environment, [[0], [1], [3]])
    np.testing.assert_array_equal(steps.reward[:, 0], [0, first_action, first_action + 1, first_action + 3])


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [(np.uint8, np.uint8), (np.float32, np.float32), (np.float64, np.float32), (np.int64, np.float32)],
)
def test_observations_are_uint8_or_float32_and_new_arrays(dtype, expected):
    environment = GymnasiumEnvironment(vector(Episodes(dtype=dtype), copy=False))
    assert environment.observation_dtype == expected
    np.testing.assert_array_equal(collect(environment, [[0], [0]]).observation[:, 0, 1], [0, 1, 2])


def test_nothing_is_paid_for_a_reset():
    envs = TransformReward(vector(Episodes(1)), lambda reward: reward + 1)
    steps = collect(GymnasiumEnvironment(envs), [[1], [1], [1], [1]])
    np.testing.assert_array_equal(steps.reward[:, 0], [0, 2, 2, 0, 2])


# Refused


def test_environments_that_agents_cannot_act_in_are_refused():
    high = np.arange(81, dtype=np.float32).reshape(9, 9)  # shown in several lines
    box, discrete = spaces.Box(-high, high), spaces.Discrete(2)
    refused = [
        (box, box),
        (box, spaces.MultiDiscrete([2, 2])),
        (spaces.Dict(image=box), discrete),
        (discrete, discrete),
    ]
    for observation, action in refused:
        environment = Episodes()
        environment.observation_space, environment.action_space = observation, action
        message = "'fake' is not supported: expected .* a single-array observation and discrete actions, got "
        with pytest.raises(ValueError, match=message) as error:
            GymnasiumEnvironment(vector(environment), "fake")
        assert "\n" not in str(error.value)


def test_environments_that_do_not_reset_themselves_are_refused():
    for mode in (AutoresetMode.DISABLED, None):
        envs = vector(Episodes())
        envs.metadata["autoreset_mode"] = mode
        message = f"'fake' has the autoreset_mode {mode}, expected AutoresetMode.NEXT_STEP or SAME_STEP"
        with pytest.raises(ValueError, match=message):
            GymnasiumEnvironment(envs, "fake")


def test_an_error_names_the_environment_by_its_id_or_else_its_class():
    for envs, name in (
        (gymnasium.make_vec("Pendulum-v1", 1, vectorization_mode="sync"), "Pendulum-v1"),
        (vector(PendulumEnv()), "SyncVectorEnv"),
    ):
        with pytest.raises(ValueError, match=f"environment '{name}' is not supported"):
            GymnasiumEnvironment(envs)
