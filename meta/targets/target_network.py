"""The meta-network: from a trajectory's features to targets, by an LSTM that reads backwards in time (or, to compare, a
transformer that sees nothing but the future).

A scalar target (FRODO, Xu et al. 2020, section 3.2) and the categorical ones of DiscoRL (Oh et al. 2025, Methods) are
the same network with other inputs and another target spec. Per-action targets are made with weights that the actions
share, from embeddings of per-action inputs. The lifetime LSTM takes one step per update and scales what the reverse
LSTM puts out.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import haiku as hk
import jax
import jax.numpy as jnp

from agents import splitting
from agents.types import Array, TargetSpec


class TargetInputs(NamedTuple):
    """What a `TargetNetwork` sees, per step, and per step and action.

    Attributes:
      features: [T, B, F].
      action_features: [T, B, A, C], None without per-action inputs.
      action: [T, B] int32, which of the actions was taken; with action_features only.
      target_features: [T, B, K], of the targets that were made, for the lifetime LSTM.
    """

    features: Array
    action_features: Array | None = None
    action: Array | None = None
    target_features: Array | None = None


@dataclasses.dataclass(frozen=True)
class TargetNetworkConfig:
    """Sizes of the meta-network.

    Attributes:
      lstm: Units of the core, which reads the trajectory.
      lifetime_lstm: Units of the lifetime LSTM, 0 for none.
      action_embedding: Units of the layers shared between actions, where there are per-action inputs.
      head_stddev: Standard deviation of the heads' first weights, none for 1 / √inputs.
      core: One of CORES.
    """

    lstm: int = 256
    lifetime_lstm: int = 0
    action_embedding: tuple[int, ...] = (16, 2)
    head_stddev: float | None = None
    core: str = "lstm"


LifetimeLSTMState = hk.LSTMState  # hidden and cell, [lifetime_lstm] each


def initial_lifetime_lstm_state(config: TargetNetworkConfig) -> LifetimeLSTMState | tuple[()]:
    """Return the rule state at the start of a lifetime; () without a lifetime LSTM."""
    return LifetimeLSTMState(*(jnp.zeros(config.lifetime_lstm, float),) * 2) if config.lifetime_lstm else ()


class TargetNetwork(hk.Module):
    """Reverse-time LSTM with a head for each entry of a target spec; a module of Haiku.

    Args:
      config: its sizes.
      spec: what it puts out, by name; entries that are per action need per-action inputs.
    """

    def __init__(self, config: TargetNetworkConfig, spec: TargetSpec, name: str = "target_network"):
        super().__init__(name=name)
        self._config, self._spec = config, spec

    def __call__(
        self, make_inputs: Callable[..., TargetInputs], is_last: Array, lifetime_state: Any
    ) -> tuple[dict[str, Array], LifetimeLSTMState | tuple[()]]:
        """Compute the targets of one trajectory.

        Args:
          make_inputs: () -> TargetInputs; a function, because its embeddings have weights. The lifetime LSTM calls it
            again, with the targets, and has weights of its own.
          is_last: [T, B] bool, steps across which nothing is propagated.
          lifetime_state: that of the update before; () without a lifetime LSTM.
        Returns:
          for each name of the spec [T, B, *shape] or [T, B, A, *shape], and the lifetime state for the next update.
        """
        inputs = make_inputs()
        features, embedding = self._embed(inputs)
        x = CORES[self._config.core](self._config.lstm)(features, is_last)
        if self._config.lifetime_lstm:
            scale = hk.Linear(self._config.lstm, w_init=hk.initializers.TruncatedNormal(1.0), name="lifetime_scale")
            x = x * scale(lifetime_state.hidden)
        targets = {}
        for name, target in self._spec.items():
            if target.is_per_action:
                if embedding is None:
                    raise ValueError(
                        f"target {name!r} is one for each action, expected a network with per-action inputs"
                    )
                repeated = jnp.broadcast_to(x[..., None, :], (*embedding.shape[:-1], x.shape[-1]))
                hidden = shared_layer(jnp.concatenate([repeated, embedding], axis=-1), 16, name=f"{name}_hidden")
                targets[name] = self._head(hidden, target.shape, name)
            else:
                targets[name] = self._head(x, target.shape, name)
        if self._config.lifetime_lstm:
            summary = self._head(x, (1,), "summary")
            lifetime_state = self._next_lifetime_state(lambda: make_inputs(targets), summary, lifetime_state)
        return targets, lifetime_state

    @hk.transparent
    def _head(self, x: Array, shape: tuple[int, ...], name: str) -> Array:
        stddev = self._config.head_stddev
        w_init = None if stddev is None else hk.initializers.TruncatedNormal(stddev)
        return jnp.reshape(hk.Linear(math.prod(shape), w_init=w_init, name=name)(x), (*x.shape[:-1], *shape))

    @hk.transparent
    def _embed(self, inputs: TargetInputs) -> tuple[Array, Array | None]:
        """Append the mean and the taken action's embedding to the features."""
        if inputs.action_features is None or inputs.action is None:
            return inputs.features, None
        embedding = inputs.action_features
        for size in self._config.action_embedding:
            embedding = shared_layer(embedding, size, name="action_embedding")
        taken = jnp.take_along_axis(embedding, inputs.action[..., None, None], axis=2)[:, :, 0]
        return jnp.concatenate([inputs.features, embedding.mean(axis=2), taken], axis=-1), embedding

    @hk.transparent
    def _next_lifetime_state(self, make_inputs, summary: Array, state: LifetimeLSTMState) -> LifetimeLSTMState:
        with hk.name_scope("lifetime"):
            inputs = make_inputs()
            columns = [self._embed(inputs)[0], summary]
            if inputs.target_features is not None:
                columns.append(inputs.target_features)
            embedded = hk.Linear(16, name="embedding")(jnp.concatenate(columns, axis=-1))
            return hk.LSTM(self._config.lifetime_lstm)(embedded.mean(axis=(0, 1)), state)[1]


class ReverseLSTM(hk.Module):
    """An LSTM (gates i, g, f, o; forget bias 1) over time backwards, from a zero state, set to zero again at
    `is_last`."""

    def __init__(self, size: int, name: str = "lstm"):
        super().__init__(name=name)
        self._size = size

    def __call__(self, x: Array, is_last: Array) -> Array:
        """x [T, B, F], is_last [T, B] -> hidden states [T, B, size]."""
        size, num_features = self._size, x.shape[-1]
        std = (num_features + size) ** -0.5
        w = hk.get_parameter("w", (num_features + size, 4 * size), x.dtype, hk.initializers.TruncatedNormal(std))
        b = hk.get_parameter("b", (4 * size,), x.dtype, jnp.zeros)
        keep = (~is_last)[..., None].astype(x.dtype)
        return splitting.by_share(backwards)((w, b), x, keep)


Weights = tuple[Array, Array]  # w [F + size, 4 size], b [4 size]


@jax.custom_vjp
def backwards(weights: Weights, x: Array, keep: Array) -> Array:
    """Go over time backwards, from inputs [T, B, F] to hidden states [T, B, size].

    The derivative keeps cells and what goes into the gates, and has one product for the weights, of all steps.
    """
    return _states(weights, x, keep)[0]


def _states(weights: Weights, x: Array, keep: Array) -> tuple[Array, Array, Array]:
    """Return hidden states, cells, and what goes into the gates, [T, B, ...]."""
    w_x, w_hidden = _parts(weights[0])
    projected = x @ w_x + weights[1]  # for all steps at once, outside of the scan

    def step(state, inputs):
        projected, keep = inputs
        hidden, cell = state[0] * keep, state[1] * keep
        gates = projected + hidden @ w_hidden
        i, g, f, o = _activated(gates)
        cell = f * cell + i * g
        hidden = o * jnp.tanh(cell)
        return (hidden, cell), (hidden, cell, gates)

    i, g, _, o = _activated(projected[-1])  # the last step: its state before is zero, without a product
    cell = i * g
    last = o * jnp.tanh(cell)
    states = jax.lax.scan(step, (last, cell), (projected[:-1], keep[:-1]), reverse=True)[1]
    return jax.tree.map(lambda xs, x: jnp.concatenate([xs, x[None]]), states, (last, cell, projected[-1]))


def _parts(w: Array) -> tuple[Array, Array]:
    num_features = len(w) - w.shape[1] // 4
    return w[:num_features], w[num_features:]


def _activated(gates: Array) -> tuple[Array, Array, Array, Array]:
    i, g, f, o = jnp.split(gates, 4, axis=-1)
    return jax.nn.sigmoid(i), jnp.tanh(g), jax.nn.sigmoid(f + 1.0), jax.nn.sigmoid(o)


def _forward(weights: Weights, x: Array, keep: Array):
    hidden, cells, gates = _states(weights, x, keep)
    return hidden, (weights, x, hidden, cells, gates, keep)


def _transposed(residuals: tuple[Any, ...], cotangent: Array):
    (w, _), x, hidden, cells, gates, keep = residuals
    w_x, w_hidden = _parts(w)
    i, g, f, o = _activated(gates)
    squashed = jnp.tanh(cells)
    before, cell_before = hidden[1:] * keep[:-1], cells[1:] * keep[:-1]  # what all steps but the last begin with
    none = jnp.zeros_like(i)
    of_f = jnp.concatenate([cell_before, none[:1]]) * f * (1 - f)
    # The cotangent of the gates' inputs is linear in the cell's, and its last part in the hidden state's.
    of_cell = jnp.stack([g * i * (1 - i), i * (1 - jnp.square(g)), of_f, none], axis=-2)
    of_hidden = jnp.stack([none, none, none, squashed * o * (1 - o)], axis=-2)
    to_cell = o * (1 - jnp.square(squashed))

    def of_gates(carry, inputs):
        d_hidden, d_cell = carry
        cotangent, of_cell, of_hidden, to_cell, f, keep = inputs
        d_hidden = cotangent + d_hidden
        d_cell = d_cell + d_hidden * to_cell
        d_gates = d_cell[:, None] * of_cell + d_hidden[:, None] * of_hidden
        return jnp.reshape(d_gates, (len(d_cell), -1)), d_cell * f * keep

    def step(carry, inputs):
        d_gates, d_cell = of_gates(carry, inputs)
        return (d_gates @ w_hidden.T * inputs[-1], d_cell), d_gates

    zeros = jnp.zeros_like(cotangent[0])
    inputs = (cotangent, of_cell, of_hidden, to_cell, f, keep)
    carry, d_gates = jax.lax.scan(step, (zeros, zeros), jax.tree.map(lambda x: x[:-1], inputs))
    last, _ = of_gates(carry, jax.tree.map(lambda x: x[-1], inputs))
    d_w = jnp.einsum("tbi,tbj->ij", jnp.concatenate([x[:-1], before], axis=-1), d_gates)
    d_w = d_w.at[: x.shape[-1]].add(x[-1].T @ last)  # the last step begins with nothing
    d_gates = jnp.concatenate([d_gates, last[None]])
    return (d_w, d_gates.sum((0, 1))), d_gates @ w_x.T, jnp.zeros_like(keep)


backwards.defvjp(_forward, _transposed)


class FutureTransformer(hk.Module):
    """Two layers of attention, each step to itself and to those after it of the same episode.

    Positions are sines and cosines of the step. Source: Vaswani et al. 2017, normalised before each part as in Xiong et
    al. 2020. The size of the LSTM's state must be a multiple of the four heads.
    """

    NUM_LAYERS, NUM_HEADS = 2, 4

    def __init__(self, size: int, name: str = "transformer"):
        super().__init__(name=name)
        self._size = size

    def __call__(self, x: Array, is_last: Array) -> Array:
        """x [T, B, F], is_last [T, B] -> [T, B, size]."""
        num_steps, size = len(x), self._size
        rates = 10_000.0 ** -jnp.linspace(0, 1, size // 2, endpoint=False)
        angles = jnp.arange(num_steps)[:, None] * rates
        positions = jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1).astype(x.dtype)
        ended = jnp.cumsum(is_last, axis=0) - is_last  # episodes that ended before the step
        steps = jnp.arange(num_steps)
        sees = (steps[:, None] <= steps) & (ended.T[:, :, None] == ended.T[:, None, :])  # [B, T, T]
        norm = lambda x: hk.LayerNorm(-1, create_scale=True, create_offset=True)(x)
        init = hk.initializers.VarianceScaling(1.0)
        x = jnp.swapaxes(hk.Linear(size)(x) + positions[:, None], 0, 1)  # [B, T, size]
        for _ in range(self.NUM_LAYERS):
            attention = hk.MultiHeadAttention(self.NUM_HEADS, size // self.NUM_HEADS, w_init=init, model_size=size)
            y = norm(x)
            x = x + attention(y, y, y, mask=sees[:, None])
            x = x + hk.Linear(size)(jax.nn.relu(hk.Linear(4 * size)(norm(x))))
        return jnp.swapaxes(norm(x), 0, 1)


CORES: dict[str, Any] = {"lstm": ReverseLSTM, "transformer": FutureTransformer}


def shared_layer(x: Array, size: int, name: str) -> Array:
    """One layer with weights shared between actions, which also sees their mean: [T, B, A, C] -> [T, B, A, size]."""
    mean = jnp.broadcast_to(x.mean(axis=2, keepdims=True), x.shape)
    return jax.nn.relu(hk.Linear(size, name=name)(jnp.concatenate([x, mean], axis=-1)))
