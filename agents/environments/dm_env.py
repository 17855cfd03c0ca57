"""The adapter to environments that speak `dm_env`, such as those of bsuite."""

from collections.abc import Sequence

import dm_env
import numpy as np
from dm_env import specs

from agents.environments.host import HostEnvironment, check_supported, shown_dtype
from toy_envs.base import TimeStep, host_time_step

TINY = np.finfo(np.float32).tiny


class DmEnvBatch(HostEnvironment):
    """A batch of `dm_env` environments of one kind, stepped in turn.

    Observations of uint8 stay as they are, others become float32. An episode ends with a step of the type LAST: with a
    discount of 0 it terminated, else it was truncated. Discounts between 0 and 1 are kept: the agent's multiplies them.
    Where an episode goes on after a discount of 0, the discount is `TINY`, the smallest there is.

    Args:
      environments: B of them, with the same observations and number of actions, each with its own randomness.
      name: for error messages; by default the name of the first environment's class.
    Raises:
      ValueError: if there is no environment, they differ in their specs, an observation is not a single array, or
        actions are not discrete.
    """

    def __init__(self, environments: Sequence[dm_env.Environment], name: str = ""):
        if not len(environments):
            raise ValueError("environments has the length 0, expected at least 1")
        self.name = name = name or type(environments[0]).__name__
        self.num_envs = len(environments)
        first = _sizes(environments[0], name)
        for index, environment in enumerate(environments):
            if (sizes := _sizes(environment, name)) != first:
                has, expected = ("observations {} {} and {} actions".format(*own) for own in (sizes, first))
                raise ValueError(
                    f"environments[{index}] of {name!r} has {has}, expected {expected} as in environments[0]"
                )
        self.observation_shape, dtype, self.num_actions = first
        self.observation_dtype = shown_dtype(dtype)
        self._environments = environments

    def reset(self) -> TimeStep:
        return self._stack([environment.reset() for environment in self._environments])

    def step(self, actions: np.ndarray) -> TimeStep:
        pairs = zip(self._environments, actions.tolist(), strict=True)
        return self._stack([environment.step(action) for environment, action in pairs])

    def close(self) -> None:
        for environment in self._environments:
            environment.close()

    def _stack(self, steps: Sequence[dm_env.TimeStep]) -> TimeStep:
        is_first, is_last = np.array([step.first() for step in steps]), np.array([step.last() for step in steps])
        discount = np.array([1.0 if step.first() else step.discount for step in steps], np.float32)
        if not np.all((discount >= 0) & (discount <= 1)):
            raise ValueError(f"environment {self.name!r} has the discounts {discount}, expected numbers from 0 to 1")
        shown = [np.asarray(step.observation) for step in steps]
        for x in shown:
            if x.shape != self.observation_shape:
                found, expected = list(x.shape), list(self.observation_shape)
                raise ValueError(
                    f"environment {self.name!r} shows the shape {found}, expected {expected} as in its spec"
                )
        observation = np.stack(shown)
        if self.observation_dtype == np.uint8 and not np.can_cast(observation.dtype, np.uint8):
            raise ValueError(f"environment {self.name!r} shows {observation.dtype}, expected uint8 as in its spec")
        return host_time_step(
            observation=observation.astype(self.observation_dtype),
            reward=np.array([0.0 if step.first() else step.reward for step in steps], np.float32),
            discount=np.where(is_last, discount, np.maximum(discount, TINY)),
            truncated=is_last & (discount > 0),
            valid=~is_first,
            is_first=is_first,
        )


def _sizes(environment: dm_env.Environment, name: str) -> tuple[tuple[int, ...], np.dtype, int]:
    """Return shape and dtype of observations and the number of actions; a ValueError if agents cannot act in it."""
    observation, action = environment.observation_spec(), environment.action_spec()
    is_number = isinstance(observation, specs.DiscreteArray)
    is_single_array = isinstance(observation, specs.Array) and observation.dtype.kind in "biuf" and not is_number
    remedy = "wrap it in a dm_env.Environment that "
    if is_number:
        remedy += f"shows the number one-hot, np.eye({observation.num_values}, dtype=np.float32)[observation]"
    else:
        remedy += "shows one array, such as np.concatenate of the parts, each flat"
    check_supported(name, is_single_array, isinstance(action, specs.DiscreteArray), observation, action, remedy)
    return observation.shape, observation.dtype, int(action.num_values)
