"""Pictures of any library: their dtype, the torso that sees them, which axis is that of channels, and what is said."""

import dm_env
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs
from gymnasium import spaces

import frodo
from agents.environments.adapt import as_environment
from agents.networks.agent import NetworkConfig, make_agent
from agents.networks.torsos import layout_of, to_patches
from agents.types import PredictionSpec
from frodo.regimes import discovery
from frodo.settings import presets
from frodo.settings.observations import note_sizes
from toy_envs.base import DmEnv
from toy_envs.catch import Catch
from toy_envs.trials import Trials

SPEC = {"policy": PredictionSpec((2,))}


class Dots(frodo.Environment):
    """A picture with a dot on the side that pays, uint8 from 0 to 255, [height, width, channels]; one step each."""

    num_actions = 2

    def __init__(self, shape=(8, 8, 3), dtype=jnp.uint8, horizon=None):
        self.observation_shape, self._dtype, self.horizon = shape, dtype, horizon

    def initial_state(self, key):
        return self.restart((key, jnp.zeros((), jnp.int32)))

    def restart(self, state):
        key, draw = jax.random.split(state[0])
        return key, jax.random.randint(draw, (), 0, 2, jnp.int32)

    def transition(self, state, action):
        return state, jnp.where(action == state[1], 1.0, 0.0), jnp.ones((), bool), jnp.zeros((), bool)

    def observe(self, state):
        is_right = jnp.arange(self.observation_shape[1]) >= self.observation_shape[1] // 2
        lit = (is_right == state[1])[None, :, None]
        return jnp.broadcast_to(jnp.where(lit, 255, 0), self.observation_shape).astype(self._dtype)


class DotsOfGymnasium(gymnasium.Env):
    def __init__(self):
        self._environment = DmEnv(Dots(), 0)
        self.observation_space, self.action_space = spaces.Box(0, 255, (8, 8, 3), np.uint8), spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return self._environment.reset().observation, {}

    def step(self, action):
        step = self._environment.step(action)
        return step.observation, step.reward, True, False, {}


@pytest.mark.parametrize(
    "make",
    [Dots, lambda: [DmEnv(Dots(), seed) for seed in range(4)], DotsOfGymnasium],
    ids=["pure", "dm_env", "gymnasium"],
)
def test_pictures_stay_uint8_and_get_the_torso_for_pictures(make, capfd):
    environment = as_environment(make())
    assert environment.observation_dtype == np.uint8 and environment.observation_shape == (8, 8, 3)
    size = {} if isinstance(environment, frodo.HostEnvironment) else dict(batch_size=4)
    result = frodo.discover_online(make(), "impala", num_steps=64, key=jax.random.key(0), unroll=2, **size)
    assert result.learner.config.network.torso == "conv"
    said = capfd.readouterr().err
    assert "observations: pictures of 8 x 8 with 3 channels (last axis): network.layout\n" in said
    assert "not scaled" not in said and "divided by 255" not in said


def test_an_adapter_shows_the_numbers_that_the_environment_does():
    batch = as_environment([DmEnv(Dots(), 0)])
    shown = batch.reset().observation
    assert shown.dtype == np.uint8 and set(np.unique(shown)) == {0, 255}
    np.testing.assert_array_equal(shown[0], DmEnv(Dots(), 0).reset().observation)


def test_the_torso_scales_and_nothing_else():
    """A picture and the same picture divided by 255 are the same to a network, whichever torso it has."""
    picture = np.random.default_rng(0).integers(0, 256, (2, 8, 8, 3)).astype(np.uint8)
    for torso in ("mlp", "conv", "resnet"):
        agent = make_agent(NetworkConfig(torso, (4,), channels=(2,)), SPEC, 2)
        of_bytes, of_floats = (agent.prepare(jnp.asarray(x)) for x in (picture, picture.astype(np.float32) / 255))
        params = agent.init(jax.random.key(0), of_bytes)
        first = jnp.ones(2, bool)
        one, other = (agent.step(params, x, first, ())[0]["policy"] for x in (of_bytes, of_floats))
        np.testing.assert_allclose(one, other, rtol=1e-5)


def test_trials_of_pictures_show_them_from_0_to_1():
    trials = Trials(Dots(), 2)
    observation = trials.observe(trials.initial_state(jax.random.key(0)))
    assert observation.dtype == jnp.float32 and float(jnp.max(observation)) == 1.0


@pytest.mark.parametrize(
    ("shape", "layout"),
    [
        ((4, 84, 84), "first"),
        ((3, 64, 64), "first"),
        ((3, 72, 96), "first"),
        ((84, 84, 3), "last"),
        ((210, 160, 3), "last"),
        ((10, 10, 4), "last"),  # 10 is small enough, but the largest
        ((8, 8, 3), "last"),
        ((5, 7, 9), "first"),  # 9 is the largest
        ((1, 28, 28), "first"),
        ((28, 28, 1), "last"),
        ((9, 16, 9), None),  # both can
        ((4, 8, 4), None),
        ((5, 9, 3), None),
        ((3, 12, 12), "first"),
        ((12, 14, 12), None),
        ((64, 64, 64), None),  # neither can be that of channels
        ((20, 64, 64), None),
        ((6, 7, 7), "first"),
        ((9, 20, 20), "first"),
        ((20, 20, 9), "last"),
        ((7, 5, 7), None),
    ],
)
def test_the_layout_is_decided_by_one_rule(shape, layout):
    if layout:
        assert layout_of(shape) == layout
    else:
        with pytest.raises(ValueError, match=r'channels first or last.*network.layout="first" or "last"$') as error:
            layout_of(shape)
        assert str(shape) in str(error.value) and "\n" not in str(error.value)
    for given in ("first", "last"):
        assert layout_of(shape, given) == given


@pytest.mark.parametrize("torso", ["conv", "resnet"])
def test_channels_first_and_last_are_the_same_picture_to_a_torso(torso):
    first = np.random.default_rng(0).integers(0, 256, (2, 3, 20, 24)).astype(np.uint8)
    last = np.moveaxis(first, 1, -1)
    prepare = lambda layout, x: make_agent(NetworkConfig(torso, (4,), layout=layout), SPEC, 2).prepare(jnp.asarray(x))
    expected = to_patches(jnp.asarray(first)) if torso == "conv" else last
    for layout, frames in (("", first), ("", last), ("first", first), ("last", last)):
        np.testing.assert_array_equal(prepare(layout, frames), expected)
    assert prepare("first", last).shape != expected.shape


def test_a_layout_that_is_not_known_is_asked_for_before_anything_is_compiled():
    with pytest.raises(ValueError, match=r"\(4, 8, 4\) may have their channels first or last"):
        frodo.discover_online(Dots((4, 8, 4)), "impala", num_steps=64, key=jax.random.key(0))
    settings = dict(network=NetworkConfig("conv", (4,), layout="last"), batch_size=2, unroll=2)
    frodo.discover_online(Dots((4, 8, 4)), "impala", num_steps=64, key=jax.random.key(0), **settings)


def test_a_bad_layout_is_one_line():
    with pytest.raises(ValueError, match='network.layout is \'middle\', expected "first", "last", or ""'):
        NetworkConfig("conv", layout="middle").validate()
    with pytest.raises(ValueError, match="network.layout is 'last', expected \"\" for the torso 'mlp'"):
        NetworkConfig("mlp", layout="last").validate()


def test_which_observations_are_pictures():
    for shape, dtype, torso in (
        ((8, 8, 3), np.uint8, "conv"),
        ((128,), np.uint8, "mlp"),
        ((8, 8, 3), np.float32, "mlp"),
    ):
        assert presets.for_observations(shape, dtype, "impala").network.torso == torso


@pytest.mark.parametrize(
    ("observation", "said"),
    [
        (np.float32([[0, 255]]), "numbers up to 255, not scaled: show pictures as uint8, divide others to about 1"),
        (np.int32([[-300, 2]]), "numbers up to 300, not scaled"),
        (np.uint8([[0, 1]]), "uint8 up to 1, divided by 255: if they are no pictures, show float32 or bool"),
        (np.uint8([[0, 255]]), ""),
        (np.uint8([[0, 0]]), ""),
        (np.float32([[0, 3]]), ""),
        (np.array([[False, True]]), ""),
    ],
)
def test_sizes_that_a_network_hardly_learns_from_are_said(observation, said, capfd):
    note_sizes(observation)
    assert said in capfd.readouterr().err if said else not capfd.readouterr().err


def test_large_numbers_are_said_where_a_run_begins(capfd):
    large = Dots(dtype=jnp.float32)
    for environment in (large, [DmEnv(large, 0), DmEnv(large, 1)]):
        frodo.discover_online(environment, "impala", num_steps=64, key=jax.random.key(0), batch_size=2, unroll=2)
        assert capfd.readouterr().err.count("observations: numbers up to 255, not scaled") == 1


@pytest.mark.parametrize(("others", "torso"), [([], "conv"), ([Catch()], "mlp")])
def test_a_population_that_sees_pictures_alone_has_the_torso_for_pictures(others, torso, monkeypatch, capfd):
    def stop(config, environments, key):
        assert config.network.torso == torso
        raise InterruptedError

    monkeypatch.setattr(discovery, "Population", stop)
    with pytest.raises(InterruptedError):
        frodo.discover([Dots(), *others], "frodo", num_meta_steps=1, key=jax.random.key(0))
    assert ("pictures of 8 x 8 with 3 channels (last axis)" in capfd.readouterr().err) == (torso == "conv")


class Shown(dm_env.Environment):
    """Shows what it is given, by a spec that says another dtype."""

    def __init__(self, observation, dtype):
        self._observation, self._dtype = observation, dtype

    def reset(self):
        return dm_env.restart(self._observation)

    def step(self, action):
        return dm_env.termination(0.0, self._observation)

    def observation_spec(self):
        return specs.Array(self._observation.shape, self._dtype)

    def action_spec(self):
        return specs.DiscreteArray(2)


def test_floats_are_not_cut_to_uint8():
    with pytest.raises(ValueError, match="'Shown' shows float64, expected uint8 as in its spec"):
        as_environment(Shown(np.full((2, 2, 3), 0.5), np.uint8)).reset()


def test_dtypes_in_a_batch_are_one():
    bytes_, floats = (Shown(np.zeros(3, dtype), dtype) for dtype in (np.uint8, np.float32))
    message = r"environments\[1\] of 'Shown' has observations \(3,\) float32 and 2 actions, expected .* \(3,\) uint8"
    with pytest.raises(ValueError, match=message):
        as_environment([bytes_, floats])
