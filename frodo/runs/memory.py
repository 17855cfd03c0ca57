"""Memory: what a run needs at least, known from shapes before anything is allocated, and what the machine has."""

import collections
import contextlib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from agents.acting import in_jax as acting
from agents.environments.host import HostEnvironment
from agents.environments.suites import Seen
from agents.networks.agent import Agent
from agents.types import Trajectory
from frodo import states
from frodo.logs import quantity
from frodo.settings.config import AgentConfig
from toy_envs.base import Environment

Shown = Environment | HostEnvironment | Seen  # what says what it shows
_RULE, _NETWORK = "the networks of the rule", "the network (network.hidden, core, channels or action_model)"
# By parts of the names of a state's leaves, the first of which counts.
GROWS_WITH = {".replay": "replay.capacity", ".meta_params": _RULE, ".meta_opt_state": _RULE}
GROWS_WITH |= {".agent": _NETWORK, ".newest": _NETWORK}


def available() -> int:
    """Return the bytes that the devices of this process may still take.

    Of accelerators it is all their memory that JAX may use. Of CPUs it is what is free, and no more than a container's
    limit.
    """
    limits = [stats.get("bytes_limit") for device in jax.local_devices() if (stats := device.memory_stats())]
    if limits and all(limits):
        return sum(limits)
    import psutil

    return min([psutil.virtual_memory().available + psutil.swap_memory().free, *_limits_of_container()])


def _limits_of_container() -> list[int]:
    """Return the limits of the control groups that this process is in, where there are any (Linux)."""
    root, limits = Path("/sys/fs/cgroup"), []
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
            _, kinds, path = line.split(":", 2)
            if kinds not in ("", "memory"):
                continue
            group = (root / "memory" if kinds else root) / path.lstrip("/")
            for folder in (group, *group.parents):
                with contextlib.suppress(OSError, ValueError):  # "max"
                    name = "memory.limit_in_bytes" if kinds else "memory.max"
                    limits.append(int((folder / name).read_text(encoding="utf-8")))
    return limits


def num_bytes(tree: Any) -> int:
    """Return the bytes of a pytree of arrays, or of their shapes."""
    return sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(tree))


def check(parts: Mapping[str, int]) -> None:
    """Raise a ValueError where these bytes, each under the name of a setting that they grow with, are not there."""
    needed, found = sum(parts.values()), available() * jax.process_count()
    if needed > found:
        largest = max(parts, key=lambda name: parts[name])
        raise ValueError(
            f"at least {quantity(needed)} bytes of memory are needed, and {quantity(found)} are there: make {largest} "
            "smaller"
        )


def check_agents(
    config: AgentConfig, agent: Agent, environment: Shown, is_meta: bool, state: Any, num: int = 1
) -> None:
    """Raise a ValueError where agents need more memory than there is: for their states, and what they act.

    Args:
      is_meta: whether they learn η: then an iteration acts a trajectory of the outer loss.
      state: shapes of what all agents keep from iteration to iteration, or as much of it as is known.
      num: how many agents act at a time.
    """
    check(needs(config, agent, environment, is_meta, state, num))


def needs(
    config: AgentConfig, agent: Agent, environment: Shown, is_meta: bool, state: Any, num: int = 1
) -> dict[str, int]:
    """Return what `check_agents` asks for: bytes by the settings that they grow with."""
    sizes = {name: getattr(config, name) for name in ("batch_size", "unroll", "num_updates")}
    of_experience = max(sizes, key=lambda name: sizes[name])
    trajectories, validation = trajectory_shapes(config, agent, environment, is_meta)
    if config.is_acting_interleaved:  # one after the other
        trajectories = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), trajectories)
    parts = collections.Counter({of_experience: num * num_bytes((trajectories, validation))})
    for name, leaf in states.leaves(state).items():
        grows_with = (setting for part, setting in GROWS_WITH.items() if part in name)
        parts[next(grows_with, of_experience)] += num_bytes(leaf)
    return parts


def trajectory_shapes(
    config: AgentConfig, agent: Agent, environment: Shown, is_meta: bool
) -> tuple[Trajectory, Trajectory | None]:
    """Return the shapes of what an actor hands over for a step."""
    schedule = config.schedule(is_meta)

    def of_length(length: int, *leading: int) -> Any:
        empty = lambda x: acting.empty_trajectory(agent, agent.prepare(x), length, environment.num_actions)
        shapes = jax.eval_shape(empty, batch_shape(config, environment))
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct((*leading, *x.shape), x.dtype), shapes)

    validation = of_length(schedule.num_validation_steps) if schedule.num_validation_steps else None
    return of_length(schedule.num_steps, schedule.num_trajectories), validation


def batch_shape(config: AgentConfig, environment: Shown) -> jax.ShapeDtypeStruct:
    """Return the shape of observations of a batch, as the environment shows them."""
    shape = (config.batch_size, *environment.observation_shape)
    return jax.ShapeDtypeStruct(shape, environment.observation_dtype)
