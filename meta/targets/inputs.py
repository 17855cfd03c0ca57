"""What a meta-network sees: each input is declared by name and computed here from a trajectory and predictions.

Source: Xu et al. 2020, section 3.2 (R, γ, v(S′)) and section 5.1 (π(S, A), μ(S, A)); `log_pi` and `value` are further
inputs of the learned-loss ablation (section 5.4), `td_error` is for relative targets (docs/papers/frodo.md).
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from agents.types import Array, Trajectory


class InputContext(NamedTuple):
    """The arrays that inputs are computed from.

    Attributes:
      trajectory: of T steps in B environments.
      discount: the agent's γ.
      values: V(S), [T, B].
      next_values: V(S′), [T, B].
      moved: the prediction that is moved to the target, V(S) or Q(S, A), [T, B].
      log_pi: log π(A|S), [T, B].
      log_mu: log μ(A|S), [T, B].
    """

    trajectory: Trajectory
    discount: float
    values: Array
    next_values: Array
    moved: Array
    log_pi: Array
    log_mu: Array

    @property
    def td_error(self) -> Array:
        """R + γ V(S′) − V(S), [T, B]."""
        return self.trajectory.reward + self.discount * self.trajectory.discount * self.next_values - self.moved

    def in_units(self, unit: Array) -> "InputContext":
        """Return the same with rewards and values divided by a number."""
        trajectory = self.trajectory._replace(reward=self.trajectory.reward / unit)
        values = {name: getattr(self, name) / unit for name in ("values", "next_values", "moved")}
        return self._replace(trajectory=trajectory, **values)


INPUTS: dict[str, Callable[[InputContext], Array]] = {
    "reward": lambda c: c.trajectory.reward,
    "discount": lambda c: c.discount * c.trajectory.discount,
    # Of a terminal state the value is 0 by definition, whatever the network says of the observation that follows.
    "next_value": lambda c: jnp.where(c.trajectory.discount > 0, c.next_values, 0.0),
    "value": lambda c: c.values,
    "td_error": lambda c: c.td_error,
    "pi": lambda c: jnp.exp(c.log_pi),
    "mu": lambda c: jnp.exp(c.log_mu),
    "log_pi": lambda c: c.log_pi,
}
"""What the meta-network of the rules frodo and learned_loss can see: name -> function of the context, [T, B]."""


def features(names: Sequence[str], context: InputContext) -> Array:
    """Stack inputs [T, B] to the meta-network's input [T, B, F]; zeros at steps that are not valid."""
    columns = [INPUTS[name](context) for name in names]
    stacked = jnp.stack([column.astype(context.values.dtype) for column in columns], axis=-1)
    return jnp.where(context.trajectory.valid[..., None], stacked, 0.0)


def td_error_size(context: InputContext) -> Array:
    """The root of the mean square of the TD errors at valid steps, without gradient: one positive number."""
    valid = context.trajectory.valid
    total = jnp.sum(jnp.where(valid, jnp.square(context.td_error), 0.0))
    return jax.lax.stop_gradient(jnp.sqrt(total / jnp.maximum(1, jnp.sum(valid))) + 1e-6)
