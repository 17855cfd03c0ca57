"""The contract of a batch of environments on the host, and what its adapters share.

What happens at the end of an episode is defined in `toy_envs/base.py`.
"""

import abc
from collections.abc import Mapping
from typing import Any

import numpy as np

from toy_envs.base import TimeStep, host_time_step


class HostEnvironment(abc.ABC):
    """A batch of environments on the host, which reset themselves. Arrays are NumPy's, B is `num_envs`.

    Every call returns new arrays: what an earlier one returned is never written to again.
    """

    name = "environment"  # for messages
    num_envs: int
    observation_shape: tuple[int, ...]  # of one environment
    observation_dtype: np.dtype  # uint8, which torsos divide by 255, or float32
    num_actions: int
    reward_range: tuple[float, float] | None = None  # the least and the largest reward; None where they are not known
    is_complete = False  # whether it has no more episodes to show, which ends a program's run
    # With same-step reset: of the episodes that a time limit ended in the latest step, by environment.
    last_observations: Mapping[int, np.ndarray] = {}

    @abc.abstractmethod
    def reset(self) -> TimeStep:
        """Start a new episode in every environment. All fields are [B, ...]; nothing is valid yet."""

    @abc.abstractmethod
    def step(self, actions: np.ndarray) -> TimeStep:
        """Take one step with actions [B] int32; with next-step reset, start the next episode where one has ended."""

    @abc.abstractmethod
    def close(self) -> None:
        """Free what the environments hold."""


def first_step(observation: np.ndarray) -> TimeStep:
    """Return the time step of a reset, which shows these first observations, [B, ...]."""
    num_envs = len(observation)
    return host_time_step(
        observation=observation,
        reward=np.zeros(num_envs, np.float32),
        discount=np.ones(num_envs, np.float32),
        truncated=np.zeros(num_envs, bool),
        valid=np.zeros(num_envs, bool),
        is_first=np.ones(num_envs, bool),
    )


class NotFiniteError(FloatingPointError):
    """An observation, a reward, a meta-gradient or a parameter is not finite."""


def check_finite(time_step: Any, name: str, step: int, is_clipped: bool = False) -> None:
    """Raise a NotFiniteError that says which environment of a batch showed a number that is none, or infinite.

    Args:
      time_step: what has observation and reward, [B, ...] of NumPy's arrays.
      name: of the environment.
      step: how many were taken.
      is_clipped: whether rewards are clipped for learning: infinite ones then do no harm, but to the return.
    """
    for field, x in (("observation", time_step.observation), ("reward", time_step.reward)):
        if x.dtype.kind != "f" or np.isfinite(x).all():
            continue
        bad = np.isnan(x) if field == "reward" and is_clipped else ~np.isfinite(x)
        if bad.any():
            number, *index = np.argwhere(bad)[0].tolist()
            place, value = f"{field}{index}" if index else field, float(x[number, *index])
            raise NotFiniteError(
                f"{name}, number {number} of its batch: {place} was {value} after step {step}, expected a finite number"
            )


def check_supported(
    name: str, is_single_array: bool, is_discrete: bool, observation: Any, action: Any, remedy: str = ""
) -> None:
    """Raise a ValueError that shows the specs of an environment, if agents cannot act in it.

    The remedy says what to do about an observation that is no single array.
    """
    if not (is_single_array and is_discrete):
        specs = " and ".join(" ".join(str(spec).split()) for spec in (observation, action))  # in one line
        what_to_do = f": {remedy}" if remedy and not is_single_array else ""
        raise ValueError(
            f"environment {name!r} is not supported: expected one player, a single-array observation and discrete "
            f"actions, got {specs}{what_to_do}"
        )


def shown_dtype(dtype: Any) -> np.dtype:
    """Return the dtype in which an adapter shows observations: uint8, which torsos scale, and float32 for all else."""
    return np.dtype(np.uint8 if dtype == np.uint8 else np.float32)


def environment_seeds(seed: int, num_envs: int) -> list[int]:
    """Return a seed in [0, 2**31) for each environment; neighbouring seeds share none."""
    return (np.random.SeedSequence(seed).generate_state(num_envs) >> 1).tolist()
