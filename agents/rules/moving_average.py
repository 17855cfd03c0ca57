"""Moving mean and mean square of a quantity over updates, and normalisation by them.

Source: Oh et al. 2025, Methods; the constants are those of the published rule, Disco103.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from agents.rule import masked_reduce
from agents.types import Array

DECAY, EPSILON, ROOT_EPSILON = 0.99, 1e-6, 1e-12


class MovingAverage(NamedTuple):
    """Mean and mean square, initially biased to 0, as `decay_product` says; all scalars."""

    moment1: Array
    moment2: Array
    decay_product: Array


def initial_average() -> MovingAverage:
    """Return the average of nothing yet."""
    return MovingAverage(jnp.zeros(()), jnp.zeros(()), jnp.ones(()))


def update_average(average: MovingAverage, x: Array, valid: Array) -> MovingAverage:
    """Update the average by the means of x [T, B] and of its square over valid steps, if there are any."""
    mix = lambda old, new: DECAY * old + (1 - DECAY) * masked_reduce(new, valid, "mean")
    new = MovingAverage(mix(average.moment1, x), mix(average.moment2, jnp.square(x)), DECAY * average.decay_product)
    return jax.tree.map(lambda new, old: jnp.where(jnp.any(valid), new, old), new, average)


def normalise(average: MovingAverage, x: Array, is_centred: bool = True) -> Array:
    """Divide x by the standard deviation; with `is_centred`, subtract the mean before."""
    mean, square = (moment / _weight(average) for moment in average[:2])
    variance = jnp.maximum(0.0, square - jnp.square(mean))
    centred = x - mean if is_centred else x
    return centred / (jnp.sqrt(variance + ROOT_EPSILON) + EPSILON)


def root_mean_square(average: MovingAverage) -> Array:
    """Return the root of the mean square."""
    return jnp.sqrt(average.moment2 / _weight(average) + ROOT_EPSILON)


def _weight(average: MovingAverage) -> Array:
    """Return the sum of the weights of what was seen; of nothing yet it is no 0, which would make gradients nan."""
    return jnp.maximum(1 - average.decay_product, ROOT_EPSILON)
