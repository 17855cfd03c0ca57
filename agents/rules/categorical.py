"""Categorical distributions, given by their logits; numbers as distributions over bins.

The bins of a number x are the whole numbers from −n to n, of h(x) = sign(x) (√(|x| + 1) − 1) + .001 x (Pohlen et al.
2018, as Schrittwieser et al. 2020 use it).
"""

import jax
import jax.numpy as jnp

from agents.lazy import rlax
from agents.types import Array


def log_probability(logits: Array, action: Array) -> Array:
    """log π(a): logits [..., A] and actions [...] int32 -> [...]."""
    return rlax.batched_index(jax.nn.log_softmax(logits), action)


def entropy(logits: Array) -> Array:
    """H of a distribution, [..., N] -> [...]."""
    log_p = jax.nn.log_softmax(logits)
    return -jnp.sum(jnp.exp(log_p) * log_p, axis=-1)


def kl_divergence(p_logits: Array, q_logits: Array) -> Array:
    """KL(p ‖ q), [..., N] -> [...]."""
    log_p, log_q = jax.nn.log_softmax(p_logits), jax.nn.log_softmax(q_logits)
    return jnp.sum(jnp.exp(log_p) * (log_p - log_q), axis=-1)


def expectation(logits: Array, x: Array) -> Array:
    """Σᵢ softmax(logits)ᵢ xᵢ, [..., N] and [N, K] -> [..., K], in fewer passes over memory than the softmax itself."""
    exponentials = jnp.exp(logits - jax.lax.stop_gradient(logits.max(axis=-1, keepdims=True)))
    sums = exponentials @ jnp.concatenate([x, jnp.ones_like(x[:, :1])], axis=-1)
    return sums[..., :-1] / sums[..., -1:]


def to_scalars(logits: Array) -> Array:
    """The numbers that distributions over bins stand for, [..., bins] -> [...]: h⁻¹ of the mean bin."""
    limit = logits.shape[-1] // 2
    bins = jnp.linspace(-limit, limit, logits.shape[-1], dtype=logits.dtype)
    return rlax.signed_parabolic(expectation(logits, bins[:, None])[..., 0])


def two_hot(x: Array, num_bins: int) -> Array:
    """Share h(x) out over its two nearest bins, [...] -> [..., bins]: probabilities."""
    limit = num_bins // 2
    return rlax.transform_to_2hot(rlax.signed_hyperbolic(x), -limit, limit, num_bins)


def bin_shares(x: Array, valid: Array, num_bins: int) -> Array:
    """Mean share of each bin in the numbers x of valid steps, [T, B] and [T, B] bool -> [bins]; 0 if there are none."""
    return jnp.tensordot(valid.astype(x.dtype), two_hot(x, num_bins), 2) / jnp.maximum(1, jnp.sum(valid))


def two_hot_loss(x: Array, logits: Array) -> Array:
    """Cross-entropy of distributions over bins, [..., bins], to h(x), [...], shared out over its two nearest bins."""
    return -jnp.sum(two_hot(x, logits.shape[-1]) * jax.nn.log_softmax(logits), axis=-1)
