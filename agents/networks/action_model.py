"""The action model: an LSTM that takes one step for every action, from a state made of an agent's embedding.

Source: Oh et al. 2025, Methods.
"""

from collections.abc import Callable
from typing import NamedTuple

import haiku as hk
import jax
import jax.numpy as jnp

from agents.types import Array


class TakenInTurn(NamedTuple):
    """Actions of which each is taken after the one before."""

    actions: Array  # [T, B, N]


def action_model(size: int, num_actions: int, embedding: Array) -> Callable[[Array | TakenInTurn], Array]:
    """An LSTM from embedding [T, B, F]: actions [N] or [T, B, N] -> hidden states [T, B, N, size] one step later.

    Gates i, g, f, o, forget bias 1, as `hk.LSTM` has them. The state before is the same for all actions, and the
    one-hot action picks a row of weights: the large product is not repeated for each action. Of actions that are taken
    in turn, the hidden states are those after each.
    """
    w_init = hk.initializers.TruncatedNormal((num_actions + size) ** -0.5)
    cell = hk.Linear(size, name="action_model_cell")(embedding)[..., None, :]
    weights = hk.Linear(4 * size, w_init=w_init, name="action_model_state")
    of_state = weights(jnp.tanh(cell))
    of_action = hk.Linear(4 * size, with_bias=False, w_init=w_init, name="action_model_action")

    def step(of_state: Array, cell: Array, actions: Array) -> tuple[Array, Array]:
        gates = of_state + of_action(jax.nn.one_hot(actions, num_actions, dtype=cell.dtype))
        i, g, f, o = jnp.split(gates, 4, axis=-1)
        new_cell = jax.nn.sigmoid(f + 1.0) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
        return jax.nn.sigmoid(o) * jnp.tanh(new_cell), new_cell

    def after(actions: Array | TakenInTurn) -> Array:
        if not isinstance(actions, TakenInTurn):
            return step(of_state, cell, actions)[0]
        hidden, new_cell = step(of_state, cell, actions.actions[..., :1])
        found = [hidden]
        for i in range(1, actions.actions.shape[-1]):
            hidden, new_cell = step(weights(hidden), new_cell, actions.actions[..., i : i + 1])
            found.append(hidden)
        return jnp.concatenate(found, axis=-2)

    return after
