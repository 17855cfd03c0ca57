"""One step of an agent's lifetime, the same in both regimes: M updates of θ, then the outer loss's gradient to η.

The online regime calls it with the one agent there is, a population maps it over its agents.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from agents.networks import Agent
from agents.rule import RuleState, UpdateRule, masked_reduce
from agents.types import Array, Params, Predictions, Trajectory
from meta import gradients


class AgentState(NamedTuple):
    """All that an agent's updates change."""

    params: Params
    opt_state: optax.OptState
    rule_state: RuleState
    target_params: Params  # () where the rule has no target_decay


LifetimeStep = Callable[
    [Params, AgentState, Trajectory, Trajectory | None], tuple[AgentState, Params, dict[str, Array]]
]


def init_agent_state(
    agent: Agent, rule: UpdateRule, optimizer: optax.GradientTransformation, key: Array, observation: Array
) -> AgentState:
    """Start a lifetime; `observation` [B, ...] is a prepared one."""
    params = agent.init(key, observation)
    target_params = () if rule.target_decay is None else params
    return AgentState(params, optimizer.init(params), rule.init(), target_params)


def make_lifetime_step(
    agent: Agent,
    rule: UpdateRule,
    optimizer: optax.GradientTransformation,
    outer_loss: Callable[[Predictions, Trajectory], Array],
    mode: str = "mixed",
) -> LifetimeStep:
    """Make the function (η, agent state, trajectories, validation) -> new agent state, meta-gradient, metrics.

    Args:
      agent, rule, optimizer: what an update of θ consists of.
      outer_loss: predictions, validation trajectory -> [T, B]; reduced as the rule says.
      mode: how to differentiate through the updates, one of `gradients.MODES`.
    Returns:
      a function of trajectories stacked [M, T, B, ...] and one validation trajectory [T, B, ...]. Where the rule has
      no meta-parameters there is nothing to validate (None), and the meta-gradient is empty.
    """
    gradient = gradients.inner_gradient(agent, rule, mode)

    def update(carry, trajectory):
        meta_params, state = carry
        context = gradients.UpdateContext(meta_params, state.rule_state, state.target_params)
        grads, output = gradient(state.params, context, trajectory)
        grads = gradients.named_gradient(grads)
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        target_params = state.target_params
        if rule.target_decay is not None:
            target_params = optax.incremental_update(state.params, target_params, 1 - rule.target_decay)
        return (meta_params, AgentState(params, opt_state, output.rule_state, target_params)), (
            output.regulariser,
            output.metrics,
        )

    def objective(meta_params, state, trajectories, validation):
        (_, state), (regulariser, metrics) = gradients.through_updates(
            update, (meta_params, state), trajectories, mode if jax.tree.leaves(meta_params) else "reverse"
        )
        metrics = jax.tree.map(jnp.mean, metrics)
        if validation is None:
            return jnp.zeros(()), (state, metrics)
        predictions = agent.unroll(state.params, validation)
        loss = masked_reduce(outer_loss(predictions, validation), validation.valid, rule.reduction)
        metrics |= {"outer_loss": loss, "regulariser": jnp.sum(regulariser)}
        return loss + jnp.sum(regulariser), (state, metrics)

    def step(meta_params, state, trajectories, validation):
        if validation is None:
            _, (state, metrics) = objective(meta_params, state, trajectories, None)
            return state, jax.tree.map(jnp.zeros_like, meta_params), metrics
        meta_gradient, (state, metrics) = jax.grad(objective, has_aux=True)(
            meta_params, state, trajectories, validation
        )
        return state, meta_gradient, metrics

    return step
