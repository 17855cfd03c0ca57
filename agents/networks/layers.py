"""Haiku's layers, as agents need them: products that are fast on CPUs, and a core in the precision of its inputs."""

from typing import Any

import haiku as hk
import jax
import jax.numpy as jnp

from agents import splitting
from agents.types import Array


class Linear(hk.Linear):
    """As Haiku's, with one axis of a batch in products: the gradients of several need transposed copies on CPUs.

    Axes of a batch that is split over devices stay as they are.
    """

    def __call__(self, inputs: Array, *, precision: Any = None) -> Array:
        if splitting.num_shares() > 1:
            return super().__call__(inputs, precision=precision)
        out = super().__call__(jnp.reshape(inputs, (-1, inputs.shape[-1])), precision=precision)
        return jnp.reshape(out, (*inputs.shape[:-1], self.output_size))


class LSTM(hk.LSTM):
    """As Haiku's, computed in the precision of its inputs, whatever that of the state."""

    def __call__(self, inputs: Array, prev_state: hk.LSTMState) -> tuple[Array, hk.LSTMState]:
        out, state = super().__call__(inputs, cast(prev_state, inputs.dtype))
        return out, cast(state, prev_state.cell.dtype)


def cast(tree: Any, dtype: Any) -> Any:
    """Return a pytree whose floating-point arrays have this dtype."""
    return jax.tree.map(lambda x: x.astype(dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x, tree)
