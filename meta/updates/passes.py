"""Passes over a trajectory in minibatches, by targets that are made once: how PPO uses experience."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from agents import splitting
from agents.types import Array, Targets, Trajectory


class Passes(NamedTuple):
    """How an update uses its trajectory; (1, 1) is once, as a whole."""

    epochs: int
    minibatches: int


def draw(key: Array, trajectory: Trajectory, passes: Passes) -> Array:
    """Draw the minibatches of all passes: [epochs · minibatches, n] int32, each step once in every pass.

    They are numbers of steps; with the state of a core in the trajectory, whose steps must stay in their order, numbers
    of environments.
    """
    num_steps, batch_size = trajectory.action.shape
    num = batch_size if jax.tree.leaves(trajectory.core_state) else num_steps * batch_size
    permute = jax.vmap(lambda key: jax.random.permutation(key, num))
    return jnp.reshape(permute(jax.random.split(key, passes.epochs)), (passes.epochs * passes.minibatches, -1))


def take(trajectory: Trajectory, targets: Targets, indices: Array) -> tuple[Trajectory, Targets]:
    """Take a minibatch [n] of a trajectory [T, B, ...] and of its targets.

    Returns:
      both of the environments, [T, n, ...], or of steps out of their order, [n, 1, ...], or [n / devices, devices, ...]
      where the batch is split over these: good for losses of single steps. Its last observation, which no such loss
      sees, is then one of its own again.
    """
    if jax.tree.leaves(trajectory.core_state):
        core_state = jax.tree.map(lambda x: x[indices], trajectory.core_state)
        part = jax.tree.map(lambda x: x[:, indices], trajectory._replace(core_state=()))._replace(core_state=core_state)
        return splitting.split_trajectory(part), splitting.split(jax.tree.map(lambda x: x[:, indices], targets), 1)

    indices = jnp.reshape(indices, (-1, splitting.num_shares(len(indices))))

    def steps(x: Array, indices: Array = indices) -> Array:
        return jnp.reshape(x, (-1, *x.shape[2:]))[indices]

    seen = (trajectory.observation[:-1], trajectory.is_first[:-1])
    observation, is_first = (steps(x, jnp.concatenate([indices, indices[-1:]])) for x in seen)
    others = trajectory._replace(observation=trajectory.action, is_first=trajectory.valid)  # in the place of both
    part = jax.tree.map(steps, others)._replace(observation=observation, is_first=is_first)
    return splitting.split((part, jax.tree.map(steps, targets)), 1)
