"""Replay: the last trajectories of an agent, mixed with fresh ones.

Arrays keep the dtype that they have in the trajectory: image observations stay uint8.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from agents import splitting
from agents.settings import CountOrZero, check_settings
from agents.types import Array, Trajectory


@dataclasses.dataclass
class ReplayConfig:
    """Replay of the agent's last trajectories.

    Attributes:
      capacity: Trajectories that are kept, first in, first out, at least those of a batch; 0 for no replay: an update
        takes the fresh ones.
      batch_size: Trajectories of an update, at least 1 (the public code of Oh et al. 2025, in its evaluation).
      fresh: Share of an update's trajectories that is new, from 0 to below 1 (Oh et al. 2025, Methods).
    """

    capacity: CountOrZero = 0
    batch_size: int = 64
    fresh: float = 0.1

    def validate(self, num_fresh: int) -> None:
        """Raise a ValueError that names the bad setting; `num_fresh` trajectories come at a time."""
        check_settings(self, "replay.")
        if not self.capacity:
            return
        if not 0 <= self.fresh < 1 or self.num_fresh > num_fresh:
            raise ValueError(
                f"replay.fresh is {self.fresh}, expected a share of replay.batch_size ({self.batch_size}) from 0 to "
                f"below 1, and no more than batch_size ({num_fresh}) trajectories"
            )
        if not 0 < self.batch_size <= self.capacity or num_fresh > self.capacity:
            raise ValueError(
                f"replay.capacity is {self.capacity}, expected at least replay.batch_size ({self.batch_size}, itself "
                f"at least 1) and batch_size ({num_fresh})"
            )

    @property
    def num_fresh(self) -> int:
        """Trajectories of an update that are new."""
        return round(self.fresh * self.batch_size)


class Replay(NamedTuple):
    """Attributes: key; trajectories with the batch as first axis, [capacity, ...]; how many were ever added."""

    key: Array
    trajectories: Trajectory
    num_added: Array  # int32


def init(config: ReplayConfig, key: Array, example: Trajectory) -> Replay:
    """Make an empty replay for trajectories [T, B, ...] of these shapes and dtypes."""
    rows = jax.tree.map(lambda x: jnp.zeros((config.capacity, *x.shape[1:]), x.dtype), _batch_first(example))
    return Replay(key, rows, jnp.zeros((), jnp.int32))


def add(replay: Replay, trajectory: Trajectory) -> Replay:
    """Add B trajectories in place of the oldest ones."""
    capacity = len(replay.trajectories.action)
    rows = (replay.num_added + jnp.arange(trajectory.action.shape[1])) % capacity
    kept = jax.tree.map(lambda old, new: old.at[rows].set(new), replay.trajectories, _batch_first(trajectory))
    return replay._replace(trajectories=kept, num_added=replay.num_added + trajectory.action.shape[1])


def sample(config: ReplayConfig, replay: Replay, fresh: Trajectory) -> tuple[Replay, Trajectory]:
    """Draw the trajectories of an update, [T, batch_size, ...]: as many of the fresh ones as `fresh` says, and the
    others uniformly from all that are kept."""
    key, draw = jax.random.split(replay.key)
    size = jnp.clip(replay.num_added, 1, config.capacity).astype(jnp.uint32)
    # As `randint`, but for a bias below size / 2³², by half of its random bits: on CPUs these are a tenth of an update.
    rows = jax.random.bits(draw, (config.batch_size - config.num_fresh,), jnp.uint32) % size
    drawn = jax.tree.map(lambda x: x[rows], replay.trajectories)
    if config.num_fresh:
        first = jax.tree.map(lambda x: x[: config.num_fresh], _batch_first(fresh))
        drawn = jax.tree.map(lambda x, y: jnp.concatenate([x, y]), first, drawn)
    return replay._replace(key=key), splitting.split_trajectory(_time_first(drawn))


def is_ready(config: ReplayConfig, replay: Replay) -> Array:
    """Whether enough has been seen for an update."""
    return replay.num_added >= config.batch_size


def _batch_first(x: Trajectory) -> Trajectory:
    """[T, B, ...] -> [B, T, ...]; the recurrent state stays as it is, with its batch axis first."""
    return jax.tree.map(lambda x: jnp.moveaxis(x, 1, 0), x._replace(core_state=()))._replace(core_state=x.core_state)


_time_first = _batch_first  # its own inverse
