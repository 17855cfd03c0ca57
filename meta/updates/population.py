"""The population regime: one η learned by many agents, each in its own environment, over many lifetimes.

In a meta-step every agent takes M updates of its θ on M trajectories, and one more trajectory gives the outer loss,
whose gradient to η the agent's own optimiser turns into an update of η. η moves by the mean of the agents' updates (Oh
et al. 2025, Methods: η ← η + 1/n Σ ADAM(gᵢ)). An agent's lifetime ends when it has used up its budget of environment
steps: it is then made anew. Agents whose environments share a program (`Environment.program`) are a group, one compiled
program, and run one after another or vmapped; the agents of a group are shared out over a device mesh.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, PartitionSpec

from agents.acting import in_jax as acting
from agents.acting.in_jax import Actor, ActorState
from agents.types import Array, Params
from meta.updates.experience import Learned, Lifetime, LifetimeState
from meta.updates.optimizers import update_if

AXIS = "agents"  # of the mesh


class PopulationAgentState(NamedTuple):
    """One agent of a population."""

    key: Array
    lifetime: LifetimeState
    actor: ActorState | tuple[()]  # () where a host environment is stepped elsewhere
    meta_opt_state: optax.OptState
    budget: Array  # environment steps of this lifetime
    num_steps: Array  # of them used
    num_lifetimes: Array  # begun
    num_resets: Array  # lifetimes that ended because something was not finite


class AgentOutput(NamedTuple):
    """The output of one agent's meta-step, besides its state.

    Attributes:
      update: a step of η by the agent's own optimiser, or its meta-gradient where one optimiser serves all; zeros if
        something was not finite, or the agent still waits for a full replay or window.
      weight: 1 if the update counts, else 0.
      is_over: whether its lifetime is over: its budget is used up, or something was not finite.
      is_finite: whether meta-gradient and parameters are.
      metrics: to log.
    """

    update: Params
    weight: Array
    is_over: Array
    is_finite: Array
    metrics: dict[str, Array]


class PopulationAgent(NamedTuple):
    """The functions that the agents of a group have in common.

    Attributes:
      init: key, η, actor's state or prepared observation [B, ...] -> PopulationAgentState.
      step: η, state -> state, AgentOutput.
      learn: η, state, trajectories [stride, T, B, ...], validation trajectory -> as `step`.
      renew: state, and of a host environment a prepared observation [B, ...] -> state at the start of a new lifetime;
        for agents whose lifetime is over. A program of its own, which is large and seldom needed.
    """

    init: Callable[..., PopulationAgentState]
    step: Callable[[Params, PopulationAgentState], tuple[PopulationAgentState, AgentOutput]]
    learn: Callable[..., tuple[PopulationAgentState, AgentOutput]]
    renew: Callable[..., PopulationAgentState]


def make_population_agent(
    lifetime: Lifetime,
    actor: Actor | None,
    meta_optimizer: optax.GradientTransformation,
    budgets: Sequence[int],
    env_steps: int,
) -> PopulationAgent:
    """Make the functions of an agent and its environment.

    Args:
      lifetime: the lifetime of an agent that learns η.
      actor: agent and environment; None for an environment on the host.
      meta_optimizer: turns each agent's meta-gradient into its update of η, before the mean over agents.
      budgets: environment steps of a lifetime, drawn with weights inverse to them.
      env_steps: of one meta-step.
    """
    all_budgets = jnp.array(budgets, jnp.float32)

    def begin(key: Array, observation: Array) -> dict[str, Any]:
        """Return the parts of the state that begin anew with every lifetime."""
        key, agent_key, budget_key, replay_key = jax.random.split(key, 4)
        return {
            "key": key,
            "lifetime": lifetime.init(agent_key, replay_key, observation),
            "budget": all_budgets[jax.random.categorical(budget_key, -jnp.log(all_budgets))],
            "num_steps": jnp.zeros(()),
        }

    def init(key: Array, meta_params: Params, start: ActorState | Array) -> PopulationAgentState:
        none = jnp.zeros((), jnp.int32)
        return PopulationAgentState(
            **begin(key, start.time_step.observation if isinstance(start, ActorState) else start),
            actor=start if isinstance(start, ActorState) else (),
            meta_opt_state=meta_optimizer.init(meta_params),
            num_lifetimes=none + 1,
            num_resets=none,
        )

    def after(meta_params: Params, state: PopulationAgentState, learned: Learned):
        """Return the state after learning, and the output."""
        norm = optax.tree.norm(learned.meta_gradient)
        is_finite = jnp.isfinite(norm) & jnp.isfinite(optax.tree.norm(learned.state.agent.params))
        is_used = is_finite & learned.is_ready
        update, meta_opt_state = update_if(
            is_used, meta_optimizer, learned.meta_gradient, state.meta_opt_state, meta_params
        )
        num_steps = state.num_steps + env_steps
        is_over = ~is_finite | (num_steps >= state.budget)
        state = state._replace(
            lifetime=learned.state,
            meta_opt_state=meta_opt_state,
            num_steps=num_steps,
            num_lifetimes=state.num_lifetimes + is_over,
            num_resets=state.num_resets + ~is_finite,
        )
        metrics = learned.metrics | {
            "meta_gradient_norm": norm,
            "lifetimes": state.num_lifetimes,
            "resets": state.num_resets,
        }
        return state, AgentOutput(update, is_used.astype(jnp.float32), is_over, is_finite, metrics)

    def learn(meta_params: Params, state: PopulationAgentState, trajectories, validation):
        return after(meta_params, state, lifetime.learn(meta_params, state.lifetime, trajectories, validation))

    def step(meta_params: Params, state: PopulationAgentState):
        assert actor is not None and isinstance(state.actor, ActorState)
        learned, actor_state, stats = lifetime.iterate(meta_params, state.lifetime, actor, state.actor)
        state, output = after(meta_params, state._replace(actor=actor_state), learned)
        episodes = {"episodes": stats.num_episodes, "return_sum": stats.return_sum}
        return state, output._replace(metrics=output.metrics | episodes)

    def renew(state: PopulationAgentState, observation: Array | None = None) -> PopulationAgentState:
        if actor is None:
            assert observation is not None
            # The actor takes split(state.key) next, which is fold_in(state.key, 0 and 1).
            key = jax.random.fold_in(state.key, 2)
            return state._replace(**begin(key, observation))
        assert isinstance(state.actor, ActorState)
        actor_state = acting.restart(actor.environment, actor.agent, state.actor)
        return state._replace(**begin(state.key, actor_state.time_step.observation), actor=actor_state)

    return PopulationAgent(init, step, learn, renew)


class GroupOutput(NamedTuple):
    """The output of a group's meta-step, besides its agents' states: sums over agents, and [n], a value for each."""

    update: Params
    weight: Array
    num_over: Array
    is_over: Array  # [n]
    is_finite: Array  # [n]
    metrics: dict[str, Array]  # [n] each


def make_group_step(agent: PopulationAgent, mesh: Mesh, is_vmapped: bool):
    """Make the function η, states [n, ...] -> states, GroupOutput.

    Each device has its share of the agents; the sums are over all devices of the mesh, also of other processes.
    """

    def share(meta_params: Params, states: PopulationAgentState):
        if is_vmapped:
            states, output = jax.vmap(agent.step, in_axes=(None, 0))(meta_params, states)
            sums = jax.tree.map(lambda x: jnp.sum(x, axis=0), (output.update, output.weight))
            own = (output.is_over, output.is_finite, output.metrics)
        else:

            def body(sums, state):
                state, output = agent.step(meta_params, state)
                sums = jax.tree.map(jnp.add, sums, (output.update, output.weight))
                return sums, (state, (output.is_over, output.is_finite, output.metrics))

            zeros = jax.tree.map(jnp.zeros_like, meta_params), jnp.zeros(())
            sums, (states, own) = jax.lax.scan(body, zeros, states)
        update, weight, num_over = jax.lax.psum((*sums, jnp.sum(own[0])), AXIS)
        return states, GroupOutput(update, weight, num_over, *own)

    split, whole = PartitionSpec(AXIS), PartitionSpec()
    out_specs = (split, GroupOutput(whole, whole, whole, split, split, split))  # type: ignore[arg-type]
    return jax.shard_map(share, mesh=mesh, in_specs=(whole, split), out_specs=out_specs, check_vma=False)


def make_group_renew(agent: PopulationAgent, mesh: Mesh):
    """Make the function states [n, ...], is_over [n] -> states, with those whose lifetime is over at the next one."""

    def share(states: PopulationAgentState, is_over: Array) -> PopulationAgentState:
        return jax.lax.map(lambda x: jax.lax.cond(x[1], agent.renew, lambda state: state, x[0]), (states, is_over))

    split = PartitionSpec(AXIS)
    return jax.shard_map(share, mesh=mesh, in_specs=(split, split), out_specs=split, check_vma=False)


def total(*trees: Params) -> Params:
    return jax.tree.map(lambda *xs: sum(xs[1:], start=xs[0]), *trees)


def apply_updates(
    meta_params: Params,
    updates: Sequence[Params],
    weights: Sequence[Array],
    optimizer: optax.GradientTransformation | None,
    opt_state: Any,
) -> tuple[Params, Any]:
    """Move η by the mean of the agents' updates; if one optimiser serves all agents, it turns that mean into a step."""
    weight = sum(weights, start=jnp.zeros(()))
    mean = jax.tree.map(lambda x: x / jnp.maximum(1.0, weight), total(*updates))
    if optimizer:
        mean, opt_state = update_if(weight > 0, optimizer, mean, opt_state, meta_params)
    return optax.apply_updates(meta_params, mean), opt_state
