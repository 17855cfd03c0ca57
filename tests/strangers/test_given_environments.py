"""A name, or an environment of any suite that the package knows, wrapped ones included, is taken wherever one is."""

import functools
import warnings

import dm_env
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import frodo
from agents.environments.adapt import as_environment, as_pure_environment
from agents.environments.dm_env import DmEnvBatch
from agents.environments.envpool import EnvpoolEnvironment
from agents.environments.gymnasium import GymnasiumEnvironment
from agents.environments.gymnax import GymnaxEnvironment
from agents.environments.navix import NavixEnvironment
from agents.environments.xminigrid import XLandEnvironment
from tests.agents.environments.test_gymnax import played
from toy_envs.base import DmEnv
from toy_envs.catch import Catch
from toy_envs.rule_room import RuleRoom

TINY = dict(batch_size=2, unroll=4, network=frodo.NetworkConfig("mlp", (4,)))


def live(environment, **settings):
    return frodo.discover_online(environment, "impala", num_steps=40, key=jax.random.key(0), **TINY | settings)


# Wrappers as PureJaxRL (Lu et al. 2022, purejaxrl/wrappers.py) has them, for the five values of gymnax before 1.0.


class Wrapper:
    def __init__(self, env):
        self._env = env

    def __getattr__(self, name):
        return getattr(self._env, name)


class FlattenObservationWrapper(Wrapper):
    def observation_space(self, params):
        inner = self._env.observation_space(params)
        return type(inner)(inner.low, inner.high, (int(np.prod(inner.shape)),), inner.dtype)

    @functools.partial(jax.jit, static_argnums=(0,))
    def reset(self, key, params=None):
        observation, state = self._env.reset(key, params)
        return jnp.reshape(observation, (-1,)), state

    @functools.partial(jax.jit, static_argnums=(0,))
    def step(self, key, state, action, params=None):
        observation, state, reward, done, info = self._env.step(key, state, action, params)
        return jnp.reshape(observation, (-1,)), state, reward, done, info


class LogWrapper(Wrapper):
    @functools.partial(jax.jit, static_argnums=(0,))
    def reset(self, key, params=None):
        observation, state = self._env.reset(key, params)
        return observation, (state, 0.0, 0)

    @functools.partial(jax.jit, static_argnums=(0,))
    def step(self, key, state, action, params=None):
        observation, inner, reward, done, info = self._env.step(key, state[0], action, params)
        total, length = state[1] + reward, state[2] + 1
        info["returned_episode"] = done
        return observation, (inner, total * (1 - done), length * (1 - done)), reward, done, info


class TransformReward(Wrapper):
    def __init__(self, env, transform_reward):
        super().__init__(env)
        self.transform_reward = transform_reward

    def step(self, key, state, action, params=None):
        observation, state, reward, done, info = self._env.step(key, state, action, params)
        return observation, state, self.transform_reward(reward), done, info


class VecEnv(Wrapper):
    def __init__(self, env):
        super().__init__(env)
        self.reset = jax.vmap(self._env.reset, in_axes=(0, None))
        self.step = jax.vmap(self._env.step, in_axes=(0, 0, 0, None))


@pytest.fixture
def gymnax():
    return pytest.importorskip("gymnax")


def test_gymnaxs_own_objects_are_those_of_their_names(gymnax):
    env, params = gymnax.make("CartPole-v1")
    of_name = played(as_environment("gymnax/CartPole-v1"), 40)[0][2]
    for given in (env, (env, params)):
        environment = as_environment(given)
        assert type(environment) is GymnaxEnvironment
        jax.tree.map(np.testing.assert_array_equal, played(environment, 40)[0][2], of_name)


def test_gymnaxs_parameters_are_those_that_are_given(gymnax):
    env, params = gymnax.make("MountainCar-v0")
    (_, _, shown), _ = played(as_environment((env, params.replace(max_steps_in_episode=7))), 20)
    np.testing.assert_array_equal(np.flatnonzero(shown.truncated), [6, 14])


def test_wrappers_of_purejaxrl_and_of_gymnax_do_what_they_do(gymnax):
    wrappers = pytest.importorskip("gymnax.wrappers.purerl")
    legacy = pytest.importorskip("gymnax.wrappers.compat").LegacyStepAPIWrapper
    env, _ = gymnax.make("Breakout-MinAtar")
    (_, _, plain), actions = played(as_environment(env), 60)
    assert np.any(plain.discount == 0)
    for wrapped in (
        LogWrapper(FlattenObservationWrapper(env)),
        wrappers.LogWrapper(wrappers.FlattenObservationWrapper(env)),
        LogWrapper(legacy(wrappers.FlattenObservationWrapper(env))),
    ):
        environment = as_environment(wrapped)
        assert environment.observation_shape == (400,) and environment.num_actions == 3
        (_, _, shown), own_actions = played(environment, 60)
        np.testing.assert_array_equal(actions, own_actions)
        np.testing.assert_array_equal(shown.observation, plain.observation.reshape(60, 400))
        for name in ("reward", "discount", "truncated", "is_first"):
            np.testing.assert_array_equal(getattr(shown, name), getattr(plain, name))
    (_, _, shown), _ = played(as_environment(TransformReward(env, lambda reward: 5 * reward)), 60)
    np.testing.assert_array_equal(shown.reward, 5 * plain.reward)
    assert np.any(shown.reward)


def test_an_end_by_time_is_a_truncation_in_wrappers_too(gymnax):
    env, params = gymnax.make("MountainCar-v0")
    (_, after, shown), _ = played(as_environment((LogWrapper(env), params.replace(max_steps_in_episode=5))), 12)
    np.testing.assert_array_equal(np.flatnonzero(shown.truncated), [4, 10])
    assert np.all(shown.discount == 1)


def test_a_wrapper_that_batches_is_refused(gymnax):
    with pytest.raises(TypeError, match="^VecEnv is a wrapper that batches environments, expected none") as error:
        as_environment(VecEnv(gymnax.make("CartPole-v1")[0]))
    assert "\n" not in str(error.value)


def test_navix_and_xminigrid_are_taken():
    navix = pytest.importorskip("navix")
    env = navix.make("Navix-Empty-5x5-v0", max_steps=4)
    environment = as_environment(env)
    assert type(environment) is NavixEnvironment and environment.observation_shape == (5, 5, 3)
    (_, _, shown), _ = played(environment, 9)
    assert shown.observation.dtype == np.float32 and shown.observation.max() <= 1
    pictures = as_environment(navix.make("Navix-Empty-5x5-v0", observation_fn=navix.observations.rgb))
    assert pictures.observation_dtype == np.uint8 and len(pictures.observation_shape) == 3
    (_, _, shown), _ = played(pictures, 3)
    assert shown.observation.max() > 100
    assert type(as_environment(LogWrapper(env))) is NavixEnvironment
    with pytest.raises(TypeError, match="in a TransformReward, expected no wrappers but NavixGymnaxWrapper"):
        as_environment(TransformReward(env, abs))


def test_an_environment_of_xminigrid_keeps_its_task():
    xminigrid = pytest.importorskip("xminigrid")
    from xminigrid.wrappers import DirectionObservationWrapper, GymAutoResetWrapper, RulesAndGoalsObservationWrapper

    from agents.environments.xminigrid import trivial_task

    env, params = xminigrid.make("XLand-MiniGrid-R1-9x9")
    task = trivial_task(jax.random.key(3))
    environment = as_environment((GymAutoResetWrapper(DirectionObservationWrapper(env)), params.replace(ruleset=task)))
    assert type(environment) is XLandEnvironment
    for key in jax.random.split(jax.random.key(0), 2):
        np.testing.assert_array_equal(environment.initial_state(key).time_step.state.goal_encoding, task.goal)
    assert as_environment(xminigrid.make("MiniGrid-Empty-5x5")).num_actions == 6
    with pytest.raises(TypeError, match=r"alone, expected it with its parameters: \(environment, params\)"):
        as_environment(env)
    with pytest.raises(TypeError, match="in a RulesAndGoalsObservationWrapper, expected no wrappers but GymAutoReset"):
        as_environment((RulesAndGoalsObservationWrapper(env), params))


class Scaled(dm_env.Environment):
    """A wrapper as those of `dm_env` are: it doubles what is paid."""

    def __init__(self, environment):
        self._env = environment

    def __getattr__(self, name):
        return getattr(self._env, name)

    def reset(self):
        return self._env.reset()

    def step(self, action):
        step = self._env.step(action)
        return step._replace(reward=step.reward and 2 * step.reward)

    def observation_spec(self):
        return self._env.observation_spec()

    def action_spec(self):
        return self._env.action_spec()


def test_wrappers_of_dm_env_bsuite_and_gymnasium_show_what_they_show():
    batch = as_environment(Scaled(DmEnv(Catch(rows=2), 0)))
    batch.reset()
    assert type(batch) is DmEnvBatch and abs(float(batch.step(np.zeros(1, np.int32)).reward[0])) == 2.0

    from bsuite.utils.wrappers import ImageObservation, RewardScale

    from agents.environments.bsuite import make_bsuite

    catch = make_bsuite("catch/0", 0)
    assert as_environment(RewardScale(catch, 2.0)).observation_shape == (10, 5)
    assert as_environment(ImageObservation(catch, (12, 12, 3))).observation_shape == (12, 12, 3)

    wrapped = gymnasium.wrappers.FrameStackObservation(gymnasium.make("CartPole-v1"), 3)
    environment = as_environment(wrapped)
    assert type(environment) is GymnasiumEnvironment and environment.observation_shape == (3, 4)
    vector = gymnasium.wrappers.vector.RecordEpisodeStatistics(gymnasium.make_vec("CartPole-v1", 2))
    assert as_environment(vector).num_envs == 2


class Kept(gymnasium.Env):
    """An environment that keeps another one where wrappers of pure ones keep theirs."""

    def __init__(self, env):
        self._env = env
        self.observation_space, self.action_space = gymnasium.spaces.Box(0, 1, (2,)), gymnasium.spaces.Discrete(2)


class KeptOnHost(DmEnvBatch):
    def __init__(self, env):
        super().__init__([DmEnv(Catch(), 0)])
        self._env = env


def test_what_is_on_the_host_is_that_whatever_is_in_it(gymnax):
    from gymnax.wrappers import GymnaxToDmEnvWrapper, GymnaxToGymWrapper, GymnaxToVectorGymWrapper

    env, _ = gymnax.make("CartPole-v1")
    assert type(as_environment(GymnaxToGymWrapper(env))) is GymnasiumEnvironment
    assert as_environment(Kept(env)).observation_shape == (2,)
    assert as_environment(kept := KeptOnHost(env)) is kept
    dm = DmEnv(Catch(), 0)
    dm._env = env
    assert type(as_environment(dm)) is type(as_environment((dm, dm))) is DmEnvBatch
    with pytest.raises(ValueError, match="has the autoreset_mode None, expected AutoresetMode.NEXT_STEP or SAME_STEP"):
        as_environment(GymnaxToVectorGymWrapper(env, 2))
    with pytest.raises(TypeError, match="^wrappers GymnaxToDmEnvWrapper of CartPole-v1 do not work: ") as error:
        as_environment(GymnaxToDmEnvWrapper(env))
    assert "\n" not in str(error.value)


def test_what_envpool_makes_is_taken():
    envpool = pytest.importorskip("envpool")
    with warnings.catch_warnings(action="ignore"):
        made = envpool.make("CartPole-v1", env_type="gymnasium", num_envs=3)
        environment = as_environment(made)
        assert type(environment) is EnvpoolEnvironment and environment.num_envs == 3
        assert environment.reset().observation.shape == (3, 4)
        assert environment.step(np.zeros(3, np.int32)).reward.shape == (3,)
        for kind, options, message in (
            ("dm", dict(num_envs=2), 'has the env_type "dm", expected env_type="gymnasium"'),
            ("gymnasium", dict(num_envs=4, batch_size=2), "has a batch_size below num_envs, expected the same"),
        ):
            with pytest.raises(ValueError, match=message):
                as_environment(envpool.make("CartPole-v1", env_type=kind, **options))


def test_a_name_is_what_it_is_the_name_of():
    one, other = live("toy/catch/4x3"), live(Catch(4, 3))
    np.testing.assert_array_equal(one.metrics["return"], other.metrics["return"])
    jax.tree.map(np.testing.assert_array_equal, one.params, other.params)
    assert frodo.make_environment("toy/catch") == Catch()


def test_a_name_on_the_host_has_the_batch_of_the_settings_and_seeds_of_the_key(monkeypatch):
    made = []
    make = frodo.make_environment

    def noted(name, num_envs=1, seed=0):
        made.append((name, num_envs, seed))
        return make(name, num_envs, seed)

    monkeypatch.setattr("agents.environments.adapt.make_environment", noted)
    monkeypatch.setattr("frodo.regimes.online._regime", lambda *_: None)
    monkeypatch.setattr("frodo.regimes.online._run", lambda *_: None)
    live("bsuite/catch/0")
    live("bsuite/catch/0")
    frodo.discover_online("bsuite/catch/0", "impala", num_steps=64, key=jax.random.key(1), unroll=2)
    names, sizes, seeds = zip(*made, strict=True)
    assert set(names) == {"bsuite/catch/0"} and sizes == (2, 2, 32)
    assert seeds[0] == seeds[1] != seeds[2] and min(seeds) >= 0


def test_environments_of_a_population_and_of_tests_are_taken_by_name(monkeypatch):
    seen = []

    def stop(config, environments, key):
        seen.extend(environments)
        raise InterruptedError

    monkeypatch.setattr("frodo.regimes.discovery.Population", stop)
    environments = ["toy/catch", Catch(4, 3), "bsuite/catch/0", [DmEnv(Catch(), 0)]]
    with pytest.raises(InterruptedError):
        frodo.discover(environments, "frodo", num_meta_steps=1, key=jax.random.key(0), batch_size=3)
    assert seen[:2] == [Catch(), Catch(4, 3)] and [x.num_envs for x in seen[2:]] == [3, 1]
    with pytest.raises(ValueError, match="^environments is 'toy/catch', expected a list of environments"):
        frodo.discover("toy/catch", "frodo", num_meta_steps=1, key=jax.random.key(0))
    named, own = (frodo.held_out_tasks(room, 2) for room in ("toy/rule_room/main", RuleRoom("main")))
    assert jax.tree.structure(named) == jax.tree.structure(own)
    with pytest.raises(TypeError, match="^environment is a agents.environments.dm_env.DmEnvBatch, expected a pure one"):
        as_pure_environment("bsuite/catch/0")


def test_a_class_and_a_list_of_gymnasiums_are_told_what_to_be():
    for kind in (Catch, Scaled, gymnasium.Env):
        with pytest.raises(TypeError, match=r"^environment is the class (\w+), expected one of it: \1\(\)$"):
            live(kind)
    for several in ([gymnasium.make("CartPole-v1")] * 2, (gymnasium.make("CartPole-v1"),) * 2):
        with pytest.raises(TypeError, match="of gymnasium.Env, expected a gymnasium.vector.VectorEnv, such as SyncVec"):
            live(several)


@pytest.mark.parametrize(
    ("shown", "message"),
    [
        (np.full((3, 3), 300), "shows int64, expected uint8 as in its spec"),
        (np.zeros((3, 3), np.float32), "shows float32, expected uint8 as in its spec"),
        (np.zeros((3, 4), np.uint8), r"shows the shape \[3, 4\], expected \[3, 3\] as in its spec"),
    ],
)
def test_a_dm_env_shows_what_its_spec_says(shown, message):
    class Liar(Scaled):
        def observation_spec(self):
            return dm_env.specs.Array((3, 3), np.uint8)

        def reset(self):
            return dm_env.restart(shown)

    with pytest.raises(ValueError, match=f"^environment 'Liar' {message}$"):
        as_environment(Liar(DmEnv(Catch(), 0))).reset()


def test_messages_say_how_an_environment_is_written():
    for given, kind in (("toy/cach", ValueError), (3, TypeError), (object(), TypeError), ((1, 2), TypeError)):
        with pytest.raises(kind, match="frodo.Environment.*docs/start/own_environment.md") as error:
            frodo.discover_online(given, "impala", num_steps=64, key=jax.random.key(0))
        assert "\n" not in str(error.value)
