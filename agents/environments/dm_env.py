"""The adapter to environments that speak `dm_env`, such as those of bsuite."""

from collections.abc import Sequence

import dm_env
import numpy as np
from dm_env import specs

from agents.environments.host import HostEnvironment, check_supported
from toy_envs.base import TimeStep, host_time_step


class DmEnvBatch(HostEnvironment):
    """A batch of `dm_env` environments of one kind, stepped in turn. Observations are cast to float32.

    An episode that ends with a discount above 0 was truncated. Other discounts of the environments are ignored.

    Args:
      environments: B of them, with the same observation shape and number of actions, each with its own randomness.
      name: for error messages; by default the name of the first environment's class.
    Raises:
      ValueError: if there is no environment, they differ in their specs, an observation is not a single array, or
        actions are not discrete.
    """

    observation_dtype = np.dtype(np.float32)

    def __init__(self, environments: Sequence[dm_env.Environment], name: str = ""):
        if not len(environments):
            raise ValueError("environments has the length 0, expected at least 1")
        name = name or type(environments[0]).__name__
        self.name, self.num_envs = name, len(environments)
        self.observation_shape, self.num_actions = first = _sizes(environments[0], name)
        for index, environment in enumerate(environments):
            if (sizes := _sizes(environment, name)) != first:
                raise ValueError(
                    f"environments[{index}] of {name!r} has the observation shape {sizes[0]} and {sizes[1]} actions, "
                    f"expected {first[0]} and {first[1]} as in environments[0]"
                )
        self._environments = environments

    def reset(self) -> TimeStep:
        return _stack([environment.reset() for environment in self._environments])

    def step(self, actions: np.ndarray) -> TimeStep:
        pairs = zip(self._environments, actions.tolist(), strict=True)
        return _stack([environment.step(action) for environment, action in pairs])

    def close(self) -> None:
        for environment in self._environments:
            environment.close()


def _sizes(environment: dm_env.Environment, name: str) -> tuple[tuple[int, ...], int]:
    """Return the observation shape and the number of actions; a ValueError if agents cannot act in it."""
    observation, action = environment.observation_spec(), environment.action_spec()
    is_single_array = isinstance(observation, specs.Array) and observation.dtype.kind in "biuf"
    check_supported(name, is_single_array, isinstance(action, specs.DiscreteArray), observation, action)
    return observation.shape, int(action.num_values)


def _stack(steps: Sequence[dm_env.TimeStep]) -> TimeStep:
    is_first, is_last = np.array([step.first() for step in steps]), np.array([step.last() for step in steps])
    terminated = is_last & np.array([step.discount == 0 for step in steps])
    return host_time_step(
        observation=np.stack([np.asarray(step.observation, np.float32) for step in steps]),
        reward=np.array([0.0 if step.first() else step.reward for step in steps], np.float32),
        discount=(~terminated).astype(np.float32),
        truncated=is_last & ~terminated,
        valid=~is_first,
        is_first=is_first,
    )
