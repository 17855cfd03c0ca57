"""Observations of every kind through every adapter: what is shown as float32, and what is refused, with a remedy."""

import dm_env
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs
from gymnasium import spaces

import frodo
from agents.environments import bsuite as own_bsuite
from agents.environments.adapt import as_environment
from agents.environments.names import make_environment

KINDS = (np.bool_, np.int64, np.int8, np.float64, np.uint8)
SHAPES = ((), (2,), (2, 3))


class OfDmEnv(dm_env.Environment):
    """Shows ones of a kind; an episode has a single step."""

    def __init__(self, spec):
        self._spec = spec

    def reset(self):
        return dm_env.restart(self._shown())

    def step(self, action):
        return dm_env.termination(1.0, self._shown())

    def _shown(self):
        return np.ones(self._spec.shape, self._spec.dtype)

    def observation_spec(self):
        return self._spec

    def action_spec(self):
        return specs.DiscreteArray(2)


class OfGymnasium(gymnasium.Env):
    def __init__(self, space):
        self.observation_space, self.action_space = space, spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return self._shown(), {}

    def step(self, action):
        return self._shown(), 1.0, True, False, {}

    def _shown(self):
        return np.ones(self.observation_space.shape, self.observation_space.dtype)


class Pure(frodo.Environment):
    num_actions = 2

    def __init__(self, observation):
        self._observation = observation
        self.observation_shape = getattr(observation, "shape", ())

    def initial_state(self, key):
        return key

    def restart(self, state):
        return state

    def transition(self, state, action):
        return state, jnp.ones(()), jnp.ones((), bool), jnp.zeros((), bool)

    def observe(self, state):
        return jax.tree.map(jnp.asarray, self._observation)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_shown_is_uint8_or_float32(kind, shape):
    expected = np.uint8 if kind is np.uint8 else np.float32
    box = spaces.Box(0, 1, shape, kind) if kind is not np.bool_ else spaces.MultiBinary(shape or 1)
    for given in (OfDmEnv(specs.Array(shape, kind)), OfGymnasium(box)):
        environment = as_environment(given)
        assert environment.observation_dtype == expected
        for step in (environment.reset(), environment.step(np.zeros(1, np.int32))):
            assert step.observation.dtype == expected
            assert step.observation.shape == (1, *environment.observation_shape)
            assert np.all(step.observation == 1)


@pytest.mark.parametrize(
    "environment",
    [
        OfDmEnv(specs.Array((), np.int32)),
        Pure(np.int32(1)),
        Pure(np.ones((2, 3), bool)),
        Pure(np.ones(4, np.uint8)),
    ],
    ids=["0-d, dm_env", "0-d, pure", "bool", "uint8"],
)
def test_agents_live_on_what_is_shown(environment):
    small = dict(batch_size=1, unroll=2, network=frodo.NetworkConfig("mlp", (4,)))
    result = frodo.discover_online(environment, "impala", num_steps=8, key=jax.random.key(0), **small)
    assert np.all(result.metrics["return"] == 1)


PARTS = dict(a=np.ones(2, np.float32), b=np.ones(3, np.float32))
BOXES = {name: spaces.Box(0, 1, x.shape) for name, x in PARTS.items()}


@pytest.mark.parametrize(
    ("environment", "remedy"),
    [
        (OfGymnasium(spaces.Dict(BOXES)), "gymnasium.wrappers.FlattenObservation makes it one array"),
        (OfGymnasium(spaces.Tuple(tuple(BOXES.values()))), "gymnasium.wrappers.FlattenObservation makes it one array"),
        (gymnasium.make("FrozenLake-v1"), "gymnasium.wrappers.FlattenObservation makes it one-hot"),
        ("envpool/FrozenLake-v1", "gymnasium.wrappers.FlattenObservation makes it one-hot"),
        (OfDmEnv({name: specs.Array(x.shape, x.dtype) for name, x in PARTS.items()}), "np.concatenate of the parts"),
        (OfDmEnv(specs.DiscreteArray(16)), r"one-hot, np.eye\(16, dtype=np.float32\)\[observation\]"),
        ("gymnax/FrozenLake-misc", r"one-hot, jax.nn.one_hot\(observation, 16\)"),
        (Pure(PARTS), "observe returns a dict, expected a single array, such as jnp.concatenate of the parts"),
    ],
    ids=["dict", "tuple", "FrozenLake", "envpool", "dict, dm_env", "number, dm_env", "gymnax", "dict, pure"],
)
def test_what_is_no_single_array_is_refused_with_a_remedy(environment, remedy):
    if environment == "envpool/FrozenLake-v1":
        pytest.importorskip("envpool")
    if environment == "gymnax/FrozenLake-misc":
        pytest.importorskip("gymnax")
    with pytest.raises(ValueError, match=f"^environment '.*' is not supported: .*{remedy}") as error:
        as_environment(environment)
    assert "\n" not in str(error.value)


def test_the_remedies_are_right():
    flat = as_environment(gymnasium.wrappers.FlattenObservation(gymnasium.make("FrozenLake-v1")))
    assert flat.observation_shape == (16,) and flat.reset().observation.sum() == 1
    envs = gymnasium.make_vec("FrozenLake-v1", 2, vectorization_mode="sync")
    flat = as_environment(gymnasium.wrappers.vector.FlattenObservation(envs))
    assert flat.observation_shape == (16,) and np.all(flat.reset().observation.sum(axis=1) == 1)
    one = as_environment(gymnasium.wrappers.FlattenObservation(OfGymnasium(spaces.Dict(BOXES))))
    assert one.observation_shape == (5,)


def test_a_shape_that_is_not_the_one_observed_is_named():
    environment = Pure(np.ones(3, np.float32))
    environment.observation_shape = (4,)
    with pytest.raises(
        ValueError, match=r"'Pure' observes arrays of the shape \(3,\), expected observation_shape, \(4,\)"
    ):
        as_environment(environment)


@pytest.mark.parametrize("name", ["bsuite/mnist/0", "bsuite/mnist_noise/3", "gymnax/MNISTBandit-bsuite"])
def test_mnist_without_its_files_is_one_line_and_nothing_is_downloaded(name, tmp_path, monkeypatch):
    if name.startswith("gymnax"):
        pytest.importorskip("gymnax")
    monkeypatch.setattr(own_bsuite, "MNIST", tmp_path / "mnist")
    monkeypatch.setattr("urllib.request.urlopen", lambda *args, **kwargs: pytest.fail("downloads"))
    monkeypatch.setattr("socket.getaddrinfo", lambda *args, **kwargs: pytest.fail("downloads"))
    with pytest.raises(
        ValueError, match=f"^{name} needs the file .*/mnist/train-images-idx3-ubyte.gz, which is missing: "
    ):
        make_environment(name)
    assert not (tmp_path / "mnist").exists()


def test_a_program_ends_with_that_line(start, tmp_path, monkeypatch):
    monkeypatch.setattr(own_bsuite, "MNIST", tmp_path / "mnist")
    ended = start("experiments.online", "--env=bsuite/mnist/0", "--rule=impala", f"--out={tmp_path / 'run'}")
    assert ended.returncode == 2 and "Traceback" not in ended.stderr
    line = ended.stderr.strip()
    assert "\n" not in line and "train-images-idx3-ubyte.gz, which is missing: download it from https://" in line
    assert not (tmp_path / "run").exists()
