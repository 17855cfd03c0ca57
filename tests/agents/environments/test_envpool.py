"""envpool's environments at the ends of episodes, their seeds, and the preprocessing of Atari."""

import warnings

import numpy as np
import pytest

from agents.environments.envpool import ATARI_PREPROCESSING, make_envpool
from agents.environments.gymnasium import GymnasiumEnvironment
from agents.environments.host import environment_seeds
from agents.environments.names import make_environment
from tests.agents.environments.stepping import check_next_step_reset, collect

envpool = pytest.importorskip("envpool")


def test_envpool_at_a_termination():
    environment = make_envpool("CartPole-v1", 3, seed=0)
    steps = collect(environment, np.tile([0, 0, 1], (40, 1)))
    environment.close()
    check_next_step_reset(steps)
    assert not np.any(steps.truncated)
    for b in range(3):
        ends = np.flatnonzero(steps.discount[:, b] == 0)
        assert len(ends) >= 2
        # The last observation is the fallen pole's, the next one is upright again.
        assert np.all(np.abs(steps.observation[ends, b, 2]) > 0.2094)
        assert np.all(np.abs(steps.observation[ends[:-1] + 1, b]) <= 0.05)
        np.testing.assert_array_equal(steps.reward[:, b], steps.valid[:, b])


def test_envpool_at_a_truncation():
    environment = make_envpool("CartPole-v1", 2, seed=0, max_episode_steps=4)
    steps = collect(environment, np.tile([0, 1], (11, 1)))
    environment.close()
    check_next_step_reset(steps)
    np.testing.assert_array_equal(np.flatnonzero(steps.truncated[:, 0]), [4, 9])
    np.testing.assert_array_equal(steps.truncated[:, 0], steps.truncated[:, 1])
    assert np.all(steps.discount == 1) and np.all(steps.valid[[4, 9]])
    # Pushed four times to the same side, the cart is fast; a new episode starts at rest.
    assert np.all(np.abs(steps.observation[[4, 9], :, 1]) > 0.6)
    assert np.all(np.abs(steps.observation[[5, 10]]) <= 0.05)


def test_envpool_ignores_the_action_after_an_end():
    shown = []
    for action in (0, 1):
        environment = make_envpool("CartPole-v1", 2, seed=3, max_episode_steps=3)
        shown.append(collect(environment, [[0, 1], [1, 1], [0, 0], [action, action], [1, 0]]))
        environment.close()
    for field, other in zip(*shown, strict=True):
        np.testing.assert_array_equal(field, other)


def test_envpool_reset_in_the_middle_of_an_episode_and_after_an_end():
    environment = make_envpool("CartPole-v1", 2, seed=0, max_episode_steps=3)
    for num_steps in (2, 3, 2):
        steps = collect(environment, np.zeros((num_steps - 1, 2)))  # and one more
        assert np.all(np.abs(steps.observation[0]) <= 0.05)
        check_next_step_reset(steps)


def test_envpool_seeds_are_not_shared_between_environments_or_runs():
    def first_observations(seed):
        environment = make_envpool("CartPole-v1", 8, seed)
        observation = environment.reset().observation
        environment.close()
        return {row.tobytes() for row in observation}

    runs = [first_observations(seed) for seed in (0, 1, 2, 0)]
    assert runs[0] == runs[3]
    assert len(runs[0] | runs[1] | runs[2]) == 24


def test_envpool_refuses_what_agents_cannot_act_in():
    for env_id in ("Pendulum-v1", "FrozenLake-v1", "Backgammon-v1"):
        with pytest.raises(ValueError, match=f"envpool/{env_id}.*single-array observation and discrete") as error:
            make_environment(f"envpool/{env_id}", 1, 0)
        assert "\n" not in str(error.value)


def test_envpool_is_quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        environment = make_envpool("CartPole-v1", 1, 0)
        collect(environment, np.zeros((1, 1)))
        environment.close()


@pytest.mark.filterwarnings("ignore:.*precision lowered")
def test_the_adapter_to_gymnasium_shows_the_same():
    options = dict(seed=environment_seeds(5, 2), max_episode_steps=11)
    pairs = [make_envpool("CartPole-v1", 2, seed=5, max_episode_steps=11)]
    pairs.append(GymnasiumEnvironment(envpool.make("CartPole-v1", env_type="gymnasium", num_envs=2, **options)))
    one, other = (collect(environment, np.tile([0, 1], (30, 1))) for environment in pairs)
    for field, same in zip(one, other, strict=True):
        np.testing.assert_array_equal(field, same)


def test_procgen_works_or_says_what_is_missing():
    try:
        environment = make_environment("envpool/CoinrunEasy-v0", 2, 0)
    except ImportError as error:
        assert "Qt 5" in str(error) and "\n" not in str(error)
    else:
        assert environment.reset().observation.shape == (2, *environment.observation_shape)


def test_atari_preprocessing():
    environment = make_environment("atari/Pong", 2, 0)
    assert (environment.observation_shape, environment.observation_dtype) == ((4, 84, 84), np.uint8)
    assert environment.num_actions == 6
    steps = collect(environment, np.random.default_rng(0).integers(0, 6, (6, 2)))
    environment.close()
    check_next_step_reset(steps)
    # The stack is ordered from old to new.
    np.testing.assert_array_equal(steps.observation[5][:, 1:], steps.observation[6][:, :3])


def test_atari_reports_true_rewards_and_ends_with_the_game():
    # Assault by random play: one kill pays 21; the first life of three goes after about 125 steps.
    environment = make_environment("atari/Assault", 2, 0)
    steps = collect(environment, np.random.default_rng(0).integers(0, 7, (500, 2)))
    environment.close()
    assert steps.reward.max() == 21.0
    assert np.flatnonzero(np.any(steps.discount == 0, axis=1))[0] > 250
    check_next_step_reset(steps)
    assert np.any(steps.observation[0, 0] != steps.observation[0, 1])  # after different numbers of no-ops


def test_atari_is_truncated_at_its_time_limit():
    options = ATARI_PREPROCESSING
    assert options["max_episode_steps"] * options["frame_skip"] == 108_000
    environment = make_envpool("Pong-v5", 2, 0, **options | {"max_episode_steps": 3})
    steps = collect(environment, np.zeros((4, 2)))
    environment.close()
    check_next_step_reset(steps)
    np.testing.assert_array_equal(steps.truncated[:, 0], [False, False, False, True, False])


def test_of_minigrids_dictionary_the_view_alone_is_shown():
    environment = make_environment("envpool/MiniGrid-DoorKey-5x5-v0", 2, 0)
    own = envpool.make(
        "MiniGrid-DoorKey-5x5-v0", env_type="gymnasium", num_envs=2, seed=environment_seeds(0, 2), num_threads=1
    )
    assert environment.observation_shape == (7, 7, 3) and environment.observation_dtype == np.float32
    seen = [(environment.reset().observation, own.reset()[0]["image"])]
    for action in (2, 1, 3):
        actions = np.full(2, action, np.int32)
        seen.append((environment.step(actions).observation, own.step(actions)[0]["image"]))
    for shown, image in seen:
        assert shown.dtype == np.float32 and 0 <= shown.min() and 0 < shown.max() <= 1
        np.testing.assert_allclose(shown * [10, 5, 3], image, atol=1e-5)
    for one in (environment, own):
        one.close()
