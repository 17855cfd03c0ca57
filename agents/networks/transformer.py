"""Transformer-XL: the core of an agent that attends to its last steps. Source: Dai et al. 2019, Section 3.

As in AdA (2023, Appendix C.1), each part of a layer reads normalised inputs (Parisotto et al. 2020), the feed-forward
part is gated (Shazeer 2020), and what attention reads is cached. A step attends to itself and to the M steps before it,
as far as they are of its episode: to the same ones as a single step and in a trajectory, wherever that begins. No
gradient flows into the cache.
"""

from collections.abc import Callable
from typing import NamedTuple

import haiku as hk
import jax
import jax.numpy as jnp

from agents.types import Array


class Memory(NamedTuple):
    """What the attention of each layer read in the last M + 1 steps of B environments.

    It is a ring: step n of an episode is in slot n modulo M + 1, where the next step no longer reaches what was there.
    """

    inputs: tuple[Array, ...]  # of each layer [B, M + 1, d]
    num_steps: Array  # [B] int32, those of the present episode so far: what else is in the ring is not read


class Weights(NamedTuple):
    """The weights of attention with H heads of size k; in Dai et al. 2019 W_q, W_kE, W_kR, W_v, u and v."""

    query: Array  # [d, H, k]
    key: Array  # [d, H, k], of what was read
    distance: Array  # [d, H, k], of how many steps ago
    value: Array  # [d, H, k]
    output: Array  # [d, H, k], back to d
    key_bias: Array  # [H, k]
    distance_bias: Array  # [H, k]


class TransformerXL(hk.Module):
    """Layers of attention and of a gated feed-forward part, which has 4 d hidden units."""

    def __init__(self, size: int, num_heads: int, activation: Callable[[Array], Array], name: str = "transformer"):
        super().__init__(name=name)
        self._size, self._num_heads, self._activation = size, num_heads, activation

    def __call__(self, x: Array, is_first: Array, memory: Memory) -> tuple[Array, Memory | None]:
        """x [T, B, F], is_first [T, B] -> [T, B, d], and the memory after a single step; None after more."""
        cached, num_steps = jax.lax.stop_gradient(memory)
        num_before = jnp.where(is_first[0], 0, num_steps)
        is_step = len(x) == 1
        x = hk.Linear(self._size, name="embedding")(jnp.swapaxes(x, 0, 1))
        rings = []
        for i, ring in enumerate(cached):
            weights, inputs = self._weights(i, x.dtype), _normalised(x, f"attention_norm_{i}")
            if is_step:
                ring = write(ring, inputs[:, 0], num_before)
                x = x + attend_once(weights, inputs[:, 0], ring, num_before)[:, None]
                rings.append(ring)
            else:
                x = x + attend(weights, inputs, is_first.T, ring, num_steps)
            hidden = hk.Linear(8 * self._size, name=f"hidden_{i}")(_normalised(x, f"hidden_norm_{i}"))
            gate, hidden = jnp.split(hidden, 2, axis=-1)
            x = x + hk.Linear(self._size, name=f"feed_forward_{i}")(self._activation(gate) * hidden)
        x = jnp.swapaxes(_normalised(x, "norm"), 0, 1)
        return x, Memory(tuple(rings), num_before + 1) if is_step else None

    def _weights(self, i: int, dtype: jnp.dtype) -> Weights:
        heads = (self._num_heads, self._size // self._num_heads)
        init = hk.initializers.TruncatedNormal(self._size**-0.5)
        matrix = lambda name: hk.get_parameter(f"{name}_{i}", (self._size, *heads), dtype, init)
        bias = lambda name: hk.get_parameter(f"{name}_{i}", heads, dtype, jnp.zeros)
        return Weights(*map(matrix, Weights._fields[:5]), *map(bias, Weights._fields[5:]))


def empty_memory(batch_size: int, length: int, num_layers: int, size: int) -> Memory:
    """Return the memory before the first step, for M of that length."""
    zeros = jnp.zeros((batch_size, length + 1, size), float)
    return Memory((zeros,) * num_layers, jnp.zeros(batch_size, jnp.int32))


def write(ring: Array, inputs: Array, num_before: Array) -> Array:
    """Write a step's inputs [B, d] into a ring [B, M + 1, d]; so many steps of its episode were before it, [B]."""
    return ring.at[jnp.arange(len(ring)), num_before % ring.shape[1]].set(inputs)


def attend_once(weights: Weights, inputs: Array, ring: Array, num_before: Array) -> Array:
    """Attend from a step, [B, d], to itself and to those before it, all in the ring [B, M + 1, d]: [B, d].

    The query is brought into the space of the inputs, qᵀ(W x) = (Wᵀq)ᵀx, and the mean of the inputs into that of the
    values: no keys and values are made of each slot.
    """
    attention = attention_once(weights, inputs, ring, num_before)
    read = jnp.einsum("bhn,bnd->bhd", attention, ring)
    values = jnp.einsum("bhd,dhk->bhk", read, weights.value)
    return jnp.einsum("bhk,dhk->bd", values, weights.output)


def attention_once(weights: Weights, inputs: Array, ring: Array, num_before: Array) -> Array:
    """Return how much a step reads of each slot of the ring, as `attend_once` has them: [B, H, M + 1], sums of 1."""
    num_slots = ring.shape[1]
    distance = (num_before[:, None] - jnp.arange(num_slots)) % num_slots  # of the step in each slot
    query = jnp.einsum("bd,dhk->bhk", inputs, weights.query)
    keys = jnp.einsum("bhk,dhk->bhd", query + weights.key_bias, weights.key)
    of_distance = jnp.einsum("bhk,nhk->bhn", query + weights.distance_bias, _distances(weights, num_slots))
    of_slot = jnp.take_along_axis(of_distance, distance[:, None], axis=-1)
    scores = jnp.einsum("bhd,bnd->bhn", keys, ring) + of_slot
    return _softmax(scores, weights, (distance <= num_before[:, None])[:, None])


def attend(weights: Weights, inputs: Array, is_first: Array, ring: Array, num_steps: Array) -> Array:
    """Attend from each step of a trajectory, [B, T, d], to itself and to those before it: [B, T, d].

    The ring [B, M + 1, d] has what was read before the trajectory, where `num_steps` [B] are of the present episode.
    """
    t, m = inputs.shape[1], ring.shape[1] - 1
    before = num_steps[:, None] + jnp.arange(-m, 0)  # numbers in their episode of the M steps before
    old = jnp.take_along_axis(ring, (before % (m + 1))[..., None], axis=1)
    known = jnp.concatenate([old, inputs], axis=1)
    episode = jnp.cumsum(is_first, axis=1)
    episode_known = jnp.concatenate([jnp.where(before >= 0, 0, -1), episode], axis=1)
    distance = m + jnp.arange(t)[:, None] - jnp.arange(m + t)
    is_reached = (episode[..., None] == episode_known[:, None]) & (distance >= 0) & (distance <= m)

    query = jnp.einsum("btd,dhk->bhtk", inputs, weights.query)
    keys = jnp.einsum("bnd,dhk->bhnk", known, weights.key)
    values = jnp.einsum("bnd,dhk->bhnk", known, weights.value)
    # [B, H, T, M + 1] from the furthest to the nearest: row t is of the steps t to t + M of the known ones.
    far_to_near = jnp.flip(_distances(weights, m + 1), axis=0)
    of_distance = jnp.einsum("bhtk,nhk->bhtn", query + weights.distance_bias[:, None], far_to_near)
    rows = jnp.pad(of_distance, ((0, 0), (0, 0), (0, 0), (0, t)))
    of_known = jnp.reshape(jnp.reshape(rows, (*rows.shape[:2], -1))[..., :-t], (*rows.shape[:3], m + t))
    scores = jnp.einsum("bhtk,bhnk->bhtn", query + weights.key_bias[:, None], keys) + of_known
    attention = _softmax(scores, weights, is_reached[:, None])
    read = jnp.einsum("bhtn,bhnk->bhtk", attention, values)
    return jnp.einsum("bhtk,dhk->btd", read, weights.output)


def _softmax(scores: Array, weights: Weights, is_reached: Array) -> Array:
    return jax.nn.softmax(jnp.where(is_reached, scores * weights.query.shape[-1] ** -0.5, -jnp.inf))


def _distances(weights: Weights, num: int) -> Array:
    """Return the keys of distances 0, 1, … steps, [num, H, k], from sines and cosines (Vaswani et al. 2017)."""
    size = len(weights.distance)
    angles = jnp.arange(num)[:, None] * 10_000.0 ** -(jnp.arange(0, size, 2) / size)
    waves = jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)[:, :size]
    return jnp.einsum("nd,dhk->nhk", waves.astype(weights.distance.dtype), weights.distance)


def _normalised(x: Array, name: str) -> Array:
    return hk.LayerNorm(-1, create_scale=True, create_offset=True, name=name)(x)
