"""Optimisers of agents, of η and of meta-value functions, as meta-gradients need them."""

import dataclasses
from typing import Annotated

import jax
import jax.numpy as jnp
import optax

from agents.settings import Bounds, OneOf, Positive, PositiveOrInf, check_settings
from agents.types import Array, Params

ADAM_B1 = 0.9


@dataclasses.dataclass
class OptimizerConfig:
    """An optimiser; the defaults are those of Xu et al. 2020, Table 1.

    Attributes:
      learning_rate: Learning rate, positive.
      decay: Decay of the moving mean of squares (β₂ of Adam, whose β₁ is 0.9), from 0 to below 1.
      epsilon: ε, positive; of RMSProp inside of the square root.
      max_gradient_norm: Global norm that gradients are clipped to, positive; inf for none.
      name: Kind of optimiser: 'rmsprop', 'adam', or 'sgd', without decay and ε.
      max_update: What each entry of an update is clipped to, before the learning rate, positive; inf for none.
    """

    learning_rate: Positive = 1e-3
    decay: Annotated[float, Bounds("a number from 0 to below 1", lambda x: 0 <= x < 1)] = 0.99
    epsilon: Positive = 0.1
    max_gradient_norm: PositiveOrInf = 1e4
    name: Annotated[str, OneOf(("rmsprop", "adam", "sgd"))] = "rmsprop"
    max_update: PositiveOrInf = float("inf")

    def validate(self, prefix: str) -> None:
        """Raise a ValueError that names the first bad setting, after the prefix."""
        check_settings(self, f"{prefix}.")

    def make(self, num_updates: int = 0) -> optax.GradientTransformation:
        """Make the optimiser; with `num_updates`, the learning rate falls in a line and is 0 after so many updates."""
        if self.name == "adam":
            scale = scale_by_adam_with_constant_denominator(self.decay, self.epsilon)
        elif self.name == "sgd":
            scale = optax.identity()
        else:
            scale = optax.scale_by_rms(self.decay, self.epsilon, eps_in_sqrt=True)
        before = [] if self.max_gradient_norm == float("inf") else [clip_by_global_norm(self.max_gradient_norm)]
        after = [] if self.max_update == float("inf") else [optax.clip(self.max_update)]
        rate = optax.linear_schedule(self.learning_rate, 0.0, num_updates) if num_updates else self.learning_rate
        return optax.chain(*before, scale, *after, optax.scale_by_learning_rate(rate))


def adam(learning_rate: float, max_gradient_norm: float = float("inf"), max_update: float = float("inf")):
    """Return the settings of Adam with a decay of .999 and ε = 1e-8; the arguments are fields of `OptimizerConfig`."""
    return OptimizerConfig(learning_rate, 0.999, 1e-8, max_gradient_norm, "adam", max_update)


def sgd(learning_rate: float) -> OptimizerConfig:
    """Return the settings of plain gradient descent."""
    return OptimizerConfig(learning_rate, max_gradient_norm=float("inf"), name="sgd")


def clip_by_global_norm(max_norm: float) -> optax.GradientTransformation:
    """As optax's, but with a finite derivative where the gradient is 0; optax's is not a number there."""

    def update(grads, state, params=None):
        square = optax.tree.norm(grads, squared=True)
        is_large = square > max_norm**2
        norm = jnp.sqrt(jnp.where(is_large, square, 1.0))
        return jax.tree.map(lambda g: jnp.where(is_large, g / norm * max_norm, g), grads), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def scale_by_adam_with_constant_denominator(b2: float, epsilon: float) -> optax.GradientTransformation:
    """Adam (b1 = 0.9) whose denominator is a constant in derivatives through the update.

    Source: Oh et al. 2025, public code. The derivative of 1 / (√v + ε) is very large where gradients are small.
    """
    adam = optax.scale_by_adam(ADAM_B1, b2, epsilon)

    def update(grads, state, params=None):
        count = optax.safe_increment(state.count)
        mu = optax.tree.update_moment(grads, state.mu, ADAM_B1, 1)
        nu = optax.tree.update_moment(jax.lax.stop_gradient(grads), state.nu, b2, 2)
        mu_hat = optax.tree.bias_correction(mu, ADAM_B1, count)
        nu_hat = optax.tree.bias_correction(nu, b2, count)
        updates = jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + epsilon), mu_hat, nu_hat)
        return updates, optax.ScaleByAdamState(count, mu, nu)

    return optax.GradientTransformation(adam.init, update)


def update_if(
    is_used: Array, optimizer: optax.GradientTransformation, gradient: Params, state: optax.OptState, params: Params
) -> tuple[Params, optax.OptState]:
    """Compute updates as `optimizer.update` does where `is_used`; else they are zeros, and the state stays."""
    updates = optimizer.update(gradient, state, params)
    nothing = jax.tree.map(jnp.zeros_like, updates[0]), state
    return jax.tree.map(lambda new, old: jnp.where(is_used, new, old), updates, nothing)
