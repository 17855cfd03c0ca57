"""A learner: an agent, its rule, and what changes θ and η, as pure functions."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from agents import splitting
from agents.acting import in_jax as acting
from agents.acting.replay import ReplayConfig
from agents.types import Array, CoreState, Params, Targets, Trajectory
from agents.validation import as_array, check_shape, check_type, checked_key
from frodo.regimes.arguments import (
    check_core_state,
    check_experience,
    check_first_observation,
    check_is_first,
    check_meta_params,
    make_check_state,
)
from frodo.rules.files import Rule, get_rule
from frodo.settings.config import AgentConfig, make_setup
from frodo.settings.unused import paths, refuse_unused
from meta.targets.sensitivity import target_derivatives
from meta.updates import experience
from meta.updates.distillation import DistillationConfig, Teacher
from meta.updates.experience import LifetimeState, make_lifetime
from meta.updates.lifetime import AgentState, Setup, clip_rewards
from meta.updates.optimizers import update_if


class LearnerState(NamedTuple):
    """All that learning changes."""

    lifetime: LifetimeState
    meta_params: Params  # η
    meta_opt_state: optax.ApplyIfFiniteState | tuple[()]  # () where η stays as it is

    @property
    def agent(self) -> AgentState:
        """The agent after all its updates, which acts."""
        return self.lifetime.acting

    @property
    def params(self) -> Params:
        """θ of the agent that acts."""
        return self.lifetime.acting.params


def split(state: LearnerState) -> LearnerState:
    """Split the experience over the devices of the mesh that is set, and have all else on each of them."""
    lifetime, *others = state
    return LearnerState(experience.split(lifetime), *splitting.whole(others))


class Control(NamedTuple):
    """Results that decide whether a run goes on."""

    skipped_in_a_row: Array  # int32, meta-gradients that were not finite


class Learner(NamedTuple):
    """An agent that learns, as pure functions: they can be jitted, and mapped over seeds and over η.

    Observations are as the environment gives them, float32 or uint8. `init`, `act`, `update` and what looks inside
    refuse arguments that do not fit, by a ValueError or TypeError of one line: by their shapes when they are traced,
    outside of jit also an η that is not finite.

    Attributes:
      config: the settings.
      setup: agent, rule, optimiser and outer objective.
      is_meta: whether there is an η to learn, that is, whether `learn` wants a validation trajectory.
      init: key, observation [B, ...], η -> LearnerState. Without the last argument η is random.
      act: state, key, observation [B, ...], is_first [B], core state -> actions [B], logits [B, A], core state. The
        initial core state is `setup.agent.initial_state(B)`.
      update: state, trajectory [T, B] -> state, metrics: one update of θ with η as it is. Metrics are those of the
        rule, and update_norm, the norm of the change of θ.
      learn: state, fresh trajectories [M or stride, T, B, ...], validation trajectory or None -> state, metrics,
        Control: M updates of θ, then one of η. Observations here are prepared ones (`setup.agent.prepare`). With
        `is_validation_kept`, one fresh trajectory less: the last validation trajectory is the first.
      act_iteration: state, actor, actor's state -> actor's state, the trajectories and the validation trajectory that
        `learn` takes, EpisodeStats.
      iterate: state, actor, actor's state -> state, metrics, Control, actor's state, EpisodeStats: act in a pure
        environment what `learn` needs, and learn from it.
      rule_inputs: state, trajectory [T, B] -> what the rule's targets are made from, the arguments of its `apply`.
      targets: state, trajectory [T, B] -> the rule's targets, a pytree [T, B, ...].
      derivatives: state, trajectory [T, B] -> those of the targets with respect to rewards, discounts and values
        (`meta.targets.sensitivity.target_derivatives`).
    """

    config: AgentConfig
    setup: Setup
    is_meta: bool
    init: Callable[..., LearnerState]
    act: Callable[[LearnerState, Array, Array, Array, CoreState], tuple[Array, Array, CoreState]]
    update: Callable[[LearnerState, Trajectory], tuple[LearnerState, dict[str, Array]]]
    learn: Callable[[LearnerState, Trajectory, Trajectory | None], tuple[LearnerState, dict[str, Array], Control]]
    act_iteration: Callable[..., tuple[acting.ActorState, Trajectory, Trajectory | None, acting.EpisodeStats]]
    iterate: Callable[..., tuple[LearnerState, dict[str, Array], Control, acting.ActorState, acting.EpisodeStats]]
    rule_inputs: Callable[[LearnerState, Trajectory], tuple[Any, ...]]
    targets: Callable[[LearnerState, Trajectory], Targets]
    derivatives: Callable[[LearnerState, Trajectory], dict[str, Targets]]


def make_learner(rule: Rule | str, num_actions: int, *, teacher: Teacher | None = None, **settings: Any) -> Learner:
    """Make a learner by a rule, for a user-defined loop: `init`, then `act` and `update` in turn.

    Args:
      rule: a `Rule`, or a name that `make_rule` or `load_rule` takes.
      num_actions: of the environment.
      teacher: whose policy the agent is moved to, too, as the setting `distillation` says.
      **settings: fields of `AgentConfig` that replace the rule's own, such as network or optimizer. There is no replay
        unless one is given; with one, trajectories have `unroll` steps of `batch_size` environments, and θ stays, with
        metrics of nan, until it holds enough.
    Raises:
      ValueError: naming the setting that is not known, is bad, changes nothing, or does not fit the number of actions.
    """
    none = {"replay": ReplayConfig(), "distillation": DistillationConfig()}  # of the run that a rule comes from
    config = get_rule(rule).config.replace(**none | settings)
    check_teacher(config, teacher)
    learner = build_learner(config, num_actions, teacher=teacher)
    refuse_unused(config, paths(settings))
    return learner


def check_teacher(config: AgentConfig, teacher: Teacher | None) -> None:
    """Raise a ValueError for an agent that is to learn from a teacher that there is not, or the other way round."""
    if teacher is not None:
        check_type("teacher", teacher, Teacher, "the `teacher` of a result")
    if bool(config.distillation.steps) != (teacher is not None):
        expected = "a teacher" if teacher is None else "environment steps in which the teacher teaches"
        raise ValueError(f"distillation.steps is {config.distillation.steps}, expected {expected}")


def build_learner(
    config: AgentConfig,
    num_actions: int,
    is_frozen: bool = False,
    learning_rate: Array | None = None,
    teacher: Teacher | None = None,
) -> Learner:
    """Build a learner for an environment with that many actions; frozen, η stays as it is.

    A learning rate that is given takes the place of the settings'; it may be traced: one program then serves all. The
    teacher is that of `config.distillation`; without it the agent is good to look at, not to learn.

    Raises:
      ValueError: naming the setting that is bad, or does not fit the number of actions.
    """
    is_meta = config.rule.entry.is_learned and not is_frozen
    setup = make_setup(config, num_actions, is_meta, learning_rate, teacher)
    agent, rule = setup.agent, setup.rule
    meta_optimizer = optax.apply_if_finite(config.meta_optimizer.make(), max_consecutive_errors=2**30)
    lifetime = make_lifetime(config, setup, num_actions, is_meta)
    check_state = make_check_state(setup, num_actions, LearnerState)

    def init(key: Array, observation: Array, meta_params: Params | None = None) -> LearnerState:
        key = checked_key(key)
        observation = as_array("observation", observation)
        check_first_observation(observation)
        check_meta_params(rule, num_actions, meta_params)
        agent_key, meta_key = jax.random.split(key)
        if meta_params is None:
            meta_params = rule.random_meta_params(meta_key, num_actions)
        prepared = agent.prepare(observation)
        if teacher:
            teacher.check(observation, prepared, num_actions)
        state = lifetime.init(agent_key, jax.random.fold_in(key, 2), prepared)
        return LearnerState(state, meta_params, meta_optimizer.init(meta_params) if is_meta else ())

    def act(state: LearnerState, key: Array, observation: Array, is_first: Array, core_state: CoreState):
        observation, is_first = as_array("observation", observation), as_array("is_first", is_first)
        key = checked_key(key)
        check_state(state, observation)
        check_is_first(is_first, len(observation))
        check_core_state(agent, core_state, len(observation))
        params = setup.acting_params(state.agent)
        return acting.act(agent, rule.policy, params, key, agent.prepare(observation), is_first, core_state)

    def prepare(trajectory: Trajectory) -> Trajectory:
        return trajectory._replace(observation=jax.vmap(agent.prepare)(jnp.asarray(trajectory.observation)))

    def check_given(state: LearnerState, trajectory: Trajectory) -> None:
        check_experience(agent, trajectory, num_actions)
        check_state(state, trajectory.observation[0])

    def update(state: LearnerState, trajectory: Trajectory) -> tuple[LearnerState, dict[str, Array]]:
        check_given(state, trajectory)
        if state.lifetime.window != ():
            raise ValueError(
                f"stride is {config.stride}, expected 0 or num_updates ({config.num_updates}): a sliding window of "
                "updates is moved by `learn` alone"
            )
        if state.lifetime.replay != ():
            check_shape("action", trajectory.action, (config.unroll, trajectory.action.shape[1]))
        one = jax.tree.map(lambda x: x[None], prepare(trajectory))
        learned = lifetime.learn(state.meta_params, state.lifetime, one, None)
        change = optax.tree.sub(learned.state.agent.params, state.params)
        return state._replace(lifetime=learned.state), learned.metrics | {"update_norm": optax.tree.norm(change)}

    def after(state: LearnerState, learned, is_validated: bool):
        """Return the state after what was learned: η moves by the meta-gradient, if there is one."""
        state, metrics = state._replace(lifetime=learned.state), learned.metrics
        if not is_validated:
            return state, metrics, Control(jnp.zeros((), jnp.int32))
        norm = optax.tree.norm(learned.meta_gradient)  # inf also where it overflows, which clipping would turn into 0
        meta_gradient = jax.tree.map(lambda g: jnp.where(jnp.isfinite(norm), g, jnp.nan), learned.meta_gradient)
        updates, meta_opt_state = update_if(
            learned.is_ready, meta_optimizer, meta_gradient, state.meta_opt_state, state.meta_params
        )
        assert isinstance(meta_opt_state, optax.ApplyIfFiniteState)
        meta_params = optax.apply_updates(state.meta_params, updates)
        metrics = metrics | {"meta_gradient_norm": norm, "skipped": meta_opt_state.total_notfinite}
        state = state._replace(meta_params=meta_params, meta_opt_state=meta_opt_state)
        return state, metrics, Control(meta_opt_state.notfinite_count)

    def learn(state: LearnerState, trajectories: Trajectory, validation: Trajectory | None):
        learned = lifetime.learn(state.meta_params, state.lifetime, trajectories, validation)
        return after(state, learned, validation is not None)

    def act_iteration(state: LearnerState, actor: acting.Actor, actor_state: acting.ActorState):
        return lifetime.act(state.meta_params, state.lifetime, actor, actor_state)

    def iterate(state: LearnerState, actor: acting.Actor, actor_state: acting.ActorState):
        learned, actor_state, stats = lifetime.iterate(state.meta_params, state.lifetime, actor, actor_state)
        return *after(state, learned, is_meta), actor_state, stats

    def rule_inputs(state: LearnerState, trajectory: Trajectory) -> tuple[Any, ...]:
        check_given(state, trajectory)
        prepared = clip_rewards(prepare(trajectory), config.max_abs_reward)
        predictions = slow = agent.unroll(state.params, prepared)
        if rule.has_copy:
            slow = agent.unroll(state.agent.target_params, prepared)
        return state.meta_params, state.agent.rule_state, prepared, predictions, slow

    def targets(state: LearnerState, trajectory: Trajectory) -> Targets:
        return rule.apply(*rule_inputs(state, trajectory))[0]

    def derivatives(state: LearnerState, trajectory: Trajectory) -> dict[str, Targets]:
        return target_derivatives(rule, *rule_inputs(state, trajectory))

    of_iteration = (learn, act_iteration, iterate)
    return Learner(config, setup, is_meta, init, act, update, *of_iteration, rule_inputs, targets, derivatives)
