"""The interface of update rules, the same for hand-made and for learned ones, and the one masked reduction."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp

from agents.types import Array, Params, Predictions, Targets, TargetSpec, Trajectory

RuleState = Any  # a pytree of arrays, carried from update to update; () for most


class UpdateRule(NamedTuple):
    """How an agent's predictions are moved: pure functions, and what an agent must predict for them.

    A hand-made rule has no meta-parameters (an empty pytree) and ignores the argument. Losses are per step, [T, B]:
    the caller reduces them with `masked_reduce`.

    Attributes:
      spec: num_actions -> the predictions that an agent must make.
      init_meta_params: key, num_actions -> meta-parameters η.
      init: () -> rule state at the start of a lifetime.
      apply: meta_params, rule_state, trajectory, predictions, target_predictions -> targets, rule state. The last
        argument holds predictions of a slowly moving copy of the agent (the same ones again where there is none).
      loss: targets, predictions, trajectory -> [T, B]. Meta-gradient flows through it.
      loss_without_meta: the same, for what must not carry meta-gradient, or None.
      regulariser: targets, target predictions, trajectory -> [T, B], what an update adds to the *outer* loss, or None.
      metrics: targets, predictions, trajectory -> named scalars to log.
      target_decay: of the moving average of the agent's parameters that `target_predictions` come from, or None.
      policy: predictions -> logits of the distribution it acts by, [..., A].
      reduction: 'sum' or 'mean', over time and batch, of the losses.
      is_target_constant: whether targets are constants in the gradient with respect to the agent's parameters. The
        meta-gradient flows through them in any case.
      is_loss_of_taken: whether the losses use predictions that are one for each action at the taken action only, by
        `q_learning.taken_vectors`. Targets must then be constants.
    """

    spec: Callable[[int], TargetSpec]
    init_meta_params: Callable[[Array, int], Params]
    init: Callable[[], RuleState]
    apply: Callable[[Params, RuleState, Trajectory, Predictions, Predictions], tuple[Targets, RuleState]]
    loss: Callable[[Targets, Predictions, Trajectory], Array]
    policy: Callable[[Predictions], Array]
    loss_without_meta: Callable[[Targets, Predictions, Trajectory], Array] | None = None
    regulariser: Callable[[Targets, Predictions, Trajectory], Array] | None = None
    metrics: Callable[[Targets, Predictions, Trajectory], dict[str, Array]] = lambda *_: {}
    target_decay: float | None = None
    reduction: str = "sum"
    is_target_constant: bool = True
    is_loss_of_taken: bool = False


def masked_reduce(loss: Array, valid: Array, reduction: str) -> Array:
    """Reduce a per-step loss [T, B] over its valid steps; 'mean' divides by their number (by 1 if there are none)."""
    total = jnp.sum(jnp.where(valid, loss, 0.0))
    if reduction == "sum":
        return total
    if reduction == "mean":
        return total / jnp.maximum(1, jnp.sum(valid))
    raise ValueError(f"reduction is {reduction!r}, expected 'sum' or 'mean'")
