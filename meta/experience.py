"""What a meta-step learns from: fresh trajectories, replayed ones, and those of updates that are taken once more.

The gradient to η goes through a window of M updates. Where the next window begins `stride` < M updates later, the M −
stride last ones are taken again, with the new η, on the same trajectories (Oh et al. 2025, Methods: a sliding window of
20 updates). Whoever acts is then the agent at the end of the window.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from agents import replay as replays
from agents.replay import Replay, ReplayConfig
from agents.types import Array, Params, Trajectory
from meta.lifetime import AgentState, LifetimeStep


class Experience(NamedTuple):
    """What an agent keeps."""

    replay: Replay | tuple[()]  # () without one
    window: Trajectory | tuple[()]  # [M - stride, T, B, ...], of the updates to take again; () for none
    num_seen: Array  # int32, how many trajectories came into the window
    newest: AgentState | tuple[()]  # after the window's last update; () where that is the agent itself


def init(config: ReplayConfig, num_kept: int, key: Array, example: Trajectory, state: AgentState) -> Experience:
    """Begin with nothing: `example` has the shapes of a fresh trajectory [T, B, ...], `num_kept` is M − stride."""
    replay: Any = replays.init(config, key, example) if config.capacity else ()
    num_seen = jnp.zeros((), jnp.int32)
    if not num_kept:
        return Experience(replay, (), num_seen, ())
    of_update = replays.sample(config, replay, example)[1] if config.capacity else example
    window = jax.tree.map(lambda x: jnp.zeros((num_kept, *x.shape), x.dtype), of_update)
    return Experience(replay, window, num_seen, state)


def who_acts(state: AgentState, experience: Experience) -> AgentState:
    """Return the agent as it is after all updates."""
    return experience.newest if isinstance(experience.newest, AgentState) else state


def with_experience(step: LifetimeStep, config: ReplayConfig, num_kept: int):
    """Make the function (η, agent state, experience, trajectories, validation) -> new agent state, experience,
    meta-gradient, is_ready, metrics.

    Each fresh trajectory adds one update to the window: a draw of what was seen, where there is a replay, else itself.
    Before replay and window hold enough (`is_ready`) the agent only acts: its state stays, the meta-gradient is 0,
    metrics are nan.
    """

    def draw(replay: Replay, fresh: Trajectory) -> tuple[Replay, Trajectory]:
        return replays.sample(config, replays.add(replay, fresh), fresh)

    def learn(meta_params: Params, state: AgentState, experience: Experience, trajectories: Trajectory, validation):
        stride = len(trajectories.action)
        is_ready = jnp.ones((), bool)
        if config.capacity:
            assert isinstance(experience.replay, Replay)
            replay, trajectories = jax.lax.scan(draw, experience.replay, trajectories)
            experience, is_ready = experience._replace(replay=replay), replays.is_ready(config, replay)
        if num_kept:
            is_ready = is_ready & (experience.num_seen >= num_kept)
            trajectories = jax.tree.map(lambda *xs: jnp.concatenate(xs), experience.window, trajectories)

        def go_on(arguments):
            meta_params, state, trajectories, _ = arguments
            newest, meta_gradient, metrics = step(*arguments)
            if not num_kept:
                return newest, (), meta_gradient, metrics
            state, _, _ = step(meta_params, state, jax.tree.map(lambda x: x[:stride], trajectories), None)
            return state._replace(outer_state=newest.outer_state), newest, meta_gradient, metrics

        arguments = (meta_params, state, trajectories, validation)
        if not config.capacity and not num_kept:
            state, _, meta_gradient, metrics = go_on(arguments)
            return state, experience, meta_gradient, is_ready, metrics
        of_metrics = jax.eval_shape(lambda x: step(*x)[2], arguments)

        def wait(arguments):
            nothing = jax.tree.map(lambda x: jnp.full(x.shape, jnp.nan, x.dtype), of_metrics)
            return arguments[1], experience.newest, jax.tree.map(jnp.zeros_like, arguments[0]), nothing

        state, newest, meta_gradient, metrics = jax.lax.cond(is_ready, go_on, wait, arguments)
        if num_kept:
            window = jax.tree.map(lambda x: x[stride:], trajectories)
            experience = experience._replace(window=window, newest=newest, num_seen=experience.num_seen + stride)
        return state, experience, meta_gradient, is_ready, metrics

    return learn
