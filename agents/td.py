"""Multi-step returns on trajectories, and TD(λ) as a hand-made rule."""

import jax
import jax.numpy as jnp
import rlax

from agents.rule import UpdateRule
from agents.types import Array, PredictionSpec, Trajectory


def vtrace(trajectory: Trajectory, values: Array, rho: Array, discount: float, lambda_: float) -> tuple[Array, Array]:
    """Compute V-trace targets and advantages; with ρ = 1 the targets are λ-returns.

    vₜ = V(xₜ) + δₜ + γₜ cₜ (vₜ₊₁ − V(xₜ₊₁)), with δₜ = ρ̄ₜ (rₜ + γₜ V(xₜ₊₁) − V(xₜ)), cₜ = λ ρ̄ₜ, ρ̄ₜ = min(1, ρₜ).
    Source: Espeholt et al. 2018, Eq. 1 and Remark 1.

    A truncated step bootstraps and cuts the trace; at a step that is not valid the target is the value itself and the
    advantage is 0.

    Args:
      trajectory: of which reward, discount, truncated and valid are used.
      values: V of every observation, [T + 1, B].
      rho: importance ratios π(a) / μ(a), [T, B].
      discount: the agent's γ.
      lambda_: λ.
    Returns:
      targets, and advantages ρ̄ₜ (rₜ + γₜ (λ vₜ₊₁ + (1 − λ) V(xₜ₊₁)) − V(xₜ)), both [T, B], without gradient.
    """
    rho = jnp.where(trajectory.valid, rho, 0).astype(values.dtype)
    discounts = (discount * trajectory.discount).astype(values.dtype)
    lambdas = jnp.where(trajectory.truncated, 0, lambda_).astype(values.dtype)
    rewards = trajectory.reward.astype(values.dtype)
    out = jax.vmap(rlax.vtrace_td_error_and_advantage, in_axes=1, out_axes=1)(
        values[:-1], values[1:], rewards, discounts, rho, lambdas
    )
    return jax.lax.stop_gradient((out.errors + values[:-1], out.pg_advantage))


def td_lambda(discount: float, lambda_: float) -> UpdateRule:
    """TD(λ) prediction: move v(S) to the λ-return, mean squared error."""

    def apply(meta_params, rule_state, trajectory, predictions, target_predictions):
        values = predictions["value"]
        return vtrace(trajectory, values, jnp.ones_like(values[1:]), discount, lambda_)[0], rule_state

    return UpdateRule(
        spec=lambda num_actions: {"value": PredictionSpec()},
        init_meta_params=lambda key, num_actions: {},
        init=lambda: (),
        apply=apply,
        loss=lambda targets, predictions, trajectory: jnp.square(targets - predictions["value"][:-1]),
        policy=uniform_policy,
        reduction="mean",
    )


def uniform_policy(predictions) -> Array:
    """Where there is nothing to choose: logits of the one action."""
    return jnp.zeros((*predictions["value"].shape, 1))
