"""One step of an agent's lifetime, the same in both regimes: M updates of θ, then the outer loss's gradient to η.

The online regime calls it with the one agent there is, a population maps it over its agents.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from agents.networks import Agent
from agents.rule import RuleState, UpdateRule, masked_reduce
from agents.types import Array, Params, Trajectory
from meta import gradients
from meta.outer import Outer


class AgentState(NamedTuple):
    """All that an agent's updates change."""

    params: Params
    opt_state: optax.OptState
    rule_state: RuleState
    target_params: Params  # () where the rule has no target_decay
    outer_state: Any  # of the outer objective, () for those without one


LifetimeStep = Callable[
    [Params, AgentState, Trajectory, Trajectory | None], tuple[AgentState, Params, dict[str, Array]]
]


def init_agent_state(
    agent: Agent,
    rule: UpdateRule,
    optimizer: optax.GradientTransformation,
    outer: Outer,
    key: Array,
    observation: Array,
) -> AgentState:
    """Start a lifetime; `observation` [B, ...] is a prepared one."""
    params = agent.init(key, observation)
    target_params = () if rule.target_decay is None else params
    outer_state = outer.init(jax.random.fold_in(key, 1), observation)
    return AgentState(params, optimizer.init(params), rule.init(), target_params, outer_state)


def make_lifetime_step(
    agent: Agent, rule: UpdateRule, optimizer: optax.GradientTransformation, outer: Outer, mode: str = "mixed"
) -> LifetimeStep:
    """Make the function (η, agent state, trajectories, validation) -> new agent state, meta-gradient, metrics.

    Args:
      agent, rule, optimizer: what an update of θ consists of.
      outer: the outer objective; its losses, and what the rule adds to them, are reduced as the rule says.
      mode: how to differentiate through the updates, one of `gradients.MODES`.
    Returns:
      a function of trajectories stacked [M, T, B, ...] and one validation trajectory [T, B, ...]. Where there is no η
      to learn there is nothing to validate (None), and the meta-gradient is 0, or empty.
    """
    gradient = gradients.inner_gradient(agent, rule, mode)
    over_updates = {"sum": jnp.sum, "mean": jnp.mean}[rule.reduction]

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
        state = AgentState(params, opt_state, output.rule_state, target_params, state.outer_state)
        return (meta_params, state), (output.regulariser, output.metrics)

    def objective(meta_params, state, trajectories, validation):
        (_, state), (regulariser, metrics) = gradients.through_updates(
            update, (meta_params, state), trajectories, mode if jax.tree.leaves(meta_params) else "reverse"
        )
        metrics = jax.tree.map(jnp.mean, metrics)
        if validation is None:
            return jnp.zeros(()), (state, metrics)
        predictions, _ = gradients.predict(agent, rule, state.params, validation)
        losses, outer_state = outer.loss(state.outer_state, predictions, validation)
        loss = masked_reduce(losses, validation.valid, rule.reduction)
        metrics |= {"outer_loss": loss, "regulariser": over_updates(regulariser)}
        state = state._replace(outer_state=jax.lax.stop_gradient(outer_state))
        return loss + over_updates(regulariser), (state, metrics)

    def step(meta_params, state, trajectories, validation):
        if validation is None:
            _, (state, metrics) = objective(meta_params, state, trajectories, None)
            return state, jax.tree.map(jnp.zeros_like, meta_params), metrics
        meta_gradient, (state, metrics) = jax.grad(objective, has_aux=True)(
            meta_params, state, trajectories, validation
        )
        return state, meta_gradient, metrics

    return step


def clip_rewards(trajectory: Trajectory, max_abs_reward: float) -> Trajectory:
    """Clip rewards to what is learned from."""
    return trajectory._replace(reward=jnp.clip(trajectory.reward, -max_abs_reward, max_abs_reward))


def make_update(
    step: LifetimeStep, meta_params: Params, max_abs_reward: float, is_in_turn: bool
) -> Callable[[AgentState, Trajectory], AgentState]:
    """Make the function that changes who acts after each trajectory: one update of θ, or nothing.

    In turn, every trajectory is acted by the θ that it updates, as it is where updates are not taken M at a time.
    """

    def update(state: AgentState, trajectory: Trajectory) -> AgentState:
        if not is_in_turn:
            return state
        one = jax.tree.map(lambda x: x[None], clip_rewards(trajectory, max_abs_reward))
        return step(meta_params, state, one, None)[0]

    return update
