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

    Others become float32.

    Of MiniGrid's dictionary of view, direction and mission, the view of the agent alone is shown: [B, 7, 7, 3] float32,
    kind, colour and state of what is at a place, each in [0, 1].

    Args:
      made: what `envpool.make` returns.
      name: for error messages; by default the name of its class.
    Raises:
      ValueError: if it is not of the type 'gymnasium', or not stepped all at a time, there is more than one player, the
        observation is not a single array, or actions are not discrete.
    """

    def __init__(self, made: Any, name: str = ""):
        name = name or type(made).__name__
        if isinstance(made, dm_env.Environment):
            raise ValueError(f'environment {name!r} has the env_type "dm", expected env_type="gymnasium"')
        if made.is_async:
            raise ValueError(f"environment {name!r} has a batch_size below num_envs, expected the same: no batch_size")
        with warnings.catch_warnings(action="ignore"):  # of gymnasium, on the precision of the spaces' bounds
            observation, action = made.observation_space, made.action_space  # made anew each time
        _check(name, observation, action, made.spec.config)
        self._is_minigrid = hasattr(observation, "spaces")
        self._take(name, made, len(made), _seen(observation), action, is_same_step=False)  # it resets in the next step
        if self._is_minigrid:
            self.observation_dtype = np.dtype(np.float32)

    def _copy(self, observation: Any) -> np.ndarray:
        if self._is_minigrid:
            return observation["image"] / np.array(LARGEST, np.float32)
        return observation.astype(self.observation_dtype, copy=False)  # envpool writes to none of its arrays again


def make_envpool(env_id: str, num_envs: int, seed: int, **options: Any) -> EnvpoolEnvironment:
    """Make an environment that envpool lists, such as 'CartPole-v1'.

    Args:
      env_id, num_envs: which, and how many of them.
      seed: different seeds share no environment seed.
      **options: of `envpool.make`, for example `max_episode_steps`.
    Raises:
      ValueError: as `EnvpoolEnvironment`, before one is made.
      ImportError: if envpool is not installed or misses a system library; Procgen needs the runtime of Qt 5.
    """
    envpool, name = import_envpool(), f"envpool/{env_id}"
    options = dict(seed=environment_seeds(seed, num_envs), num_threads=ENVPOOL_THREADS) | options
    with warnings.catch_warnings(action="ignore"):
        spec: Any = envpool.make_spec(env_id)
        _check(name, spec.gymnasium_observation_space, spec.gymnasium_action_space, spec.config)
        made = envpool.make(env_id, env_type="gymnasium", num_envs=num_envs, **options)
    return EnvpoolEnvironment(made, name)


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
