"""The interface of update rules, the same for hand-designed and for learned ones, and the one masked reduction."""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp

from agents.settings import OneOf
from agents.types import Array, Params, Predictions, Targets, TargetSpec, Trajectory, check_predictions
from agents.validation import check_choice, check_shape

RuleState = Any  # a pytree of arrays, carried from update to update; () for most
REDUCTIONS = ("sum", "mean")
OUTER_VALUE = "outer_value"  # a prediction of this name is the value by the outer objective's discount
Reduction = Annotated[str, OneOf(REDUCTIONS)]  # of a setting


class UpdateRule(NamedTuple):
    """How an agent's predictions are moved: pure functions, and the spec of the predictions that they take.

    A hand-designed rule has no meta-parameters (an empty pytree) and ignores the argument. Losses are per step, [T, B]:
    the caller reduces them with `masked_reduce`.

    Attributes:
      spec: num_actions -> the predictions that an agent must make.
      apply: meta_params, rule_state, trajectory, predictions, target_predictions -> targets, rule state.
        `target_predictions` are those of a slowly moving copy of the agent (without one, `predictions` again).
      loss: targets, predictions, trajectory -> [T, B]. Meta-gradient flows through it.
      policy: predictions -> logits of the distribution that the agent acts by, [..., A].
      random_meta_params: key, num_actions -> meta-parameters η at random; {} for a hand-designed rule.
      init: () -> rule state at the start of a lifetime.
      meta_loss: η, targets, predictions, trajectory -> [T, B], added to `loss`, of rules whose loss has η in it and not
        in its targets alone; or None.
      update_scale: η -> what the optimiser's updates of θ are multiplied by; None for nothing.
      loss_without_meta: as `loss`, for losses through which no meta-gradient may flow, or None.
      regulariser: targets, target predictions, trajectory -> [T, B], a part of the *outer* loss for each update, or
        None.
      metrics: targets, predictions, trajectory -> named scalars to log.
      target_decay: the decay of the moving average of the parameters that the agent's updates begin with, the slowly
        moving copy; None for no copy, or for a hard one.
      target_period: updates after which the parameters are copied, if the slowly moving copy is a hard one; else 0.
      reduction: of the losses over time and batch, 'sum' or 'mean'.
      is_target_constant: whether targets are constants in the gradient with respect to the agent's parameters. The
        meta-gradient flows through them in any case.
      is_loss_of_taken: whether the losses use per-action predictions at the taken action only, through
        `action_values.taken_vectors`. Targets must then be constants.
      model_steps: K, where the losses take per-action predictions after 1 to K taken actions, [T + 1, B, K, ...], as
        `Agent.unroll_model` makes them; targets must then be constants, too. 0 for losses without these.
      is_of_order: whether losses take predictions of a step's successor, so that steps must be in their order.
      is_of_transitions: whether targets and losses are of each step and its successor alone. Of one step with a known
        successor only those predictions are then made that are read (`Trajectory.known_transitions`).
      is_last_constant: whether targets and losses carry no gradient to the agent's own predictions at the last
        observation; to those of its copy they may.
      is_target_acting: whether the slowly moving copy acts, in the place of the agent.
      with_known_values: η, predictions, trajectory, γ of the outer objective -> the predictions that the outer
        objective takes, with values that are known in the place of learned ones: 'value' by the rule's γ, and
        `OUTER_VALUE` by that of the outer objective. None where values are learned.
    """

    spec: Callable[[int], TargetSpec]
    apply: Callable[[Params, RuleState, Trajectory, Predictions, Predictions], tuple[Targets, RuleState]]
    loss: Callable[[Targets, Predictions, Trajectory], Array]
    policy: Callable[[Predictions], Array]
    random_meta_params: Callable[[Array, int], Params] = lambda key, num_actions: {}
    init: Callable[[], RuleState] = lambda: ()
    loss_without_meta: Callable[[Targets, Predictions, Trajectory], Array] | None = None
    regulariser: Callable[[Targets, Predictions, Trajectory], Array] | None = None
    metrics: Callable[[Targets, Predictions, Trajectory], dict[str, Array]] = lambda *_: {}
    target_decay: float | None = None
    target_period: int = 0
    reduction: str = "sum"
    is_target_constant: bool = True
    is_loss_of_taken: bool = False
    model_steps: int = 0
    is_of_transitions: bool = False
    is_of_order: bool = False
    is_last_constant: bool = False
    is_target_acting: bool = False
    with_known_values: Callable[[Params, Predictions, Trajectory, float], Predictions] | None = None
    update_scale: Callable[[Params], Array] | None = None
    meta_loss: Callable[[Params, Targets, Predictions, Trajectory], Array] | None = None

    @property
    def is_copy_hard(self) -> bool:
        """Whether the slow copy is made at once, every `target_period` updates."""
        return self.target_period > 0

    @property
    def has_copy(self) -> bool:
        """Whether there is a slowly moving copy of the agent."""
        return self.is_copy_hard or self.target_decay is not None

    def meta_param_shapes(self, num_actions: int = 2) -> Params:
        """Return the shapes and dtypes of η."""
        return jax.eval_shape(lambda: self.random_meta_params(jax.random.key(0), num_actions))


def of_own_targets(rule: UpdateRule) -> dict[str, Any]:
    """Return the rule's functions of targets but its loss, by name, as functions of targets with a part `own`.

    For rules that are made of another one by `_replace`.
    """

    def of_own(fn: Callable[..., Any] | None) -> Callable[..., Any] | None:
        return fn and (lambda *of: fn(*of[:-3], of[-3].own, *of[-2:]))

    names = "meta_loss", "loss_without_meta", "regulariser", "metrics"
    return {name: of_own(getattr(rule, name)) for name in names}


def with_checked_predictions(rule: UpdateRule) -> UpdateRule:
    """Return the rule with an `apply` that raises a ValueError for predictions that do not fit the rule's spec.

    Shapes alone are compared, when the function is traced: a compiled program does not pay for it.
    """

    def apply(meta_params, rule_state, trajectory, predictions, target_predictions):
        spec = rule.spec(trajectory.behaviour_logits.shape[-1])
        check_predictions(predictions, spec, trajectory)
        check_predictions(target_predictions, spec, trajectory)
        return rule.apply(meta_params, rule_state, trajectory, predictions, target_predictions)

    return rule._replace(apply=apply)


def masked_reduce(loss: Array, valid: Array, reduction: str) -> Array:
    """Reduce a per-step loss over its valid steps; 'mean' divides by their number (by 1 if there are none).

    Args:
      loss: [T, B].
      valid: [T, B] bool.
      reduction: 'sum' or 'mean'.
    Returns:
      a scalar; gradients flow to the valid steps only.
    Raises:
      ValueError: if the two shapes differ, or the reduction is neither.
    """
    check_choice("reduction", reduction, REDUCTIONS)
    check_shape("loss", loss, valid.shape)
    total = jnp.sum(jnp.where(valid, loss, 0.0))
    return total if reduction == "sum" else total / jnp.maximum(1, jnp.sum(valid))


def masked_means(named: Mapping[str, Array], valid: Array) -> dict[str, Array]:
    """Return the mean of each over its valid steps, by `masked_reduce`: of metrics."""
    return {name: masked_reduce(x, valid, "mean") for name, x in named.items()}
