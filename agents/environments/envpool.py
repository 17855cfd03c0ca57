"""The adapter to envpool, which steps many environments in C++ threads, those of Atari among them.

envpool exists for Linux only and is imported where it is first used.
"""

import os
import types
import warnings
from typing import Any

import numpy as np

from agents.environments.host import HostEnvironment, check_supported, environment_seeds, first_step
from agents.environments.navix import LARGEST
from toy_envs.base import TimeStep, host_time_step

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


class EnvpoolEnvironment(HostEnvironment):
    """An envpool environment. Observations come as envpool has them: Atari is [B, 4, 84, 84] uint8, channels first.

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
        from gymnasium import spaces

        with warnings.catch_warnings():  # gymnasium on the precision of the spaces' bounds
            warnings.simplefilter("ignore")
            spec: Any = envpool.make_spec(env_id)  # to refuse an environment before it is made
            observation, action = _seen(spec.gymnasium_observation_space), spec.gymnasium_action_space
            is_single_array = isinstance(observation, spaces.Box) and spec.config.max_num_players == 1
            check_supported(
                f"envpool/{env_id}", is_single_array, isinstance(action, spaces.Discrete), observation, action
            )
            seeds = environment_seeds(seed, num_envs)
            options = dict(num_envs=num_envs, seed=seeds, num_threads=ENVPOOL_THREADS) | options
            self._envpool: Any = envpool.make(env_id, env_type="gymnasium", **options)
            observation, action = self._envpool.observation_space, self._envpool.action_space  # made once, here
        self.name, self.num_envs = f"envpool/{env_id}", num_envs
        self._is_minigrid = isinstance(observation, spaces.Dict)
        seen = _seen(observation)
        self.observation_shape = seen.shape
        self.observation_dtype = np.dtype(np.float32) if self._is_minigrid else seen.dtype
        self.num_actions = int(action.n)
        self._is_over = np.zeros(num_envs, bool)

    def reset(self) -> TimeStep:
        observation, _ = self._envpool.reset()
        self._is_over = np.zeros(self.num_envs, bool)
        return first_step(self._shown(observation))

    def step(self, actions: np.ndarray) -> TimeStep:
        # envpool never sets both, and it resets by itself, with a reward of 0.
        observation, reward, terminated, truncated, _ = self._envpool.step(actions)
        is_first, self._is_over = self._is_over, terminated | truncated
        return host_time_step(
            observation=self._shown(observation),
            reward=reward,
            discount=(~terminated).astype(np.float32),
            truncated=truncated,
            valid=~is_first,
            is_first=is_first,
        )

    def _shown(self, observation: Any) -> np.ndarray:
        return observation["image"] / np.array(LARGEST, np.float32) if self._is_minigrid else observation

    def close(self) -> None:
        self._envpool.close()


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
