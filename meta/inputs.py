"""What a meta-network sees: each input is declared by name and computed here from a trajectory and predictions.

Source: Xu et al. 2020, section 3.2 (R, γ, v(S′)) and section 5.1 (π(S, A), μ(S, A)); `log_pi` and `value` are further
inputs of the learned-loss ablation (section 5.4).
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax.numpy as jnp

from agents.types import Array, Trajectory


class InputContext(NamedTuple):
    """The arrays that inputs are computed from."""

    trajectory: Trajectory
    discount: float  # the agent's γ
    values: Array  # V(S), [T, B]
    next_values: Array  # V(S′), [T, B]
    log_pi: Array  # log π(A|S), [T, B]
    log_mu: Array  # log μ(A|S), [T, B]


INPUTS: dict[str, Callable[[InputContext], Array]] = {
    "reward": lambda c: c.trajectory.reward,
    "discount": lambda c: c.discount * c.trajectory.discount,
    # Of a terminal state the value is 0 by definition, whatever the network says of the observation that follows.
    "next_value": lambda c: c.trajectory.discount * c.next_values,
    "value": lambda c: c.values,
    "pi": lambda c: jnp.exp(c.log_pi),
    "mu": lambda c: jnp.exp(c.log_mu),
    "log_pi": lambda c: c.log_pi,
}


def features(names: Sequence[str], context: InputContext) -> Array:
    """Stack inputs [T, B] to the meta-network's input [T, B, F]; zeros at steps that are not valid."""
    columns = [INPUTS[name](context) for name in names]
    stacked = jnp.stack([column.astype(context.values.dtype) for column in columns], axis=-1)
    return jnp.where(context.trajectory.valid[..., None], stacked, 0.0)
