"""Environments of other libraries, in the adapter that fits."""

from collections.abc import Sequence
from typing import Any

import dm_env

from agents.environments.dm_env import DmEnvBatch
from agents.environments.gymnasium import GymnasiumEnvironment, environment_name
from agents.environments.host import HostEnvironment
from toy_envs.base import Environment


def as_host_environment(environment: Any) -> HostEnvironment:
    """Return the environment as a batch on the host.

    Args:
      environment: a `HostEnvironment`, which is returned as it is; a `dm_env.Environment` or a sequence of them; a
        `gymnasium.vector.VectorEnv`; or a `gymnasium.Env`, which becomes a batch of one.
    Raises:
      TypeError: if it is none of these.
      ValueError: if agents cannot act in it: the observation is not a single array, or actions are not discrete.
    """
    if isinstance(environment, HostEnvironment):
        return environment
    if isinstance(environment, dm_env.Environment):
        return DmEnvBatch([environment])
    if isinstance(environment, Sequence) and all(isinstance(one, dm_env.Environment) for one in environment):
        return DmEnvBatch(environment)
    if isinstance(environment, Environment):
        raise TypeError(
            f"environment is a {_type_name(environment)}, a pure one: toy_envs.base.DmEnv(environment, seed) steps it "
            "on the host"
        )
    import gymnasium

    if isinstance(environment, gymnasium.vector.VectorEnv):  # envpool's are a gymnasium.Env too
        return GymnasiumEnvironment(environment)
    if isinstance(environment, gymnasium.Env):
        name = environment_name(environment)
        return GymnasiumEnvironment(gymnasium.vector.SyncVectorEnv([lambda: environment]), name)
    raise TypeError(
        f"environment is a {_type_name(environment)}, expected a toy_envs.base.Environment, a HostEnvironment, a "
        "dm_env.Environment or a sequence of them, a gymnasium.vector.VectorEnv or a gymnasium.Env"
    )


def _type_name(environment: Any) -> str:
    kind = type(environment)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
