"""Passes over a trajectory in minibatches, by targets that are made once: how PPO uses experience."""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from agents import splitting
from agents.networks.agent import Agent
from agents.rule import UpdateRule
from agents.types import Array, Params, Predictions, Targets, Trajectory
from meta.updates import gradients

DOUBLE_ROUNDS = 4  # of `permutations`


class Passes(NamedTuple):
    """How an update uses its trajectory, and how far back η's gradient goes; the default is once, as a whole."""

    epochs: int = 1
    minibatches: int = 1
    truncation: int = 0  # minibatches that η's gradient goes through, the last ones; 0 for all

    @property
    def is_one(self) -> bool:
        """Whether a trajectory is used once, as a whole."""
        return self.epochs == self.minibatches == 1


class Context(NamedTuple):
    """What a minibatch's gradient depends on besides θ and the minibatch."""

    meta_params: Params
    targets: Targets


def draw(key: Array, trajectory: Trajectory, passes: Passes) -> Array:
    """Draw the minibatches of all passes: [epochs, minibatches, n] int32, each step once in every pass.

    They are numbers of steps; with the state of a core in the trajectory, whose steps must stay in their order, numbers
    of environments.
    """
    num_steps, batch_size = trajectory.action.shape
    num = batch_size if jax.tree.leaves(trajectory.core_state) else num_steps * batch_size
    return jnp.reshape(permutations(key, passes.epochs, num), (passes.epochs, passes.minibatches, -1))


def parted(indices: Array, truncation: int) -> tuple[Array, Array]:
    """Split minibatches [epochs, minibatches, n] into those before, and those that η's gradient goes through.

    Returns:
      both as [parts, minibatches of a part, n]: a part is what one gather takes, a whole pass if possible.
    """
    epochs, minibatches, size = indices.shape
    num = truncation or epochs * minibatches
    of_part = math.gcd(num, minibatches)
    parts = jnp.reshape(indices, (-1, of_part, size))
    first = len(parts) - num // of_part
    return parts[:first], parts[first:]


def permutations(key: Array, num: int, size: int) -> Array:
    """Draw permutations of the numbers below `size`, [num, size] int32, without a sort.

    A number stands for a pair of smaller ones. In turn a random function of one of the pair is added to the other one,
    modulo its size, which can be undone: a Feistel network, here of eight rounds. Any number may come to any place, any
    two all but independently, but there are far fewer such permutations than all. Where there are more pairs than
    numbers, a pair that stands for none is sent on until it does. Source: Black and Rogaway 2002 (Ciphers with
    arbitrary finite domains), sections 3 and 4; Luby and Rackoff 1988, of the rounds.
    """
    root = math.isqrt(size - 1) + 1
    lefts = [left for left in range(root, 2 * root) if left < size or size <= 2]  # else one of the pair is always 0
    left = min(lefts, key=lambda left: -size % left)  # those with the fewest pairs too many
    right = -(-size // left)
    tables = jax.random.bits(key, (DOUBLE_ROUNDS, num, left + right))
    of_left, of_right = jnp.int32(tables[..., :left] % right), jnp.int32(tables[..., left:] % left)

    def moved(numbers: Array) -> Array:
        high, low = numbers // right, numbers % right
        for to_low, to_high in zip(of_left, of_right, strict=True):
            high = (high + jnp.take_along_axis(to_high, low, axis=1)) % left
            low = (low + jnp.take_along_axis(to_low, high, axis=1)) % right
        return high * right + low

    found = moved(jnp.tile(jnp.arange(size), (num, 1)))
    if left * right == size:
        return found
    send_on = lambda numbers: jnp.where(numbers < size, numbers, moved(numbers))
    return jax.lax.while_loop(lambda numbers: jnp.any(numbers >= size), send_on, found)


def take(trajectory: Trajectory, targets: Targets, indices: Array) -> tuple[Trajectory, Targets]:
    """Take the minibatches [minibatches, n] of a pass from a trajectory [T, B, ...] and its targets, by one gather.

    Returns:
      both of the environments, [minibatches, T, n, ...], or of steps out of their order, [minibatches, n, 1, ...], or
      [minibatches, n / devices, devices, ...] where the batch is split over these: good for losses of single steps.
      There is then no observation after the last step (`minibatch_gradient`).
    """
    num, size = indices.shape
    if jax.tree.leaves(trajectory.core_state):
        environments = jax.vmap(lambda x, own: x[:, own], (None, 0))
        core_state = jax.tree.map(lambda x: x[indices], trajectory.core_state)
        part = jax.tree.map(lambda x: environments(x, indices), trajectory._replace(core_state=()))
        of_part = jax.tree.map(lambda x: environments(x, indices), targets)
        return splitting.split_trajectory(part._replace(core_state=core_state), 2), splitting.split(of_part, 2)

    shares = splitting.num_shares(size)

    def steps(x: Array) -> Array:
        merged = jnp.reshape(x, (-1, *x.shape[2:]))  # the last observations, at its end, are of no step
        return jnp.reshape(merged[jnp.ravel(indices)], (num, -1, shares, *x.shape[2:]))

    return splitting.split(jax.tree.map(steps, (trajectory, targets)), 2)


def minibatch_gradient(
    agent: Agent, rule: UpdateRule, mode: str
) -> Callable[..., tuple[Params, gradients.InnerOutput]]:
    """Make the function (θ, `Context`, minibatch as `take` makes it) -> ∇θ of the rule's loss, an empty InnerOutput.

    Where steps are out of their order, the last observation, which no loss of single steps sees, is one of its own
    again, and nothing is predicted of it.
    """
    again = lambda x: jnp.concatenate([x, x[-1:]])
    with_nothing = lambda x: jnp.concatenate([x, jnp.zeros_like(x[:1])])
    is_of_rows = not (rule.model_steps or rule.is_loss_of_taken)

    def predict(params: Params, whole: Trajectory) -> tuple[Predictions, Predictions]:
        if jax.tree.leaves(whole.core_state) or not is_of_rows:
            return gradients.predict(agent, rule, params, whole)
        part = whole._replace(observation=whole.observation[:-1], is_first=whole.is_first[:-1])
        predictions = jax.tree.map(with_nothing, agent.unroll(params, part))
        return predictions, predictions

    given = lambda known, context, whole: (context.targets, gradients.InnerOutput((), jnp.zeros(()), {}))
    of_whole = gradients.loss_gradient(rule, mode, predict, given)

    def gradient(params: Params, context: Context, part: Trajectory):
        if not jax.tree.leaves(part.core_state):
            part = part._replace(observation=again(part.observation), is_first=again(part.is_first))
        return of_whole(params, context, part)

    return gradient
