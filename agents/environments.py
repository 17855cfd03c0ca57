"""One adapter to the real suites: envpool (Atari-57 among them), bsuite and whatever else speaks dm_env.

`make_environment` turns a name into an environment. The toys are pure functions, which the actor batches by `jax.vmap`;
all others are batches on the host, a `HostEnvironment`. Both show a `TimeStep`, and what happens at an episode's end is
defined in `toy_envs/base.py`: host environments reset on the *next* step.
"""

import abc
import csv
import difflib
import functools
import inspect
import os
import pathlib
import warnings
from collections.abc import Sequence
from typing import Any

import dm_env
import numpy as np
from dm_env import specs

from toy_envs import names
from toy_envs.base import Environment, TimeStep

# Half of the cores step environments, the others are the learner's. (Pong, 30 environments: a second thread costs 3
# to 5 % more CPU time and takes 40 % less wall time.)
ENVPOOL_THREADS = max(1, (os.cpu_count() or 1) // 2)

# 108,000 frames an episode. The true reward and the true end of a game: clipping is up to the learner.
ATARI_PREPROCESSING = dict(
    stack_num=4,
    frame_skip=4,
    img_height=84,
    img_width=84,
    gray_scale=True,
    noop_max=30,
    max_episode_steps=27_000,
    episodic_life=False,
    reward_clip=False,
    use_fire_reset=False,
    repeat_action_probability=0.0,
    full_action_space=False,
)

_FORMS = {
    "toy": "toy/<name>",
    "bsuite": "bsuite/<experiment>/<index>",
    "envpool": "envpool/<Id>",
    "atari": "atari/<Game>",
}


class HostEnvironment(abc.ABC):
    """A batch of environments on the host, with next-step reset. Arrays are NumPy's, B is `num_envs`."""

    num_envs: int
    observation_shape: tuple[int, ...]  # of one environment
    observation_dtype: np.dtype
    num_actions: int
    is_complete = False  # whether it has shown all that it was made for: the run ends then

    @abc.abstractmethod
    def reset(self) -> TimeStep:
        """Start a new episode in every environment. All fields are [B, ...]; nothing is valid yet."""

    @abc.abstractmethod
    def step(self, actions: np.ndarray) -> TimeStep:
        """Take one step with actions [B] int32; where an episode ended the step before, start the next one."""

    @abc.abstractmethod
    def close(self) -> None:
        """Free what the environments hold."""


class EnvpoolEnvironment(HostEnvironment):
    """An envpool environment. Observations come as envpool has them: Atari is [B, 4, 84, 84] uint8, channels first.

    Args:
      env_id: an id that envpool lists, for example 'CartPole-v1'.
      num_envs: B.
      seed: different seeds share no environment seed.
      **options: of `envpool.make`, for example `max_episode_steps`.
    Raises:
      ValueError: if there is more than one player, the observation is not a single array, or actions are not discrete.
      ImportError: if envpool misses a system library; Procgen needs the runtime of Qt 5.
    """

    def __init__(self, env_id: str, num_envs: int, seed: int, **options: Any):
        import envpool
        from gymnasium import spaces

        with warnings.catch_warnings():  # gymnasium on the precision of the spaces' bounds
            warnings.simplefilter("ignore")
            spec: Any = envpool.make_spec(env_id)  # to refuse an environment before it is made
            observation, action = spec.gymnasium_observation_space, spec.gymnasium_action_space
            is_single_array = isinstance(observation, spaces.Box) and spec.config.max_num_players == 1
            _check_supported(
                f"envpool/{env_id}", is_single_array, isinstance(action, spaces.Discrete), observation, action
            )
            seeds = _environment_seeds(seed, num_envs)
            options = dict(num_envs=num_envs, seed=seeds, num_threads=ENVPOOL_THREADS) | options
            self._envpool: Any = envpool.make(env_id, env_type="gymnasium", **options)
            observation, action = self._envpool.observation_space, self._envpool.action_space  # made once, here
        self.num_envs = num_envs
        self.observation_shape, self.observation_dtype = observation.shape, observation.dtype
        self.num_actions = int(action.n)
        self._is_over = np.zeros(num_envs, bool)

    def reset(self) -> TimeStep:
        observation, _ = self._envpool.reset()
        self._is_over = np.zeros(self.num_envs, bool)
        return TimeStep(
            observation=observation,
            reward=np.zeros(self.num_envs, np.float32),
            discount=np.ones(self.num_envs, np.float32),
            truncated=np.zeros(self.num_envs, bool),
            valid=np.zeros(self.num_envs, bool),
            is_first=np.ones(self.num_envs, bool),
        )

    def step(self, actions: np.ndarray) -> TimeStep:
        # envpool never sets both, and it resets by itself, with a reward of 0.
        observation, reward, terminated, truncated, _ = self._envpool.step(actions)
        is_first, self._is_over = self._is_over, terminated | truncated
        discount = (~terminated).astype(np.float32)
        return TimeStep(observation, reward, discount, truncated, valid=~is_first, is_first=is_first)

    def close(self) -> None:
        self._envpool.close()


class DmEnvBatch(HostEnvironment):
    """A batch of `dm_env` environments of one kind, stepped in turn. Observations are cast to float32.

    An episode that ends with a discount above 0 was truncated. Other discounts of the environments are ignored.

    Args:
      environments: B of them, with the same specs and each with its own randomness.
      name: of the environment, for error messages.
    Raises:
      ValueError: if the observation is not a single array, or actions are not discrete.
    """

    observation_dtype = np.dtype(np.float32)

    def __init__(self, environments: Sequence[dm_env.Environment], name: str):
        observation, action = environments[0].observation_spec(), environments[0].action_spec()
        is_single_array = isinstance(observation, specs.Array) and observation.dtype.kind in "biuf"
        _check_supported(name, is_single_array, isinstance(action, specs.DiscreteArray), observation, action)
        self.num_envs = len(environments)
        self.observation_shape = observation.shape
        self.num_actions = int(action.num_values)
        self._environments = environments

    def reset(self) -> TimeStep:
        return _stack([environment.reset() for environment in self._environments])

    def step(self, actions: np.ndarray) -> TimeStep:
        pairs = zip(self._environments, actions.tolist(), strict=True)
        return _stack([environment.step(action) for environment, action in pairs])

    def close(self) -> None:
        for environment in self._environments:
            environment.close()


def make_environment(name: str, num_envs: int, seed: int) -> Environment | HostEnvironment:
    """Make an environment by its name.

    - `toy/<name>`, as `toy/catch` (`toy_envs.names`): one pure environment; the caller batches and seeds it.
    - `bsuite/<experiment>/<index>`, as `bsuite/catch/0`. Of these, `deep_sea_stochastic` takes no seed and differs from
      run to run, and `mnist` with its variants downloads its data.
    - `envpool/<Id>`: any id of envpool's, with its own defaults.
    - `atari/<Game>`: one of Atari-57, as `atari/MsPacman` or `atari/ms_pacman`, with `ATARI_PREPROCESSING`.

    Args:
      name: as above.
      num_envs: how many run in the batch.
      seed: non-negative; every environment of the batch gets its own, derived from it.
    Raises:
      ValueError: if there is no such environment, or `num_envs` is below 1.
    """
    if num_envs < 1:
        raise ValueError(f"num_envs is {num_envs}, expected at least 1")
    suite, _, rest = name.partition("/")
    if suite == "toy" and (toy := names.make(rest)):
        return toy
    if suite == "bsuite" and rest in _bsuite_ids():
        environments = [make_bsuite(rest, environment_seed) for environment_seed in _environment_seeds(seed, num_envs)]
        return DmEnvBatch(environments, name)
    if suite == "envpool" and rest in _envpool_ids():
        return EnvpoolEnvironment(rest, num_envs, seed)
    if suite == "atari" and _snake_case(rest) in atari57_scores():
        return EnvpoolEnvironment(_atari_id(_snake_case(rest)), num_envs, seed, **ATARI_PREPROCESSING)
    raise _unknown_name(name)


@functools.cache
def atari57_scores() -> dict[str, tuple[float, float]]:
    """Return the mean return of a random and of a human player for each Atari-57 game, by its snake_case name.

    Source: DeepMind's DQN Zoo (`dqn_zoo/atari_data.py`). Episodes start with 1 to 30 no-ops, of 108,000 frames at most.
    """
    with open(pathlib.Path(__file__).with_name("atari57_scores.csv"), newline="") as file:
        return {row["game"]: (float(row["random"]), float(row["human"])) for row in csv.DictReader(file)}


def human_normalised(game: str, episode_return: float) -> float:
    """Return the human-normalised score, (return - random) / (human - random); errors are those of `atari_scores`."""
    random, human = atari_scores(game)
    return (episode_return - random) / (human - random)


def atari_scores(game: str) -> tuple[float, float]:
    """Return the scores of random and of human play.

    Raises:
      ValueError: if the game, in any spelling that `make_environment` takes, is not one of Atari-57.
    """
    if _snake_case(game) not in atari57_scores():
        raise _unknown_name(f"atari/{game}")
    return atari57_scores()[_snake_case(game)]


def _snake_case(game: str) -> str:
    """Return the Atari-57 name of a game that may be spelt in camel case, or the name itself where there is none."""
    by_letters = {known.replace("_", ""): known for known in atari57_scores()}
    return by_letters.get(game.replace("_", "").lower(), game)


def _atari_id(game: str) -> str:
    """Return envpool's id of a game in snake_case."""
    return "".join(word.capitalize() for word in game.split("_")) + "-v5"


def _envpool_ids() -> list[str]:
    import envpool

    return envpool.list_all_envs()


def _bsuite_ids() -> Sequence[str]:
    from bsuite import sweep

    return sweep.SWEEP


def make_bsuite(bsuite_id: str, seed: int) -> dm_env.Environment:
    """Make one environment of bsuite with the settings of its id, and a seed where its randomness takes one."""
    from bsuite import bsuite, sweep

    settings = dict(sweep.SETTINGS[bsuite_id])
    experiment, _ = bsuite.unpack_bsuite_id(bsuite_id)
    if "seed" in inspect.signature(bsuite.EXPERIMENT_NAME_TO_ENVIRONMENT[experiment]).parameters:
        settings["seed"] = seed
    return bsuite.load(experiment, settings)


def _unknown_name(name: str) -> ValueError:
    suite = name.partition("/")[0]
    suites = [suite] if suite in _FORMS else list(_FORMS)
    known_names = {
        "toy": lambda: names.EXAMPLES,
        "bsuite": _bsuite_ids,
        "envpool": _envpool_ids,
        "atari": lambda: [_atari_id(game).removesuffix("-v5") for game in atari57_scores()],
    }
    known = [f"{suite}/{rest}" for suite in suites for rest in known_names[suite]()]
    nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.0)[0]
    forms = " or ".join(_FORMS[suite] for suite in suites)
    return ValueError(f"unknown environment {name!r}: expected {forms}, the nearest match is {nearest!r}")


def _check_supported(name: str, is_single_array: bool, is_discrete: bool, observation: Any, action: Any) -> None:
    if not (is_single_array and is_discrete):
        raise ValueError(
            f"environment {name!r} is not supported: expected one player, a single-array observation and discrete "
            f"actions, got {observation} and {action}"
        )


def _environment_seeds(seed: int, num_envs: int) -> list[int]:
    """Return a seed for each environment, in [0, 2**31): seeds next to each other must not share environments."""
    return (np.random.SeedSequence(seed).generate_state(num_envs) >> 1).tolist()


def _stack(steps: Sequence[dm_env.TimeStep]) -> TimeStep:
    is_first, is_last = np.array([step.first() for step in steps]), np.array([step.last() for step in steps])
    terminated = is_last & np.array([step.discount == 0 for step in steps])
    return TimeStep(
        observation=np.stack([np.asarray(step.observation, np.float32) for step in steps]),
        reward=np.array([0.0 if step.first() else step.reward for step in steps], np.float32),
        discount=(~terminated).astype(np.float32),
        truncated=is_last & ~terminated,
        valid=~is_first,
        is_first=is_first,
    )
