"""What a lifetime step learns from: fresh trajectories, replayed ones, and those of a sliding window.

`make_lifetime` wraps the step of `lifetime.py` in a sliding window and in a replay, if the settings ask for them. In a
sliding window the gradient to η goes through M updates; the next window begins `stride` < M updates later, and the last
M − stride updates are taken again, with the new η, on the same trajectories (Oh et al. 2025, Methods: a window of 20
updates). The agent at the end of the window acts.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from agents import splitting
from agents.acting import in_jax as acting
from agents.acting import replay as replays
from agents.acting.in_jax import Actor, ActorState, EpisodeStats
from agents.acting.replay import Replay, ReplayConfig
from agents.types import Array, Params, Trajectory
from meta.updates.gradients import Source
from meta.updates.lifetime import (
    AgentState,
    AgentStep,
    LifetimeConfig,
    Setup,
    clip_rewards,
    init_agent_state,
    make_agent_step,
    make_step_by_source,
)


class Window(NamedTuple):
    """What a sliding window keeps from one step to the next."""

    trajectories: Trajectory  # [M - stride, T, B, ...], of the updates to take again
    num_seen: Array  # int32, how many trajectories ever came in
    newest: AgentState  # after the window's last update


class LifetimeState(NamedTuple):
    """An agent, and what it keeps of its experience."""

    agent: AgentState  # where the next window of updates begins
    replay: Replay | tuple[()]  # () without one
    window: Window | tuple[()]  # () without one
    kept: Trajectory | tuple[()] = ()  # the last validation trajectory, if it is to train; at first without valid steps

    @property
    def acting(self) -> AgentState:
        """The agent after all updates, which acts."""
        return self.window.newest if isinstance(self.window, Window) else self.agent


def apart(state: LifetimeState) -> tuple[Any, LifetimeState]:
    """Return the experience, which no actor reads, so that learning may change it in place, and the state without."""
    window: Any = state.window
    trajectories: Any = ()
    if isinstance(state.window, Window):
        window, trajectories = window._replace(trajectories=()), window.trajectories
    return (state.replay, trajectories, state.kept), state._replace(replay=(), window=window, kept=())


def together(experience: Any, state: LifetimeState) -> LifetimeState:
    """Undo `apart`."""
    replay, trajectories, kept = experience
    window = state.window._replace(trajectories=trajectories) if isinstance(state.window, Window) else ()
    return state._replace(replay=replay, window=window, kept=kept)


def experience_apart(learn: Callable[..., Any]) -> Callable[..., Any]:
    """Make what learns from a host's trajectories with the experience as an argument of its own, before the state."""
    return lambda experience, state, *of: learn(state._replace(lifetime=together(experience, state.lifetime)), *of)


def jit_in_place(learn: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Jit what learns from a host's trajectories, with the experience, which no actor reads, changed in place."""
    learn_from = jax.jit(experience_apart(learn), donate_argnums=0, **options)

    def in_place(state: Any, *of: Any):
        experience, lifetime = apart(state.lifetime)
        return learn_from(experience, state._replace(lifetime=lifetime), *of)

    return in_place


def split(state: LifetimeState) -> LifetimeState:
    """Split an agent's experience over the devices of the mesh that is set, and have all else on each of them."""
    replay, window, kept = state.replay, state.window, state.kept
    if isinstance(replay, Replay):
        key, num_added = splitting.whole((replay.key, replay.num_added))
        replay = Replay(key, splitting.split(replay.trajectories), num_added)
    if isinstance(window, Window):
        num_seen, newest = splitting.whole((window.num_seen, window.newest))
        window = Window(splitting.split_trajectory(window.trajectories, axis=2), num_seen, newest)
    if isinstance(kept, Trajectory):
        kept = splitting.split_trajectory(kept)
    return LifetimeState(splitting.whole(state.agent), replay, window, kept)


class Learned(NamedTuple):
    """What comes out of a lifetime step.

    Where replay or window do not hold enough yet, `is_ready` is False: the agent has only acted, the meta-gradient is 0
    and metrics are nan.
    """

    state: LifetimeState
    meta_gradient: Params
    is_ready: Array | bool
    metrics: dict[str, Array]


# η, state, fresh trajectories [M or stride, T, B, ...], validation trajectory or None, is_ready -> Learned
LifetimeStep = Callable[[Params, LifetimeState, Trajectory, Trajectory | None, Array | bool], Learned]


class Lifetime(NamedTuple):
    """An agent's lifetime as pure functions, the same in both regimes.

    Attributes:
      init: key of θ, key of the replay, prepared observation [B, ...] -> LifetimeState.
      learn: η, state, fresh trajectories [M or stride, T, B, ...], one less where the validation trajectory is kept,
        validation trajectory or None -> Learned. Without a validation trajectory, what is kept waits.
      act: η, state, actor, actor's state -> actor's state, trajectories and validation trajectory for `learn`,
        EpisodeStats: what an iteration needs.
      iterate: η, state, actor, actor's state -> Learned, actor's state, EpisodeStats: `act`, and learn from it. Where
        acting is interleaved with updates, each is taken once, and η's gradient goes through those that acted.
    """

    init: Callable[[Array, Array, Array], LifetimeState]
    learn: Callable[[Params, LifetimeState, Trajectory, Trajectory | None], Learned]
    act: Callable[
        [Params, LifetimeState, Actor, ActorState], tuple[ActorState, Trajectory, Trajectory | None, EpisodeStats]
    ]
    iterate: Callable[[Params, LifetimeState, Actor, ActorState], tuple[Learned, ActorState, EpisodeStats]]


def make_lifetime(config: LifetimeConfig, setup: Setup, num_actions: int, is_meta: bool) -> Lifetime:
    """Make the lifetime of an agent; `is_meta` says whether the gradient to η is wanted."""
    agent_step = jax.jit(make_agent_step(setup, config.gradient_mode), inline=True)  # traced once, however often used
    step_by_source = make_step_by_source(setup, config.gradient_mode)
    schedule = config.schedule(is_meta)
    window_overlap = config.num_updates - config.num_new_updates(is_meta)
    is_kept = is_meta and config.is_validation_kept
    step = with_window(agent_step, window_overlap) if window_overlap else without_window(agent_step)
    if config.replay.capacity:
        step = with_replay(step, config.replay)
    clip = functools.partial(clip_rewards, max_abs_reward=config.max_abs_reward)

    def init(agent_key: Array, replay_key: Array, observation: Array) -> LifetimeState:
        agent = init_agent_state(setup, agent_key, observation)
        example = acting.empty_trajectory(setup.agent, observation, config.unroll, num_actions)
        kept = example if is_kept else ()
        replay: Any = ()
        if config.replay.capacity:
            replay = replays.init(config.replay, replay_key, example)
            unused = replay._replace(key=jax.random.clone(replay_key))  # of the example, its shape alone counts
            example = replays.sample(config.replay, unused, example)[1]
        window = init_window(window_overlap, example, agent) if window_overlap else ()
        return LifetimeState(agent, replay, window, kept)

    def learn(meta_params: Params, state: LifetimeState, trajectories: Trajectory, validation: Trajectory | None):
        if validation is None:
            return step(meta_params, state, clip(trajectories), None, True)
        kept: Trajectory | tuple[()] = ()
        if isinstance(state.kept, Trajectory):
            trajectories = jax.tree.map(lambda x, xs: jnp.concatenate([x[None], xs]), state.kept, trajectories)
            kept = validation
        learned = step(meta_params, state, clip(trajectories), clip(validation), True)
        return learned._replace(state=learned.state._replace(kept=kept))

    def act(meta_params: Params, state: LifetimeState, actor: Actor, actor_state: ActorState):
        def update(acting: AgentState, trajectory: Trajectory) -> AgentState:
            """Return what acts next: after one step of θ if acting is interleaved with updates, else the same."""
            if not config.is_acting_interleaved:
                return acting
            one = jax.tree.map(lambda x: x[None], clip(trajectory))
            return agent_step(meta_params, acting, one, None)[0]

        first = update(state.acting, state.kept) if isinstance(state.kept, Trajectory) else state.acting
        return acting.rollouts(actor, schedule, first, setup.acting_params, update, actor_state)

    def iterate(meta_params: Params, state: LifetimeState, actor: Actor, actor_state: ActorState):
        if not config.is_acting_interleaved or window_overlap:
            actor_state, trajectories, validation, stats = act(meta_params, state, actor, actor_state)
            return learn(meta_params, state, trajectories, validation), actor_state, stats

        def acted(of_source, agent: AgentState, num_steps: int = schedule.num_steps):
            actor_state, stats, _ = of_source
            actor_state, trajectory, new = acting.rollout(actor, setup.acting_params(agent), actor_state, num_steps)
            stats = jax.tree.map(lambda x, y: x + y.astype(x.dtype), stats, new)
            return (actor_state, stats, ()), trajectory

        def acted_last(of_source, agent: AgentState):
            (actor_state, stats, _), trajectory = acted(of_source, agent, schedule.num_validation_steps)
            return (actor_state, stats, trajectory if is_kept else ()), clip(trajectory)

        source = Source(config.num_updates, acted, clip, acted_last if is_meta else None)
        first = clip(state.kept) if isinstance(state.kept, Trajectory) else None
        none = EpisodeStats(jnp.zeros((), jnp.int32), jnp.zeros((), jnp.float32))
        agent, meta_gradient, metrics, (actor_state, stats, kept) = step_by_source(
            meta_params, state.agent, source, (actor_state, none, ()), first
        )
        return Learned(state._replace(agent=agent, kept=kept), meta_gradient, True, metrics), actor_state, stats

    return Lifetime(init, learn, act, iterate)


def without_window(agent_step: AgentStep) -> LifetimeStep:
    """Make the lifetime step in which every update is taken once."""

    def learn(meta_params, state: LifetimeState, trajectories, validation, is_ready) -> Learned:
        arguments = (meta_params, state.agent, trajectories, validation)
        wait = lambda: (state.agent, *_nothing(agent_step, arguments))
        agent, meta_gradient, metrics = _if(is_ready, lambda: agent_step(*arguments), wait)
        return Learned(state._replace(agent=agent), meta_gradient, is_ready, metrics)

    return learn


def with_window(agent_step: AgentStep, window_overlap: int) -> LifetimeStep:
    """Make the lifetime step of a sliding window, whose last `window_overlap` updates the next step takes again."""

    def learn(meta_params, state: LifetimeState, trajectories, validation, is_ready) -> Learned:
        assert isinstance(state.window, Window)
        stride, num_seen = len(trajectories.action), state.window.num_seen
        trajectories = jax.tree.map(lambda *xs: jnp.concatenate(xs), state.window.trajectories, trajectories)
        is_ready = is_ready & (num_seen >= window_overlap)
        arguments = (meta_params, state.agent, trajectories, validation)

        def go_on():
            newest, meta_gradient, metrics = agent_step(*arguments)
            agent, _, _ = agent_step(meta_params, state.agent, jax.tree.map(lambda x: x[:stride], trajectories), None)
            return agent._replace(outer_state=newest.outer_state), newest, meta_gradient, metrics

        wait = lambda: (state.agent, state.acting, *_nothing(agent_step, arguments))
        agent, newest, meta_gradient, metrics = _if(is_ready, go_on, wait)
        window = Window(jax.tree.map(lambda x: x[stride:], trajectories), num_seen + stride, newest)
        return Learned(state._replace(agent=agent, window=window), meta_gradient, is_ready, metrics)

    return learn


def init_window(window_overlap: int, example: Trajectory, agent: AgentState) -> Window:
    """Begin with nothing; `example` has the shapes of what an update takes, [T, B, ...]."""
    trajectories = jax.tree.map(lambda x: jnp.zeros((window_overlap, *x.shape), x.dtype), example)
    return Window(trajectories, jnp.zeros((), jnp.int32), agent)


def with_replay(step: LifetimeStep, config: ReplayConfig) -> LifetimeStep:
    """Make the lifetime step in which each fresh trajectory adds one update, on a draw of all that was seen."""

    draw = lambda replay, fresh: replays.sample(config, replays.add(replay, fresh), fresh)

    def learn(meta_params, state: LifetimeState, trajectories, validation, is_ready) -> Learned:
        assert isinstance(state.replay, Replay)
        replay, drawn = jax.lax.scan(draw, state.replay, trajectories)
        is_ready = is_ready & replays.is_ready(config, replay)
        return step(meta_params, state._replace(replay=replay), drawn, validation, is_ready)

    return learn


def _if(is_ready: Array | bool, go_on: Callable[[], Any], wait: Callable[[], Any]) -> Any:
    return go_on() if is_ready is True else jax.lax.cond(is_ready, go_on, wait)


def _nothing(agent_step: AgentStep, arguments: Any) -> tuple[Params, dict[str, Array]]:
    """Return the meta-gradient and the metrics of a step that is not taken."""
    of_metrics = jax.eval_shape(lambda x: agent_step(*x)[2], arguments)
    metrics = jax.tree.map(lambda x: jnp.full(x.shape, jnp.nan, x.dtype), of_metrics)
    return jax.tree.map(jnp.zeros_like, arguments[0]), metrics
