"""Multi-step returns on trajectories: V-trace and λ-returns of values, Retrace of action values."""

import functools

import jax
import jax.numpy as jnp

from agents.lazy import rlax
from agents.rules.action_values import taken
from agents.rules.categorical import log_probability
from agents.types import Array, Trajectory, successors
from agents.validation import check_shape


def importance_ratios(logits: Array, trajectory: Trajectory) -> Array:
    """ρ = π(A|S) / μ(A|S) of the taken actions: logits of π [T + 1, B, A] -> [T, B]."""
    log_mu = log_probability(trajectory.behaviour_logits, trajectory.action)
    return jnp.exp(taken(jax.nn.log_softmax(logits), trajectory) - log_mu)


def vtrace(
    trajectory: Trajectory,
    values: Array,
    rho: Array,
    discount: float | Array,
    lambda_: float | Array,
    is_constant: bool = True,
    alpha: float | Array = 1.0,
) -> tuple[Array, Array]:
    """Compute V-trace targets and advantages.

    vₜ = V(xₜ) + δₜ + γₜ cₜ (vₜ₊₁ − V(xₜ₊₁)), with δₜ = ρ̄ₜ (rₜ + γₜ V(xₜ₊₁) − V(xₜ)), cₜ = λ ρ̄ₜ, ρ̄ₜ = min(1, ρₜ).
    Source: Espeholt et al. 2018, Eq. 1 and Remark 1.

    Leaky V-trace has α min(1, ρₜ) + (1 − α) ρₜ in the place of min(1, ρₜ) (Zahavy et al. 2020).

    A truncated step bootstraps, by `agents.types.successors`, and cuts the trace; at a step that is not valid the
    target is the value itself and the advantage is 0.

    Args:
      trajectory: of which reward, discount, truncated, is_first and valid are used.
      values: V of every observation, [T + 1, B].
      rho: importance ratios π(a) / μ(a), [T, B].
      discount: the agent's γ.
      lambda_: λ.
      is_constant: whether what is returned has no gradient.
      alpha: α, from 0 (importance sampling) to 1 (V-trace).
    Returns:
      targets, and advantages ρ̄ₜ (rₜ + γₜ (λ vₜ₊₁ + (1 − λ) V(xₜ₊₁)) − V(xₜ)), both [T, B].
    Raises:
      ValueError: naming the argument whose shape is not that.
    """
    num_steps, batch_size = trajectory.reward.shape
    check_shape("values", values, (num_steps + 1, batch_size))
    check_shape("rho", rho, (num_steps, batch_size))
    rho = jnp.where(trajectory.valid, rho, 0).astype(values.dtype)
    discounts = (discount * trajectory.discount).astype(values.dtype)
    lambdas = jnp.where(trajectory.truncated, 0, lambda_).astype(values.dtype)
    rewards = trajectory.reward.astype(values.dtype)
    clipped, returns = jnp.minimum(1, rho), rlax.vtrace_td_error_and_advantage
    if not isinstance(alpha, float) or alpha < 1:
        clipped = alpha * clipped + (1 - alpha) * rho
        returns = functools.partial(rlax.leaky_vtrace_td_error_and_advantage, alpha=alpha)
    one = lambda lambda_, *of: returns(*of, lambda_=lambda_, stop_target_gradients=False)
    next_values = successors(values, trajectory)
    out = jax.vmap(one, in_axes=1, out_axes=1)(lambdas, values[:-1], next_values, rewards, discounts, rho)
    # Where the trace is cut, rlax's advantage takes V of the next observation, whosever it is.
    of_unknown = clipped * (rewards + discounts * next_values - values[:-1])
    advantage = jnp.where(trajectory.is_successor_unknown, of_unknown, out.pg_advantage)
    found = out.errors + values[:-1], advantage
    return jax.lax.stop_gradient(found) if is_constant else found


def lambda_returns(
    trajectory: Trajectory, values: Array, discount: float | Array, lambda_: float | Array, is_constant: bool = True
) -> tuple[Array, Array]:
    """Compute λ-returns and their advantages: `vtrace` with ρ = 1, whose arguments, shapes and errors these have.

    Gₜ = rₜ + γₜ ((1 − λ) V(xₜ₊₁) + λ Gₜ₊₁), the advantage is Gₜ − V(xₜ). Source: Sutton and Barto 2018, Eq. 12.18.
    """
    return vtrace(trajectory, values, jnp.ones_like(values[1:]), discount, lambda_, is_constant)


def retrace(
    trajectory: Trajectory, target_q: Array, target_v: Array, rho: Array, discount: float, lambda_: float
) -> Array:
    """Compute Retrace targets of the taken actions.

    Gₜ = rₜ + γₜ [Vₜ₊₁ + cₜ₊₁ (Gₜ₊₁ − Qₜ₊₁(aₜ₊₁))], cₜ = λ min(1, ρₜ). Source: Munos et al. 2016, Eq. 3.

    A truncated step bootstraps, by `agents.types.successors`, and cuts the trace.

    Args:
      trajectory: of which action, reward, discount, truncated, is_first and valid are used.
      target_q: Q of every observation and action, [T + 1, B, A].
      target_v: V of every observation, [T + 1, B].
      rho: importance ratios π(a) / μ(a), [T, B].
      discount: the agent's γ.
      lambda_: λ.
    Returns:
      targets, [T, B].
    Raises:
      ValueError: naming the argument whose shape is not that.
    """
    num_steps, batch_size = trajectory.reward.shape
    check_shape("target_q", target_q, (num_steps + 1, batch_size, None))
    check_shape("target_v", target_v, (num_steps + 1, batch_size))
    check_shape("rho", rho, (num_steps, batch_size))
    is_cut = (trajectory.truncated | ~trajectory.valid)[:-1] | ~trajectory.valid[1:]
    c = jnp.where(is_cut, 0.0, lambda_ * jnp.minimum(1.0, rho[1:])).astype(target_q.dtype)
    return jax.vmap(rlax.general_off_policy_returns_from_q_and_v, in_axes=1, out_axes=1)(
        taken(target_q, trajectory)[1:],
        successors(target_v, trajectory),
        trajectory.reward.astype(target_q.dtype),
        (discount * trajectory.discount).astype(target_q.dtype),
        c,
    )
