"""The adapter to envpool, which steps many environments in C++ threads, those of Atari among them.

envpool exists for Linux only and is imported where it is first used.
"""

import os
import types
import warnings
from typing import Any

import dm_env
import numpy as np

from agents.environments.gymnasium import GymnasiumEnvironment, check_spaces
from agents.environments.host import environment_seeds
from agents.environments.navix import LARGEST

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


class EnvpoolEnvironment(GymnasiumEnvironment):
    """An envpool environment. Observations of uint8 stay as they are: Atari is [B, 4, 84, 84], channels first.

    Others become float32. `of` takes one that is made.

    Of MiniGrid's dictionary of view, direction and mission, the view of the agent alone is shown: [B, 7, 7, 3] float32,
    kind, colour and state of what is at a place, each in [0, 1].

    Args:
      env_id: an id that envpool lists, for example 'CartPole-v1'.
      num_envs: B.
      seed: different seeds share no environment seed.
      **options: of `envpool.make`, for example `max_episode_steps`.
    Raises:
      ValueError: if there is more than one player, the observation is not a single array, or actions are not discrete.
      ImportError: if envpool is not installed or misses a system library; Procgen needs the runtime of Qt 5.
    """

    def __init__(self, env_id: str, num_envs: int, seed: int, **options: Any):
        envpool = import_envpool()
        with warnings.catch_warnings():  # gymnasium on the precision of the spaces' bounds
            warnings.simplefilter("ignore")
            spec: Any = envpool.make_spec(env_id)  # to refuse an environment before it is made
            observation, action = spec.gymnasium_observation_space, spec.gymnasium_action_space
            _check(f"envpool/{env_id}", observation, action, spec.config)
            seeds = environment_seeds(seed, num_envs)
            options = dict(num_envs=num_envs, seed=seeds, num_threads=ENVPOOL_THREADS) | options
            self._take_made(f"envpool/{env_id}", envpool.make(env_id, env_type="gymnasium", **options))

    @classmethod
    def of(cls, made: Any) -> "EnvpoolEnvironment":
        """Take an environment that `envpool.make` made, whatever its seeds are.

        Raises:
          ValueError: if it is not of the type 'gymnasium', or not stepped all at a time, and as for one by its id.
        """
        name = type(made).__name__
        if isinstance(made, dm_env.Environment):
            raise ValueError(f'environment {name!r} has the env_type "dm", expected env_type="gymnasium"')
        if made.is_async:
            raise ValueError(f"environment {name!r} has a batch_size below num_envs, expected the same: no batch_size")
        environment = cls.__new__(cls)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _check(name, made.observation_space, made.action_space, made.spec.config)
            environment._take_made(name, made)
        return environment

    def _take_made(self, name: str, made: Any) -> None:
        observation = made.observation_space  # made anew each time
        self._is_minigrid = hasattr(observation, "spaces")
        # It resets in the next step.
        self._take(name, made, len(made), _seen(observation), made.action_space, is_same_step=False)
        if self._is_minigrid:
            self.observation_dtype = np.dtype(np.float32)

    def _copy(self, observation: Any) -> np.ndarray:
        if self._is_minigrid:
            return observation["image"] / np.array(LARGEST, np.float32)
        return observation.astype(self.observation_dtype, copy=False)  # envpool writes to none of its arrays again


def is_envpool(environment: Any) -> bool:
    """Say whether `envpool.make` made it, of whatever type."""
    return any(kind.__module__.startswith("envpool.") for kind in type(environment).__mro__)


def _check(name: str, observation: Any, action: Any, config: Any) -> None:
    check_spaces(name, _seen(observation), action, config.max_num_players == 1, "of gymnasium's own, ")


def _seen(space: Any) -> Any:
    """Return the space of what is shown: of a dictionary with an "image" (MiniGrid's), this one."""
    spaces = getattr(space, "spaces", {})
    return spaces.get("image", space)


def envpool_ids() -> list[str]:
    """Return the ids of all environments that envpool has; an ImportError if it is not installed."""
    return import_envpool().list_all_envs()


def import_envpool() -> types.ModuleType:
    """Return the module `envpool`; an ImportError that says how it is installed if it is not."""
    try:
        import envpool
    except ModuleNotFoundError as error:
        if error.name != "envpool":
            raise
        raise ImportError(
            "envpool/... and atari/... need the package envpool, which exists for Linux: pip install envpool"
        ) from None
    return envpool
