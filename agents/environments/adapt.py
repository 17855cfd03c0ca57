"""Environments of other libraries, and by name, in the adapter that fits."""

import sys
from collections.abc import Sequence
from typing import Any

import dm_env

from agents.environments.dm_env import DmEnvBatch
from agents.environments.envpool import EnvpoolEnvironment, is_envpool
from agents.environments.gymnasium import GymnasiumEnvironment, environment_name
from agents.environments.gymnax import GymnaxEnvironment, unwrapped
from agents.environments.host import HostEnvironment
from agents.environments.names import make_environment
from agents.environments.navix import NavixEnvironment
from agents.environments.xminigrid import XLandEnvironment
from toy_envs.base import Environment, check_pure

OWN = "to write one: a subclass of frodo.Environment, docs/start/own_environment.md"
# Wrappers that add nothing to what the adapter does itself.
NAVIX_WRAPPERS = ("NavixGymnaxWrapper", "FlattenObservationWrapper", "LogWrapper")
XMINIGRID_WRAPPERS = ("GymAutoResetWrapper", "DmEnvAutoResetWrapper", "DirectionObservationWrapper")


def as_environment(environment: Any, num_envs: int = 1, seed: int = 0) -> Environment | HostEnvironment:
    """Return the environment as a pure one, or as a batch on the host.

    Args:
      environment: one of these.
        - A name that `make_environment` takes.
        - An `Environment`, or one of gymnax, craftax or xminigrid, with its parameters as the pair (environment,
          params), of the first two also without them, or one of navix, each also in wrappers that have a `_env`, as
          gymnax's own and PureJaxRL's `FlattenObservationWrapper` and `LogWrapper`.
        - A `HostEnvironment`, which is returned as it is; a `dm_env.Environment` or a sequence of them; a
          `gymnasium.vector.VectorEnv`, or a `gymnasium.Env`, which becomes a batch of one; or what `envpool.make`
          returns, of the type 'gymnasium'. Wrapped ones are taken as the wrappers show them.
      num_envs: how many run in the batch of a name on the host.
      seed: of a name on the host.
    Raises:
      TypeError: if it is none of these.
      ValueError: if there is none of that name, or agents cannot act in it: the observation is not a single array, or
        actions are not discrete.
    """
    if isinstance(environment, str):
        environment = make_environment(environment, num_envs, seed)
    if isinstance(environment, type):
        name = environment.__name__
        raise TypeError(f"environment is the class {name}, expected one of it: {name}()")
    if (host := _on_host(environment)) is not None:  # also one with a `_env` of its own, whatever that is
        return host
    pure = environment if isinstance(environment, Environment) else _as_pure(environment)
    if pure is None:
        found = "None" if environment is None else f"a {_type_name(environment)}"
        raise TypeError(
            f"environment is {found}, expected a frodo.Environment, a HostEnvironment, a "
            "dm_env.Environment or a sequence of them, a gymnasium.vector.VectorEnv or a gymnasium.Env, a name, or one "
            f"of gymnax, craftax, navix or xminigrid, with its params as a pair; {OWN}"
        )
    shown, name = pure.shown, type(pure).__name__
    if not hasattr(shown, "shape"):
        raise ValueError(
            f"environment {name!r} is not supported: observe returns a {type(shown).__name__}, expected a single "
            "array, such as jnp.concatenate of the parts, each flat"
        )
    if shown.shape != tuple(pure.observation_shape):
        expected = f"observation_shape, {tuple(pure.observation_shape)}"
        raise ValueError(f"environment {name!r} observes arrays of the shape {shown.shape}, expected {expected}")
    return pure


def as_pure_environment(environment: Any) -> Environment:
    """Return the environment as a pure one; a TypeError, besides errors of `as_environment`, if it is on the host."""
    return check_pure("environment", as_environment(environment))


def _on_host(environment: Any) -> HostEnvironment | None:
    """Return a batch on the host in its adapter; None for anything else. Gymnasium is not imported to know."""
    if isinstance(environment, HostEnvironment):
        return environment
    if is_envpool(environment):  # which is a gymnasium.Env, too
        return EnvpoolEnvironment(environment)
    if isinstance(environment, dm_env.Environment):
        return DmEnvBatch([environment])
    are_all = lambda kind: isinstance(environment, Sequence) and all(isinstance(one, kind) for one in environment)
    if are_all(dm_env.Environment):
        return DmEnvBatch(environment)
    gymnasium = sys.modules.get("gymnasium")
    if gymnasium is None:
        return None
    if isinstance(environment, gymnasium.vector.VectorEnv):
        return GymnasiumEnvironment(environment)
    if isinstance(environment, gymnasium.Env):
        name = environment_name(environment)
        return GymnasiumEnvironment(gymnasium.vector.SyncVectorEnv([lambda: environment]), name)
    if are_all(gymnasium.Env):
        raise TypeError(
            f"environment is a {_type_name(environment)} of gymnasium.Env, expected a gymnasium.vector.VectorEnv, such "
            "as SyncVectorEnv([make, make]), where make() returns one of them"
        )
    return None


def _as_pure(environment: Any) -> Environment | None:
    """Return an environment of gymnax, craftax, navix or xminigrid in its adapter; None for anything else."""
    is_pair = isinstance(environment, tuple) and len(environment) == 2
    env, params = environment if is_pair else (environment, None)
    base, wrappers = unwrapped(env)
    if hasattr(base, "reset_env") and hasattr(base, "step_env"):
        return GymnaxEnvironment(env, params)
    if hasattr(base, "observation_fn") and hasattr(base, "transitions_fn"):
        _check_wrappers(wrappers, NAVIX_WRAPPERS, base)
        return NavixEnvironment(base)
    if hasattr(base, "_generate_problem") and hasattr(base, "default_params"):
        _check_wrappers(wrappers, XMINIGRID_WRAPPERS, base)
        if params is None:
            kind = _type_name(base)
            raise TypeError(f"environment is a {kind} alone, expected it with its parameters: (environment, params)")
        return XLandEnvironment(base, params)
    return None


def _check_wrappers(wrappers: Sequence[Any], known: Sequence[str], base: Any) -> None:
    for name in (type(wrapper).__name__ for wrapper in wrappers):
        if name not in known:
            expected = ", ".join(known)
            raise TypeError(f"environment is a {_type_name(base)} in a {name}, expected no wrappers but {expected}")


def _type_name(environment: Any) -> str:
    kind = type(environment)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
