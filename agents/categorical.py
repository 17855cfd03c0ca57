"""Categorical distributions, given by their logits."""

import jax
import jax.numpy as jnp
import rlax

from agents.types import Array


def log_probability(logits: Array, action: Array) -> Array:
    """log π(a), [..., A] and [...] int32 -> [...]."""
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
