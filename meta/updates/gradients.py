"""The gradient of an outer loss with respect to η through M updates of θ: one entry point, three ways to compute it.

`reverse` keeps every activation of every update. `remat` keeps only what each update starts from, and its gradient.
`mixed` keeps the same and computes an update's vector-Jacobian product as the forward-mode derivative of its gradient
(`mixed_mode.py`), which needs the least memory and, on CPU, the least time. All three give the same numbers.

One update's gradient is g = N′(θ)ᵀ ∂L/∂P: P = N(θ) are the network's predictions, L(T(P, η), P) is the rule's loss.
Where targets are constants for θ, ∂/∂P does not reach the P inside of T; the derivative of g itself always does.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from agents.networks.agent import Agent
from agents.rule import RuleState, UpdateRule, masked_reduce
from agents.types import Array, Params, Predictions, Targets, Trajectory
from agents.validation import check_choice
from meta.updates.mixed_mode import held, with_mixed_derivative

MODES = ("reverse", "remat", "mixed")


class UpdateContext(NamedTuple):
    """What an update's gradient depends on besides θ and the trajectory."""

    meta_params: Params
    rule_state: RuleState
    target_params: Params  # slowly moving copy of θ, () where the rule has none


class InnerOutput(NamedTuple):
    """What an update computes besides its gradient."""

    rule_state: RuleState
    regulariser: Array  # what it adds to the outer loss
    metrics: dict[str, Array]


class Source(NamedTuple):
    """Where the trajectories of an iteration come from: they are given, or θ acts each one that it then learns from.

    Attributes:
      num: M, the updates of the iteration.
      take: own state, the agent's state -> own state, and what `read` makes a trajectory of.
      read: -> trajectory [T, B, ...]; inside of what is computed anew where that saves memory.
      validation: own state, the agent's state -> own state and the validation trajectory; None where there is none.
    """

    num: int
    take: Callable[[Any, Any], tuple[Any, Any]]
    read: Callable[[Any], Trajectory]
    validation: Callable[[Any, Any], tuple[Any, Trajectory]] | None


def given(trajectories: Trajectory, validation: Trajectory | None) -> tuple[Source, Array]:
    """Return the source of trajectories [M, T, B, ...] that are there, and its state, the number of the next one."""
    index = lambda i: jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, i, keepdims=False), trajectories)
    last = None if validation is None else lambda i, state: (i, validation)
    return Source(len(trajectories.action), lambda i, state: (i + 1, i), index, last), jnp.zeros((), jnp.int32)


def through_updates(
    body: Callable, carry: Any, source: Source, of_source: Any, num: int, mode: str, first: Trajectory | None = None
) -> tuple[Any, Any, Any]:
    """Scan `body(carry, trajectory)` over `num` trajectories; return carry, the source's state, and what is stacked.

    The carry is (η, state of the agent). `mode` says what is kept for the backward pass. The first update, on `first`
    if that is given, runs before the scan: nothing that it starts from depends on η, so the compiler can leave out the
    derivatives with respect to that.
    """
    check_choice("gradient_mode", mode, MODES)
    on_first, on_taken = body, lambda carry, taken: body(carry, source.read(taken))  # no copy of what is given is kept
    if mode != "reverse":
        policy = jax.checkpoint_policies.save_only_these_names("inner_gradient")
        on_first, on_taken = (jax.checkpoint(fn, policy=policy, prevent_cse=False) for fn in (on_first, on_taken))

    def update(both, _):
        carry, of_source = both
        of_source, taken = source.take(of_source, jax.lax.stop_gradient(carry[1]))
        carry, found = on_taken(carry, taken)
        return (carry, of_source), found

    if first is None:
        both, one = update((carry, of_source), None)
    else:
        carry, one = on_first(carry, first)
        both = carry, of_source
    (carry, of_source), others = jax.lax.scan(update, both, None, length=num - 1)
    return carry, of_source, jax.tree.map(lambda x, xs: jnp.concatenate([x[None], xs]), one, others)


def predict(agent: Agent, rule: UpdateRule, params: Params, trajectory: Trajectory) -> tuple[Predictions, Predictions]:
    """Return the predictions that the rule's losses take, and those that its targets are made from."""
    if rule.model_steps:
        return agent.unroll_model(params, trajectory, rule.model_steps)
    if rule.is_loss_of_taken:
        return agent.unroll_taken(params, trajectory)
    predictions = unroll(agent, rule, params, trajectory, rule.is_last_constant)
    return predictions, predictions


def unroll(
    agent: Agent, rule: UpdateRule, params: Params, trajectory: Trajectory, is_last_constant: bool = False
) -> Predictions:
    """Return predictions by these parameters; of a single transition each observation's on its own.

    The compiler then leaves out what the rule does not read: of DQN's products half. If the last is to be constant, no
    gradient flows from its prediction to the parameters.
    """
    if not is_transition(rule, trajectory):
        return agent.unroll(params, trajectory)
    last_params = jax.lax.stop_gradient(params) if is_last_constant else params
    each = [
        agent.step(own, observation, is_first, ())[0]
        for own, observation, is_first in zip(
            (params, last_params), trajectory.observation, trajectory.is_first, strict=True
        )
    ]
    return jax.tree.map(lambda *of: jnp.stack(of), *each)


def is_transition(rule: UpdateRule, trajectory: Trajectory) -> bool:
    return rule.is_of_transitions and len(trajectory.action) == 1 and not jax.tree.leaves(trajectory.core_state)


def make_targets(agent: Agent, rule: UpdateRule) -> Callable[..., tuple[Targets, InnerOutput]]:
    """Make the function (predictions, context, trajectory) -> the rule's targets, InnerOutput."""

    def targets_of(known: Predictions, context: UpdateContext, trajectory: Trajectory) -> tuple[Targets, InnerOutput]:
        target_params = context.target_params
        target_predictions = known if target_params == () else unroll(agent, rule, target_params, trajectory)
        targets, rule_state = rule.apply(context.meta_params, context.rule_state, trajectory, known, target_predictions)
        regulariser = jnp.zeros(())
        if rule.regulariser:
            losses = rule.regulariser(targets, target_predictions, trajectory)
            regulariser = masked_reduce(losses, trajectory.valid, rule.reduction)
        metrics = jax.lax.stop_gradient(rule.metrics(targets, known, trajectory))
        return targets, InnerOutput(rule_state, regulariser, metrics)

    return targets_of


def inner_gradient(agent: Agent, rule: UpdateRule, mode: str) -> Callable[..., tuple[Params, InnerOutput]]:
    """Make the function (θ, context, trajectory) -> ∇θ of the rule's loss, InnerOutput, for `UpdateContext`s."""
    of_known = loss_gradient(rule, mode, functools.partial(predict, agent, rule), make_targets(agent, rule))
    known = lambda trajectory: trajectory.known_transitions if is_transition(rule, trajectory) else trajectory
    return lambda params, context, trajectory: of_known(params, context, known(trajectory))


def loss_gradient(
    rule: UpdateRule, mode: str, predict: Callable[..., tuple[Predictions, Predictions]], targets_of: Callable[..., Any]
) -> Callable[..., tuple[Params, InnerOutput]]:
    """Make the function (θ, context, trajectory) -> ∇θ of the rule's loss, InnerOutput.

    It is differentiable with respect to θ and the context. Losses of `rule.loss_without_meta` are in the gradient,
    but not in its derivative.

    Args:
      rule: whose loss it is.
      mode: how to differentiate it, one of `MODES`.
      predict: θ, trajectory -> predictions that the losses take, and those that the targets are made from.
      targets_of: the latter, context, trajectory -> targets, InnerOutput. Of the context it needs `meta_params` alone
        where the targets are in there.
    """

    def reduced(loss: Array, trajectory: Trajectory) -> Array:
        return masked_reduce(loss, trajectory.valid, rule.reduction)

    def losses(predictions, known, context, trajectory: Trajectory):
        """Return the loss of `predictions` with targets computed from `known`, and the other outputs."""
        targets, output = targets_of(known, context, trajectory)
        loss = rule.loss(targets, predictions, trajectory)
        if rule.meta_loss:
            loss = loss + rule.meta_loss(context.meta_params, targets, predictions, trajectory)
        return reduced(loss, trajectory), (output, targets)

    def gradient(params: Params, context, trajectory: Trajectory) -> tuple[Params, InnerOutput]:
        predictions, pull, known = jax.vjp(lambda params: predict(params, trajectory), params, has_aux=True)
        if rule.is_target_constant:
            of_loss = jax.grad(lambda p: losses(p, known, context, trajectory), has_aux=True)
        else:
            of_loss = jax.grad(lambda p: losses(p, p, context, trajectory), has_aux=True)
        cotangent, (output, targets) = of_loss(predictions)
        (grads,) = pull(cotangent)
        if rule.loss_without_meta:
            loss_without_meta = rule.loss_without_meta
            fixed = jax.grad(lambda p: reduced(loss_without_meta(targets, p, trajectory), trajectory))(predictions)
            grads = _with_derivative_of(pull(jax.tree.map(jnp.add, cotangent, fixed))[0], grads)
        return grads, output

    def objective(params: Params, context, trajectory: Trajectory) -> tuple[Array, InnerOutput]:
        predictions, known = predict(params, trajectory)
        known = held(known) if rule.is_target_constant else known
        loss, (output, _) = losses(predictions, known, context, trajectory)
        return loss, output._replace(metrics={})

    return with_mixed_derivative(gradient, objective) if mode == "mixed" else gradient


@jax.custom_jvp
def _with_derivative_of(value: Any, other: Any) -> Any:
    """Return `value` with the derivative of `other`.

    The compiler leaves out what only the value of `other` needs: one backward pass serves both losses.
    """
    del other
    return value


@_with_derivative_of.defjvp
def _(primals, tangents):
    return _with_derivative_of(*primals), tangents[1]


def named_gradient(grads: Params) -> Params:
    """Mark an update's gradient as what the rematerialising modes keep."""
    return checkpoint_name(grads, "inner_gradient")
