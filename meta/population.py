"""The population regime: one η learned by many agents, each in its own environment, over many lifetimes.

A meta-step is, for every agent: M trajectories for M updates of its θ and one more for the outer loss, whose gradient
to η goes through the agent's own optimiser; η moves by the mean of what the agents put out (Oh et al. 2025, Methods:
η ← η + 1/n Σ ADAM(gᵢ)). An agent's lifetime ends when it has used up its budget of environment steps: it is then made
anew. Agents whose environments share a program (`Environment.program`) are a group, one compiled program, and run one
after another or vmapped; the agents of a group are shared out over a device mesh.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, PartitionSpec

from agents import acting
from agents.networks import Agent
from agents.replay import ReplayConfig
from agents.rule import UpdateRule
from agents.types import Array, Params, Trajectory
from meta import experience
from meta.experience import Experience, with_experience
from meta.lifetime import AgentState, clip_rewards, init_agent_state, make_lifetime_step, make_update
from meta.optimizers import update_if
from meta.outer import Outer
from toy_envs.base import Environment

AXIS = "agents"  # of the mesh


@dataclasses.dataclass
class LifetimeConfig:
    """How experience is gathered and used in one meta-step, and how long agents live."""

    batch_size: int
    unroll: int
    validation_unroll: int
    num_updates: int
    stride: int  # updates from one window of M to the next
    is_acting_in_turn: bool
    max_abs_reward: float
    gradient_mode: str
    replay: ReplayConfig
    budgets: tuple[int, ...]  # environment steps of a lifetime: drawn with weights inverse to them

    @property
    def steps(self) -> int:
        """Environment steps of a meta-step."""
        return self.batch_size * (self.stride * self.unroll + self.validation_unroll)


class MemberState(NamedTuple):
    """One agent of a population."""

    key: Array
    agent: AgentState
    experience: Experience
    actor: Any  # acting.ActorState, or () where a host environment is stepped elsewhere
    meta_opt_state: optax.OptState
    budget: Array  # environment steps of this lifetime
    num_steps: Array  # of them used
    num_lifetimes: Array  # begun
    num_resets: Array  # of them because something was not finite


class Member(NamedTuple):
    """What the agents of a group have in common.

    Attributes:
      init: key, η, actor state or prepared observation [B, ...] -> MemberState.
      step: η, state -> state, its update of η, 1, metrics; zeros and 0 if it was not finite, or the agent still waits
        for a full replay or window.
      learn: the same of given trajectories [stride, T, B, ...] and validation trajectory.
      renew: state, and of a host environment a prepared observation [B, ...] -> state at the start of a new lifetime;
        for agents whose metric `is_over` is true. A program of its own, which is large and seldom needed.
    """

    init: Callable[..., MemberState]
    step: Callable[[Params, MemberState], tuple[MemberState, Params, Array, dict[str, Array]]]
    learn: Callable[..., tuple[MemberState, Params, Array, dict[str, Array]]]
    renew: Callable[..., MemberState]


def make_member(
    config: LifetimeConfig,
    environment: Environment | None,
    agent: Agent,
    rule: UpdateRule,
    optimizer: optax.GradientTransformation,
    outer: Outer,
    meta_optimizer: optax.GradientTransformation,
    num_actions: int,
) -> Member:
    """Make the functions of an agent and its environment; None for an environment on the host."""
    lifetime_step = make_lifetime_step(agent, rule, optimizer, outer, config.gradient_mode)
    num_kept = config.num_updates - config.stride
    windowed_step = with_experience(lifetime_step, config.replay, num_kept)
    budgets = jnp.array(config.budgets, jnp.float32)

    def begin(key: Array, observation: Array) -> dict[str, Any]:
        """What is made anew with every lifetime."""
        key, agent_key, budget_key, replay_key = jax.random.split(key, 4)
        example = acting.empty_trajectory(agent, observation, config.unroll, num_actions)
        state = init_agent_state(agent, rule, optimizer, outer, agent_key, observation)
        return {
            "key": key,
            "agent": state,
            "experience": experience.init(config.replay, num_kept, replay_key, example, state),
            "budget": budgets[jax.random.categorical(budget_key, -jnp.log(budgets))],
            "num_steps": jnp.zeros(()),
        }

    def init(key: Array, meta_params: Params, actor: acting.ActorState | Array) -> MemberState:
        is_host = environment is None
        fresh = begin(key, actor if is_host else actor.time_step.observation)
        none = jnp.zeros((), jnp.int32)
        return MemberState(
            **fresh,
            actor=() if is_host else actor,
            meta_opt_state=meta_optimizer.init(meta_params),
            num_lifetimes=none + 1,
            num_resets=none,
        )

    def learn(meta_params: Params, state: MemberState, trajectories: Trajectory, validation: Any):
        clip = functools.partial(clip_rewards, max_abs_reward=config.max_abs_reward)
        agent_state, kept, meta_gradient, is_ready, metrics = windowed_step(
            meta_params, state.agent, state.experience, clip(trajectories), clip(validation)
        )
        norm = optax.tree.norm(meta_gradient)
        is_finite = jnp.isfinite(norm) & jnp.isfinite(optax.tree.norm(agent_state.params))
        is_used = is_finite & is_ready
        updates, meta_opt_state = update_if(is_used, meta_optimizer, meta_gradient, state.meta_opt_state, meta_params)
        num_steps = state.num_steps + config.steps
        is_over = ~is_finite | (num_steps >= state.budget)
        state = state._replace(
            agent=agent_state,
            experience=kept,
            meta_opt_state=meta_opt_state,
            num_steps=num_steps,
            num_lifetimes=state.num_lifetimes + is_over,
            num_resets=state.num_resets + ~is_finite,
        )

        metrics |= {
            "meta_gradient_norm": norm,
            "is_over": is_over,
            "is_finite": is_finite,
            "lifetimes": state.num_lifetimes,
            "resets": state.num_resets,
        }
        return state, updates, is_used.astype(jnp.float32), metrics

    def renew(state: MemberState, observation: Array | None = None) -> MemberState:
        if environment is None:
            return state._replace(**begin(state.key, observation))
        actor = acting.restart(environment, agent, state.actor)
        return state._replace(**begin(state.key, actor.time_step.observation), actor=actor)

    def step(meta_params: Params, state: MemberState):
        assert environment is not None
        actor, trajectories, validation, stats = acting.rollouts(
            environment,
            agent,
            rule.policy,
            experience.who_acts(state.agent, state.experience),
            make_update(lifetime_step, meta_params, config.max_abs_reward, config.is_acting_in_turn),
            state.actor,
            config.stride,
            config.unroll,
            config.validation_unroll,
        )
        state, updates, weight, metrics = learn(meta_params, state._replace(actor=actor), trajectories, validation)
        metrics |= {"episodes": stats.count, "return_sum": stats.return_sum}
        return state, updates, weight, metrics

    return Member(init, step, learn, renew)


def make_group_step(member: Member, mesh: Mesh, is_vmapped: bool):
    """Make the function η, states [n, ...] -> states, Σ updates, Σ weights, number of lifetimes over, metrics [n].

    Each device has its share of the agents; the sums are over all devices of the mesh, also of other processes.
    """

    def share(meta_params: Params, states: MemberState):
        if is_vmapped:
            states, updates, weights, metrics = jax.vmap(member.step, in_axes=(None, 0))(meta_params, states)
            sums = jax.tree.map(lambda x: jnp.sum(x, axis=0), (updates, weights))
        else:

            def body(sums, state):
                state, *out, metrics = member.step(meta_params, state)
                return jax.tree.map(jnp.add, sums, tuple(out)), (state, metrics)

            zeros = jax.tree.map(jnp.zeros_like, meta_params), jnp.zeros(())
            sums, (states, metrics) = jax.lax.scan(body, zeros, states)
        return states, *jax.lax.psum((*sums, jnp.sum(metrics["is_over"])), AXIS), metrics

    split, whole = PartitionSpec(AXIS), PartitionSpec()
    return jax.shard_map(
        share, mesh=mesh, in_specs=(whole, split), out_specs=(split, whole, whole, whole, split), check_vma=False
    )


def make_group_renew(member: Member, mesh: Mesh):
    """Make the function states [n, ...], is_over [n] -> states, with those whose lifetime is over at the next one."""

    def share(states: MemberState, is_over: Array) -> MemberState:
        return jax.lax.map(lambda x: jax.lax.cond(x[1], member.renew, lambda state: state, x[0]), (states, is_over))

    split = PartitionSpec(AXIS)
    return jax.shard_map(share, mesh=mesh, in_specs=(split, split), out_specs=split, check_vma=False)


def apply_updates(
    meta_params: Params,
    updates: Sequence[Params],
    weights: Sequence[Array],
    optimizer: optax.GradientTransformation | None,
    opt_state: Any,
) -> tuple[Params, Any]:
    """Move η by the mean over agents of their updates, turned into a step by one optimiser for all if there is one."""
    total = sum(weights, start=jnp.zeros(()))
    mean = jax.tree.map(lambda *xs: sum(xs[1:], start=xs[0]) / jnp.maximum(1.0, total), *updates)
    if optimizer:
        mean, opt_state = update_if(total > 0, optimizer, mean, opt_state, meta_params)
    return optax.apply_updates(meta_params, mean), opt_state
