"""The adapter to gymnasium's vector environments."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from agents.environments.host import HostEnvironment, check_supported, first_step, shown_dtype
from toy_envs.base import TimeStep, host_time_step

if TYPE_CHECKING:
    import gymnasium.vector


class GymnasiumEnvironment(HostEnvironment):
    """A vector environment of gymnasium. Observations of uint8 and float32 stay as they are, others become float32.

    Environments may reset in the same step or in the next one. With `AutoresetMode.SAME_STEP`, the step that ends an
    episode shows the first observation of the next one; of a truncated one, `last_observations` has what
    `info["final_obs"]` says.

    Args:
      envs: the vector environment, with a Box or MultiBinary observation and Discrete actions; of other observations
        `gymnasium.wrappers.FlattenObservation` makes a Box. It is not seeded here: call `envs.reset(seed=0)` before.
      name: for error messages; by default the environment's id, or the name of its class.
    Raises:
      ValueError: if the observation is of another kind, actions are not Discrete, or environments do not reset
        themselves.
    """

    def __init__(self, envs: "gymnasium.vector.VectorEnv", name: str = ""):
        from gymnasium.vector import AutoresetMode

        name = name or environment_name(envs)
        observation, action = envs.single_observation_space, envs.single_action_space
        check_spaces(name, observation, action)
        mode = envs.metadata.get("autoreset_mode")
        if mode not in (AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP):
            raise ValueError(
                f"environment {name!r} has the autoreset_mode {mode}, expected AutoresetMode.NEXT_STEP or SAME_STEP"
            )
        self._take(name, envs, envs.num_envs, observation, action, mode is AutoresetMode.SAME_STEP)

    def _take(self, name: str, envs: Any, num_envs: int, observation: Any, action: Any, is_same_step: bool) -> None:
        self.name, self.num_envs = name, num_envs
        self.observation_shape = observation.shape
        self.observation_dtype = shown_dtype(observation.dtype)
        self.num_actions, self._first_action, self._action_dtype = int(action.n), int(action.start), action.dtype
        self._envs, self._is_same_step, self._is_over = envs, is_same_step, np.zeros(num_envs, bool)

    def reset(self) -> TimeStep:
        observation, _ = self._envs.reset()
        self._is_over, self.last_observations = np.zeros(self.num_envs, bool), {}
        return first_step(self._copy(observation))

    def step(self, actions: np.ndarray) -> TimeStep:
        actions = (actions + self._first_action).astype(self._action_dtype)
        observation, reward, terminated, truncated, info = self._envs.step(actions)
        terminated, truncated = np.asarray(terminated, bool), np.asarray(truncated, bool)
        is_over = terminated | truncated
        if self._is_same_step:
            is_first, valid = is_over, np.ones_like(is_over)
            self.last_observations = self._final(info, truncated & ~terminated)
        else:
            is_first, valid = self._is_over, ~self._is_over
            reward = np.where(is_first, 0.0, reward)  # a wrapper may have made something of the 0
        self._is_over = is_over
        return host_time_step(
            observation=self._copy(observation),
            reward=np.array(reward, np.float32),
            discount=(~terminated).astype(np.float32),
            truncated=truncated & ~terminated,
            valid=valid,
            is_first=is_first,
        )

    def _final(self, info: Mapping[str, Any], is_cut: np.ndarray) -> dict[int, np.ndarray]:
        """Return the last observations that are known of the environments that were cut."""
        known = info.get("final_obs")
        if known is None:
            return {}
        final = {int(i): self._copy(known[i]) for i in np.flatnonzero(is_cut) if known[i] is not None}
        return {i: x for i, x in final.items() if x.shape == self.observation_shape}

    def close(self) -> None:
        self._envs.close()

    def _copy(self, observation: np.ndarray) -> np.ndarray:
        return np.array(observation, self.observation_dtype)  # a vector environment may write to its own array again


def check_spaces(name: str, observation: Any, action: Any, is_single_player: bool = True, remedy: str = "") -> None:
    """Raise a ValueError, which ends with a remedy, if agents cannot act in an environment with these spaces."""
    from gymnasium import spaces

    makes = "makes it one-hot" if isinstance(observation, spaces.Discrete) else "makes it one array"
    wrapper = (
        f"gymnasium.wrappers.FlattenObservation {makes}, of a vector environment that of gymnasium.wrappers.vector"
    )
    is_single_array = isinstance(observation, (spaces.Box, spaces.MultiBinary)) and is_single_player
    is_discrete = isinstance(action, spaces.Discrete)
    check_supported(name, is_single_array, is_discrete, observation, action, remedy + wrapper)


def environment_name(environment: Any) -> str:
    """Return the id with which an environment of gymnasium is registered, else the name of its class."""
    return getattr(getattr(environment, "spec", None), "id", None) or type(environment.unwrapped).__name__
