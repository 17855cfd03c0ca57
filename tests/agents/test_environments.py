"""The adapters at the ends of episodes, their seeds, and the names of environments."""

import warnings

import dm_env
import numpy as np
import pytest
from dm_env import specs

from agents import environments
from agents.environments import DmEnvBatch, EnvpoolEnvironment, make_environment
from toy_envs.base import DmEnv, TimeStep
from toy_envs.catch import Catch
from toy_envs.random_walk import RandomWalk


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


def collect(environment, actions) -> TimeStep:
    """Reset, then take the actions [T, B]: every field [T + 1, B, ...], with the dtypes of the contract."""
    steps = [environment.reset(), *(environment.step(np.asarray(action, np.int32)) for action in actions)]
    copies = [step.observation.copy() for step in steps]
    environment.step(np.asarray(actions[-1], np.int32))
    for step, copy in zip(steps, copies, strict=True):  # buffers are not used again
        np.testing.assert_array_equal(step.observation, copy)
        assert (step.reward.dtype, step.discount.dtype) == (np.float32, np.float32)
        assert (step.truncated.dtype, step.valid.dtype, step.is_first.dtype) == (bool, bool, bool)
        assert step.observation.dtype == environment.observation_dtype
        assert step.observation.shape == (environment.num_envs, *environment.observation_shape)
        assert all(field.shape == (environment.num_envs,) for field in step[1:])
    return TimeStep(*(np.stack(field) for field in zip(*steps, strict=True)))


def check_next_step_reset(steps: TimeStep):
    """What holds for every host environment, whatever happens in it."""
    is_over = (steps.discount == 0) | steps.truncated
    np.testing.assert_array_equal(steps.is_first[0], True)
    np.testing.assert_array_equal(steps.is_first[1:], is_over[:-1])
    np.testing.assert_array_equal(steps.valid, ~steps.is_first)
    for field, value in ((steps.reward, 0), (steps.discount, 1), (steps.truncated, False)):
        np.testing.assert_array_equal(field[steps.is_first], value)
    assert not np.any(steps.truncated & (steps.discount == 0))


# dm_env


def test_dm_env_batch_at_a_termination_and_at_a_truncation():
    steps = collect(DmEnvBatch([Countdown(1), Countdown(2)], "countdown"), [[1, 2], [3, 3], [3, 3], [1, 2], [2, 1]])
    check_next_step_reset(steps)
    np.testing.assert_array_equal(
        steps.observation.transpose(1, 0, 2),
        [[[1, 1], [1, 0], [2, 2], [2, 1], [2, 0], [3, 3]], [[2, 2], [2, 1], [2, 0], [3, 3], [3, 2], [3, 1]]],
    )
    np.testing.assert_array_equal(steps.reward.T, [[0, 1, 0, 3, 1, 0], [0, 2, 3, 0, 2, 1]])
    np.testing.assert_array_equal(steps.discount.T, [[1, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]])
    np.testing.assert_array_equal(steps.truncated.T, [[0, 0, 0, 0, 1, 0], [0, 0, 1, 0, 0, 0]])
    np.testing.assert_array_equal(steps.valid.T, [[0, 1, 0, 1, 1, 0], [0, 1, 1, 0, 1, 1]])


def test_dm_env_batch_reset_in_the_middle_of_an_episode():
    environment = DmEnvBatch([Countdown(5)], "countdown")
    collect(environment, [[0], [0]])
    np.testing.assert_array_equal(environment.reset().observation, [[6, 6]])


def test_toys_through_dm_env():
    environment = DmEnvBatch([DmEnv(Catch(rows=3), seed) for seed in range(2)], "catch")
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


# bsuite


def bsuite_steps(name: str, seed: int) -> TimeStep:
    environment = make_environment(name, 4, seed)
    actions = np.random.default_rng(0).integers(0, environment.num_actions, (30, 4))
    return collect(environment, actions)


@pytest.mark.parametrize("name", ["bsuite/catch/0", "bsuite/catch_noise/3", "bsuite/memory_len/2", "bsuite/bandit/0"])
def test_bsuite(name):
    steps = bsuite_steps(name, seed=0)
    check_next_step_reset(steps)
    assert np.all(np.any(steps.discount == 0, axis=0)) and not np.any(steps.truncated)
    again = bsuite_steps(name, seed=0)
    for field, other in zip(steps, again, strict=True):
        np.testing.assert_array_equal(field, other)
    if name != "bsuite/bandit/0":  # its rewards are fixed
        assert len({episodes.tobytes() for episodes in steps.observation.swapaxes(0, 1)}) == 4
        assert np.any(bsuite_steps(name, seed=1).observation != steps.observation)


def test_bsuite_keeps_the_mapping_of_its_id():
    # The reward of each arm belongs to the id, only the noise to the seed.
    environment = make_environment("bsuite/bandit_noise/0", 200, 0)
    environment.reset()
    rewards = environment.step(np.full(200, 3, np.int32)).reward
    assert 0.05 < rewards.std() < 0.2  # the noise has 0.1; different mappings would add 0.3


# envpool


def test_envpool_at_a_termination():
    environment = EnvpoolEnvironment("CartPole-v1", 3, seed=0)
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
    environment = EnvpoolEnvironment("CartPole-v1", 2, seed=0, max_episode_steps=4)
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
        environment = EnvpoolEnvironment("CartPole-v1", 2, seed=3, max_episode_steps=3)
        shown.append(collect(environment, [[0, 1], [1, 1], [0, 0], [action, action], [1, 0]]))
        environment.close()
    for field, other in zip(*shown, strict=True):
        np.testing.assert_array_equal(field, other)


def test_envpool_reset_in_the_middle_of_an_episode_and_after_an_end():
    environment = EnvpoolEnvironment("CartPole-v1", 2, seed=0, max_episode_steps=3)
    for num_steps in (2, 3, 2):
        steps = collect(environment, np.zeros((num_steps - 1, 2)))  # and one more
        assert np.all(np.abs(steps.observation[0]) <= 0.05)
        check_next_step_reset(steps)


def test_envpool_seeds_are_not_shared_between_environments_or_runs():
    def first_observations(seed):
        environment = EnvpoolEnvironment("CartPole-v1", 8, seed)
        observation = environment.reset().observation
        environment.close()
        return {row.tobytes() for row in observation}

    runs = [first_observations(seed) for seed in (0, 1, 2, 0)]
    assert runs[0] == runs[3]
    assert len(runs[0] | runs[1] | runs[2]) == 24


def test_envpool_refuses_what_agents_cannot_act_in():
    for env_id in ("Pendulum-v1", "MiniGrid-Empty-8x8-v0", "FrozenLake-v1", "Backgammon-v1"):
        with pytest.raises(ValueError, match=f"envpool/{env_id}.*single-array observation and discrete") as error:
            make_environment(f"envpool/{env_id}", 1, 0)
        assert "\n" not in str(error.value)


def test_envpool_is_quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        environment = EnvpoolEnvironment("CartPole-v1", 1, 0)
        collect(environment, np.zeros((1, 1)))
        environment.close()


def test_procgen_works_or_says_what_is_missing():
    try:
        environment = make_environment("envpool/CoinrunEasy-v0", 2, 0)
    except ImportError as error:
        assert "Qt 5" in str(error) and "\n" not in str(error)
    else:
        assert environment.reset().observation.shape == (2, *environment.observation_shape)


# Atari


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
    options = environments.ATARI_PREPROCESSING
    assert options["max_episode_steps"] * options["frame_skip"] == 108_000
    environment = EnvpoolEnvironment("Pong-v5", 2, 0, **options | {"max_episode_steps": 3})
    steps = collect(environment, np.zeros((4, 2)))
    environment.close()
    check_next_step_reset(steps)
    np.testing.assert_array_equal(steps.truncated[:, 0], [False, False, False, True, False])


def test_all_57_games_are_environments_by_their_usual_names():
    import envpool

    games = environments.atari57_scores()
    assert len(games) == 57
    ids = {environments._atari_id(game) for game in games}
    assert len(ids) == 57 and ids <= set(envpool.list_all_envs())
    for env_id in ids:
        assert environments._atari_id(environments._snake_case(env_id.removesuffix("-v5"))) == env_id
    for spelling, game in (("MsPacman", "ms_pacman"), ("UpNDown", "up_n_down"), ("pong", "pong"), ("HERO", "hero")):
        assert environments._snake_case(spelling) == game


def test_atari57_scores():
    scores = environments.atari57_scores()
    assert scores["pong"] == (-20.7, 14.6) and scores["zaxxon"] == (32.5, 9173.3)
    assert all(random < human for random, human in scores.values())
    assert environments.human_normalised("pong", -20.7) == 0.0
    assert environments.human_normalised("Breakout", 30.5) == 1.0
    assert environments.human_normalised("ms_pacman", 307.3 + 2 * (6951.6 - 307.3)) == pytest.approx(2.0)
    with pytest.raises(ValueError, match="'atari/pongg'.*'atari/Pong'"):
        environments.human_normalised("pongg", 0.0)


# names


def test_toys_are_pure_environments():
    assert make_environment("toy/catch", 32, 0) == Catch()
    assert make_environment("toy/random_walk", 1, 0) == RandomWalk()


@pytest.mark.parametrize(
    ("name", "form", "nearest"),
    [
        ("toy/cach", "toy/<name>", "toy/catch"),
        ("bsuite/cach/0", "bsuite/<experiment>/<index>", "bsuite/catch/0"),
        ("bsuite/catch/99", "bsuite/<experiment>/<index>", "bsuite/catch/9"),
        ("bsuite/catch", "bsuite/<experiment>/<index>", "bsuite/catch/"),
        ("envpool/cartpole-v1", "envpool/<Id>", "envpool/CartPole-v1"),
        ("envpool/Pong", "envpool/<Id>", "envpool/Pong-v5"),
        ("atari/MsPackman", "atari/<Game>", "atari/MsPacman"),
        ("atari", "atari/<Game>", "atari/"),
        ("atri/Pong", "toy/<name> or .* or atari/<Game>", "atari/Pong"),
        ("CartPole-v1", "toy/<name> or .* or atari/<Game>", "envpool/CartPole-v1"),
        ("", "toy/<name> or .* or atari/<Game>", ""),
    ],
)
def test_a_misspelt_name_says_what_would_be_right(name, form, nearest):
    with pytest.raises(ValueError, match=f"'{name}': expected {form}, the nearest match is '{nearest}") as error:
        make_environment(name, 1, 0)
    assert "\n" not in str(error.value)


def test_there_is_at_least_one_environment():
    for name in ("toy/catch", "bsuite/catch/0", "envpool/CartPole-v1"):
        with pytest.raises(ValueError, match="num_envs is 0, expected at least 1"):
            make_environment(name, 0, 0)
