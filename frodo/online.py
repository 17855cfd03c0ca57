"""The online regime: one agent in one environment learns its own objective within one lifetime.

An iteration is: M trajectories for M updates of θ and one more for the outer loss, then one update of η; with a
hand-made rule, M trajectories and M updates. The learner is the same in both runtimes. `make_fused` puts it into one
jitted program with a pure environment, where all trajectories of an iteration are acted by its first θ (as in the
paper's pseudo-code), or each by the θ that it updates; for host environments it takes what an actor thread hands over.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from agents import acting, choices
from agents.networks import Agent, NetworkConfig, make_agent
from agents.replay import ReplayConfig
from agents.rule import UpdateRule
from agents.types import Array, Params, Trajectory
from frodo.rule import RuleConfig, make_outer, make_rule, spec_for
from meta import experience, gradients
from meta.experience import Experience, with_experience
from meta.lifetime import AgentState, clip_rewards, init_agent_state, make_lifetime_step, make_update
from meta.optimizers import OptimizerConfig, update_if
from toy_envs.base import Environment

MAX_SKIPPED_IN_A_ROW = 10  # non-finite meta-gradients that a run survives


@dataclasses.dataclass
class OnlineConfig:
    """All settings of an online run; the defaults are Table 1 of Xu et al. 2020 (Atari)."""

    env: str = "atari/Pong"
    batch_size: int = 30  # environments
    unroll: int = 30  # steps of a trajectory
    validation_unroll: int = 30  # steps of the trajectory of the outer loss
    num_updates: int = 5  # M
    stride: int = 0  # updates from one window of M, through which η's gradient goes, to the next; 0 for M
    is_acting_in_turn: bool = False  # in fused runs: each trajectory by the θ that it updates, else all by the first
    max_abs_reward: float = float("inf")  # rewards are clipped to it for learning
    gradient_mode: str = "mixed"
    vmap_seeds: bool = False  # in fused runs: seeds side by side rather than one after another
    is_frozen: bool = False  # η stays as it is
    init_meta_params: str = ""  # what η is at the start: a file of a discovered rule, "disco103", or "" for random
    replay: ReplayConfig = dataclasses.field(default_factory=ReplayConfig)
    rule: RuleConfig = dataclasses.field(default_factory=RuleConfig)
    network: NetworkConfig = dataclasses.field(default_factory=lambda: NetworkConfig("conv", (512,)))
    optimizer: OptimizerConfig = dataclasses.field(default_factory=OptimizerConfig)
    meta_optimizer: OptimizerConfig = dataclasses.field(default_factory=lambda: OptimizerConfig(learning_rate=5e-4))

    def validate(self) -> None:
        """Raise a ValueError that names the first bad setting, its value and what was expected."""
        for name in ("batch_size", "unroll", "validation_unroll", "num_updates"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, expected an integer of at least 1")
        if not self.max_abs_reward > 0:
            raise ValueError(f"max_abs_reward is {self.max_abs_reward}, expected a positive number")
        choices.check("gradient_mode", self.gradient_mode, gradients.MODES)
        self.rule.validate()
        if not 0 <= self.stride <= self.num_updates:
            raise ValueError(
                f"stride is {self.stride}, expected at most num_updates ({self.num_updates}), or 0 for as many"
            )
        self.replay.validate(self.batch_size)
        if self.is_acting_in_turn and self.replay.capacity:
            raise ValueError(
                f"is_acting_in_turn is True and replay.capacity is {self.replay.capacity}, expected one of the "
                "two: what is replayed was acted by older parameters anyway"
            )
        self.network.validate()
        self.optimizer.validate("optimizer")
        self.meta_optimizer.validate("meta_optimizer")

    def num_fresh(self, is_meta: bool) -> int:
        """Trajectories that an iteration acts for its updates."""
        return self.stride if is_meta and self.stride else self.num_updates


class LearnerState(NamedTuple):
    agent: AgentState
    meta_params: Params  # η
    meta_opt_state: optax.ApplyIfFiniteState | tuple[()]  # () where η stays as it is
    experience: Experience


class Learner(NamedTuple):
    """The agent, its rule, and what changes θ and η.

    Attributes:
      init: key, prepared observation [B, ...] -> LearnerState.
      learn: state, fresh trajectories [M or stride, T, B, ...], validation trajectory or None -> state, metrics.
      make_update: η -> the update of who acts, after each trajectory (`meta.lifetime.make_update`).
      is_meta: whether there is an η to learn, that is, whether `learn` wants a validation trajectory.
    """

    agent: Agent
    rule: UpdateRule
    init: Callable[[Array, Array], LearnerState]
    learn: Callable[[LearnerState, Trajectory, Trajectory | None], tuple[LearnerState, dict[str, Array]]]
    make_update: Callable[[Params], Callable[[AgentState, Trajectory], AgentState]]
    is_meta: bool


def make_learner(config: OnlineConfig, num_actions: int, init_meta_params: Params | None = None) -> Learner:
    """Build agent, rule and learner for an environment with that many actions; η starts at `init_meta_params`, or at
    random."""
    config.validate()
    rule = make_rule(config.rule)
    spec = spec_for(config.rule, config.env, num_actions)
    agent = make_agent(config.network, spec, num_actions)
    optimizer = config.optimizer.make()
    meta_optimizer = optax.apply_if_finite(config.meta_optimizer.make(), max_consecutive_errors=2**30)
    outer = make_outer(config.rule, config.network, spec)
    lifetime_step = make_lifetime_step(agent, rule, optimizer, outer, config.gradient_mode)
    meta_shapes = jax.eval_shape(lambda key: rule.init_meta_params(key, num_actions), jax.random.key(0))
    is_meta = bool(jax.tree.leaves(meta_shapes)) and not config.is_frozen
    num_kept = config.num_updates - config.num_fresh(is_meta)
    step = with_experience(lifetime_step, config.replay, num_kept)

    def init(key: Array, observation: Array) -> LearnerState:
        agent_key, meta_key = jax.random.split(key)
        meta_params = init_meta_params
        if meta_params is None:
            meta_params = rule.init_meta_params(meta_key, num_actions)
        agent_state = init_agent_state(agent, rule, optimizer, outer, agent_key, observation)
        example = acting.empty_trajectory(agent, observation, config.unroll, num_actions)
        kept = experience.init(config.replay, num_kept, jax.random.fold_in(key, 2), example, agent_state)
        return LearnerState(agent_state, meta_params, meta_optimizer.init(meta_params) if is_meta else (), kept)

    def learn(state: LearnerState, trajectories: Trajectory, validation: Trajectory | None):
        clip = functools.partial(clip_rewards, max_abs_reward=config.max_abs_reward)
        agent_state, kept, meta_gradient, is_ready, metrics = step(
            state.meta_params, state.agent, state.experience, clip(trajectories), validation and clip(validation)
        )
        state = state._replace(agent=agent_state, experience=kept)
        if validation is None:
            return state, metrics
        norm = optax.tree.norm(meta_gradient)  # inf also where it overflows, which clipping would turn into zeros
        meta_gradient = jax.tree.map(lambda g: jnp.where(jnp.isfinite(norm), g, jnp.nan), meta_gradient)
        updates, meta_opt_state = update_if(
            is_ready, meta_optimizer, meta_gradient, state.meta_opt_state, state.meta_params
        )
        meta_params = optax.apply_updates(state.meta_params, updates)
        metrics |= {
            "meta_gradient_norm": norm,
            "skipped": meta_opt_state.total_notfinite,
            "skipped_in_a_row": meta_opt_state.notfinite_count,
        }
        return state._replace(meta_params=meta_params, meta_opt_state=meta_opt_state), metrics

    def make_actor_update(meta_params: Params):
        return make_update(lifetime_step, meta_params, config.max_abs_reward, config.is_acting_in_turn)

    return Learner(agent, rule, init, learn, make_actor_update, is_meta)


class FusedState(NamedTuple):
    """A whole lifetime in one pytree."""

    learner: LearnerState
    actor: acting.ActorState


Evaluate = Callable[[FusedState, FusedState], dict[str, Array]]  # of the states before and after an iteration


class Fused(NamedTuple):
    """A lifetime in a pure environment.

    Attributes:
      init: key -> FusedState.
      run: state, number of iterations (static) -> state, metrics [iterations] of each name.
      steps_per_iteration: environment steps, all environments of the batch counted.
    """

    learner: Learner
    init: Callable[[Array], FusedState]
    run: Callable[[FusedState, int], tuple[FusedState, dict[str, Array]]]
    steps_per_iteration: int


def make_fused(
    config: OnlineConfig,
    environment: Environment,
    make_evaluate: Callable[[Learner], Evaluate] = lambda learner: lambda before, after: {},
    init_meta_params: Params | None = None,
) -> Fused:
    """Make environment, actor and learner one program; what `make_evaluate` returns adds metrics to each iteration."""
    learner = make_learner(config, environment.num_actions, init_meta_params)
    evaluate = make_evaluate(learner)
    agent, policy = learner.agent, learner.rule.policy

    def init(key: Array) -> FusedState:
        actor_key, learner_key = jax.random.split(key)
        actor = acting.init_actor(environment, agent, actor_key, config.batch_size)
        return FusedState(learner.init(learner_key, actor.time_step.observation), actor)

    def iteration(state: FusedState, _: Any) -> tuple[FusedState, dict[str, Array]]:
        actor, trajectories, validation, stats = acting.rollouts(
            environment,
            agent,
            policy,
            experience.who_acts(state.learner.agent, state.learner.experience),
            learner.make_update(state.learner.meta_params),
            state.actor,
            config.num_fresh(learner.is_meta),
            config.unroll,
            config.validation_unroll if learner.is_meta else 0,
        )
        learner_state, metrics = learner.learn(state.learner, trajectories, validation)
        after = FusedState(learner_state, actor)
        episodes = {"episodes": stats.count, "return_sum": stats.return_sum}
        return after, metrics | evaluate(state, after) | episodes

    def run(state: FusedState, num_iterations: int):
        return jax.lax.scan(iteration, state, None, length=num_iterations)

    return Fused(learner, init, run, steps_per_iteration(config, learner.is_meta))


def steps_per_iteration(config: OnlineConfig, is_meta: bool) -> int:
    """Environment steps of one iteration, all environments of the batch counted."""
    return config.batch_size * (config.num_fresh(is_meta) * config.unroll + is_meta * config.validation_unroll)
