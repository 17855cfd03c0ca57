"""One step of an agent's lifetime, the same in both regimes: M updates of θ, then the outer loss's gradient to η.

The online regime takes it with the one agent there is, a population with each of its agents.
"""

import dataclasses
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from agents.acting.in_jax import Schedule
from agents.acting.replay import ReplayConfig
from agents.networks.agent import Agent
from agents.rule import RuleState, UpdateRule, masked_reduce
from agents.rules.categorical import kl_divergence
from agents.settings import Bounds, Count, CountOrZero, OneOf, PositiveOrInf, Settings
from agents.types import Array, Params, Targets, Trajectory
from meta.updates import gradients, passes
from meta.updates.distillation import Teacher
from meta.updates.gradients import Source
from meta.updates.outer import Outer
from meta.updates.passes import Passes

_STEPS = Bounds("environment steps, or 0 for none", lambda x: x >= 0)


@dataclasses.dataclass
class LifetimeConfig(Settings):
    """How an agent gathers experience and learns from it; the defaults are Table 1 of Xu et al. 2020 (Atari).

    Attributes:
      batch_size: Environments side by side, each with a trajectory of its own, at least 1.
      unroll: Steps of a trajectory, at least 1.
      validation_unroll: Steps of the trajectory of the outer loss, at least 1; of learned rules.
      num_updates: M, the updates of an iteration, through which η's gradient goes, at least 1.
      is_validation_kept: Whether the trajectory of the outer loss is the next iteration's first one of updates.
      stride: Updates from one window of M to the next, at most M; 0 for M.
      epochs: Passes over each trajectory, by targets that are made once, before, at least 1.
      minibatches: Updates of a pass, each on steps of its own (with an LSTM core, on environments of its own), a
        divisor of their number.
      truncation: K, the minibatches that η's gradient goes through, the last ones of an iteration, whose num_updates is
        then 1; 0 for all.
      annealing: Environment steps over which the learning rate falls to 0; 0 where it stays.
      is_acting_interleaved: Whether the θ of each update acts its trajectory, in JAX; else the first θ acts all.
      exploration: Environment steps over which the share of random actions falls from 1 to 0; 0 for none.
      max_abs_reward: What rewards are clipped to for learning, infinite ones included, positive; inf for no clipping.
      gradient_mode: How η's gradient is computed, always to the same numbers: 'mixed', with the least memory, 'remat',
        or 'reverse', the fastest where an update is small (measured).
      replay: The replay of trajectories.
    """

    batch_size: Count = 30
    unroll: Count = 30
    validation_unroll: Count = 30
    num_updates: Count = 5
    is_validation_kept: bool = False
    stride: int = 0
    epochs: Count = 1
    minibatches: Count = 1
    truncation: CountOrZero = 0
    annealing: Annotated[int, _STEPS] = 0
    is_acting_interleaved: bool = False
    exploration: Annotated[int, _STEPS] = 0
    max_abs_reward: PositiveOrInf = float("inf")
    gradient_mode: Annotated[str, OneOf(gradients.MODES)] = "mixed"
    replay: ReplayConfig = dataclasses.field(default_factory=ReplayConfig)

    def validate(self) -> None:
        super().validate()
        if not 0 <= self.stride <= self.num_updates:
            raise ValueError(
                f"stride is {self.stride}, expected at most num_updates ({self.num_updates}), or 0 for as many"
            )
        if self.truncation > (num := self.epochs * self.minibatches):
            raise ValueError(
                f"truncation is {self.truncation}, expected at most epochs × minibatches ({num}), or 0 for as many"
            )
        if self.truncation and self.num_updates > 1:
            raise ValueError(f"truncation is {self.truncation}, expected 0 where num_updates is {self.num_updates}")
        if self.is_validation_kept and self.validation_unroll != self.unroll:
            raise ValueError(
                f"validation_unroll is {self.validation_unroll} and unroll {self.unroll}, expected the same where "
                "is_validation_kept is True"
            )
        self.replay.validate(self.batch_size)
        for name in ("is_validation_kept", "is_acting_interleaved"):  # what is replayed is of older parameters anyway
            if getattr(self, name) and (capacity := self.replay.capacity):
                raise ValueError(f"{name} is True and replay.capacity is {capacity}, expected one of the two")

    def num_new_updates(self, is_meta: bool) -> int:
        """Updates of θ that an iteration adds: all M, or those of a stride."""
        return self.stride if is_meta and self.stride else self.num_updates

    def schedule(self, is_meta: bool) -> Schedule:
        """Return how much an iteration acts; without an η to learn there is no window and no validation trajectory."""
        num_trajectories = self.num_new_updates(is_meta) - (is_meta and self.is_validation_kept)
        return Schedule(num_trajectories, self.unroll, self.validation_unroll if is_meta else 0)

    def num_env_steps(self, is_meta: bool) -> int:
        """Environment steps of one iteration, all environments of the batch counted."""
        schedule = self.schedule(is_meta)
        return self.batch_size * (schedule.num_trajectories * schedule.num_steps + schedule.num_validation_steps)

    def num_trajectories(self, env_steps: int, is_meta: bool) -> float:
        """Trajectories that θ has been updated on after so many environment steps."""
        return env_steps / self.num_env_steps(is_meta) * self.num_new_updates(is_meta)

    def num_annealed_updates(self, is_meta: bool) -> int:
        """Updates of θ over which the learning rate falls to 0; 0 where it stays."""
        num = round(self.num_trajectories(self.annealing, is_meta) * self.epochs * self.minibatches)
        return max(1, num) if self.annealing else 0


class Setup(NamedTuple):
    """The parts of an agent: network, rule, optimiser and outer objective, and how it uses a trajectory."""

    agent: Agent
    rule: UpdateRule
    optimizer: optax.GradientTransformation
    outer: Outer
    passes: Passes = Passes()

    def acting_params(self, state: "AgentState") -> Params:
        """Return the parameters that act: θ, or its slowly moving copy where the rule says so."""
        return state.target_params if self.rule.is_target_acting else state.params

    def teacher(self, state: "AgentState") -> Teacher:
        """Return the agent as it acts now, to teach another one."""
        return Teacher(self.agent, self.rule.policy, self.acting_params(state))


class AgentState(NamedTuple):
    """All that an agent's updates change."""

    params: Params
    opt_state: optax.OptState
    rule_state: RuleState
    target_params: Params  # the slowly moving copy, () without one
    outer_state: Any  # of the outer objective, () for those without one
    key: Array | tuple[()] = ()  # what minibatches are drawn by, () without them
    num_updates: Array | tuple[()] = ()  # int32, of θ so far, where every so many a copy of it is made


# η, state, trajectories [M, T, B, ...] and validation trajectory [T, B, ...] or None -> state, meta-gradient, metrics
AgentStep = Callable[[Params, AgentState, Trajectory, Trajectory | None], tuple[AgentState, Params, dict[str, Array]]]


def init_agent_state(setup: Setup, key: Array, observation: Array) -> AgentState:
    """Start a lifetime; `observation` [B, ...] is a prepared one."""
    params = setup.agent.init(key, observation)
    target_params = params if setup.rule.has_copy else ()
    outer_key = jax.random.fold_in(key, 2)  # the agent's network takes split(key), which is fold_in(key, 0 and 1)
    outer_state = setup.outer.init(outer_key, observation)
    draw_key = () if setup.passes.is_one else jax.random.fold_in(key, 3)
    num_updates = jnp.zeros((), jnp.int32) if setup.rule.is_copy_hard else ()
    opt_state = setup.optimizer.init(params)
    return AgentState(params, opt_state, setup.rule.init(), target_params, outer_state, draw_key, num_updates)


def make_agent_step(setup: Setup, mode: str = "mixed") -> AgentStep:
    """Make the function (η, agent state, trajectories, validation) -> new agent state, meta-gradient, metrics.

    It takes trajectories stacked [M, T, B, ...] and one validation trajectory [T, B, ...]; for the rest see
    `make_step_by_source`.
    """
    step_by = make_step_by_source(setup, mode)

    def step(meta_params, state, trajectories, validation):
        return step_by(meta_params, state, *gradients.given(trajectories, validation))[:3]

    return step


def make_step_by_source(setup: Setup, mode: str = "mixed") -> Callable[..., tuple[AgentState, Params, dict, Any]]:
    """Make the function (η, agent state, source, its state) -> agent state, meta-gradient, metrics, source's state.

    Args:
      setup: the agent. Losses of the outer objective, and what the rule adds to them, are reduced as the rule says.
      mode: how to differentiate through the updates, one of `gradients.MODES`.
    Returns:
      a function that takes a `Source`, and the trajectory of the first update, where that is no new one. Where there is
      no η to learn there is nothing to validate, and the meta-gradient is 0, or empty.
    """
    agent, rule, optimizer, outer, _ = setup
    gradient, targets_of = gradients.inner_gradient(agent, rule, mode), gradients.make_targets(agent, rule)
    minibatch_gradient = passes.minibatch_gradient(agent, rule, mode)
    over_updates = {"sum": jnp.sum, "mean": jnp.mean}[rule.reduction]

    def update(carry, trajectory):
        meta_params, state = carry
        context = gradients.UpdateContext(meta_params, state.rule_state, state.target_params)
        grads, output = gradient(state.params, context, trajectory)
        state = moved(meta_params, state, gradients.named_gradient(grads))._replace(rule_state=output.rule_state)
        return (meta_params, state), (output.regulariser, output.metrics)

    def moved(meta_params: Params, state: AgentState, grads: Params) -> AgentState:
        """Take a step of θ, and of its slowly moving copy."""
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        if rule.update_scale:
            updates = optax.tree.scale(rule.update_scale(meta_params), updates)
        params = optax.apply_updates(state.params, updates)
        target_params, num_updates = state.target_params, state.num_updates
        if rule.is_copy_hard:
            assert isinstance(num_updates, Array)
            num_updates = num_updates + 1
            target_params = optax.periodic_update(params, target_params, num_updates, rule.target_period)
        elif rule.target_decay is not None:
            target_params = optax.incremental_update(state.params, target_params, 1 - rule.target_decay)
        return state._replace(params=params, opt_state=opt_state, target_params=target_params, num_updates=num_updates)

    def update_in_passes(carry, trajectory):
        meta_params, state = carry
        _, known = gradients.predict(agent, rule, state.params, trajectory)
        context = gradients.UpdateContext(meta_params, state.rule_state, state.target_params)
        targets, output = targets_of(known, context, trajectory)

        def in_passes(meta_params: Params, state: AgentState, targets: Targets, indices: Array) -> AgentState:
            def on_minibatch(state: AgentState, taken: tuple[Trajectory, Targets]) -> tuple[AgentState, None]:
                part, of_part = taken
                grads, _ = minibatch_gradient(state.params, passes.Context(meta_params, of_part), part)
                return moved(meta_params, state, gradients.named_gradient(grads)), None

            on_pass = lambda state, own: jax.lax.scan(on_minibatch, state, passes.take(trajectory, targets, own))
            return jax.lax.scan(on_pass, state, indices)[0]

        key, draw_key = jax.random.split(state.key)
        state = state._replace(rule_state=output.rule_state, key=key)
        indices = passes.draw(draw_key, trajectory, setup.passes)
        before, indices = passes.parted(indices, setup.passes.truncation)
        if len(before):
            fixed_params, fixed_targets = jax.lax.stop_gradient((meta_params, targets))
            state = jax.lax.stop_gradient(in_passes(fixed_params, jax.lax.stop_gradient(state), fixed_targets, before))
        return (meta_params, in_passes(meta_params, state, targets, indices)), (output.regulariser, output.metrics)

    one_update = update if setup.passes.is_one else update_in_passes

    def updated(meta_params: Params, state: AgentState, source, of_source, num: int, first: Trajectory | None = None):
        """Take updates: return states of the agent and the source, and of each update regulariser and metrics."""
        own = mode if jax.tree.leaves(meta_params) else "reverse"
        carry, of_source, found = gradients.through_updates(
            one_update, (meta_params, state), source, of_source, num, own, first
        )
        return carry[1], of_source, found

    def policy(params: Params, trajectory: Trajectory) -> Array:
        return gradients.predict(agent, rule, params, trajectory)[0]["policy"][:-1]

    def divergence(logits: Array, other: Array, trajectory: Trajectory) -> Array:
        return masked_reduce(kl_divergence(logits, other), trajectory.valid, rule.reduction)

    def outer_loss(params: Params, meta_params: Params, outer_state: Any, validation: Trajectory):
        """Return the loss, and the objective's new state and the predictions that were judged."""
        predictions, _ = gradients.predict(agent, rule, params, validation)
        if rule.with_known_values:
            predictions = rule.with_known_values(meta_params, predictions, validation, outer.config.discount)
        losses, outer_state = outer.loss(outer_state, predictions, validation)
        loss = masked_reduce(losses, validation.valid, rule.reduction)
        return loss, (jax.lax.stop_gradient(outer_state), predictions)

    def bootstrapped(meta_params: Params, found: Params, later: AgentState, validation: Trajectory):
        """Return KL(target ‖ π of `found`), and the outer objective's new state; `later` is after further updates.

        Source: Flennerhag et al. 2022, Eq. 2 and 4: no gradient flows into the target, so η and `later` are constants.
        """
        of_params = jax.grad(outer_loss, has_aux=True)
        grads, (outer_state, _) = of_params(later.params, meta_params, later.outer_state, validation)
        target = policy(moved(meta_params, later, grads).params, validation)
        return divergence(target, policy(found, validation), validation), outer_state

    def objective(meta_params, state, source, of_source, first):
        before, is_meta = state.params, source.validation is not None
        num_more = outer.config.target_updates - 1 if is_meta else 0
        state, of_source, (regulariser, metrics) = updated(
            meta_params, state, source, of_source, source.num - num_more, first
        )
        metrics = jax.tree.map(jnp.mean, metrics)
        if not is_meta:
            return jnp.zeros(()), (state, metrics, of_source)
        fixed_params, later = jax.lax.stop_gradient((meta_params, state))
        if num_more:
            later, of_source, _ = updated(fixed_params, later, source, of_source, num_more)
        of_source, validation = source.validation(of_source, later)
        if outer.config.is_bootstrapped:
            loss, outer_state = bootstrapped(fixed_params, state.params, later, validation)
        else:
            loss, (outer_state, predictions) = outer_loss(state.params, meta_params, state.outer_state, validation)
            if outer.config.kl_cost:
                logits = jax.lax.stop_gradient(policy(before, validation))
                loss = loss + outer.config.kl_cost * divergence(predictions["policy"][:-1], logits, validation)
        metrics |= {"outer_loss": loss, "regulariser": over_updates(regulariser)}
        return loss + over_updates(regulariser), (later._replace(outer_state=outer_state), metrics, of_source)

    def step(meta_params, state, source: Source, of_source, first: Trajectory | None = None):
        if source.validation is None:
            _, (state, metrics, of_source) = objective(meta_params, state, source, of_source, first)
            return state, jax.tree.map(jnp.zeros_like, meta_params), metrics, of_source
        meta_gradient, (state, metrics, of_source) = jax.grad(objective, has_aux=True)(
            meta_params, state, source, of_source, first
        )
        return state, meta_gradient, metrics, of_source

    return step


def clip_rewards(trajectory: Trajectory, max_abs_reward: float) -> Trajectory:
    """Clip rewards to ± `max_abs_reward`, for learning."""
    return trajectory._replace(reward=jnp.clip(trajectory.reward, -max_abs_reward, max_abs_reward))
