"""Lanes of actor-critics that learn by targets as programs, as `meta.programs.lanes` has those of losses."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from agents.types import Array
from frodo.regimes.arguments import all_finite
from frodo.regimes.learner import build_learner
from frodo.regimes.lifetimes import OnlineState, make_online_program
from frodo.regimes.search_settings import TargetLaneConfig
from meta.programs.evaluation import Instructions
from meta.programs.lanes import Lanes
from meta.programs.targets import Data
from toy_envs.base import Environment


class TargetLane(NamedTuple):
    """One evaluation under way; attributes as of `meta.programs.lanes.Lane`."""

    state: OnlineState
    num_steps: Array
    num_episodes: Array
    return_sum: Array
    is_over: Array
    is_finite: Array


def make_target_lanes(environment: Environment, config: TargetLaneConfig) -> Lanes:
    """Make the functions of a lane in an environment; steps are those of all environments of its batch."""
    learner = build_learner(config.agent(), environment.num_actions, is_frozen=True)
    program = make_online_program(learner, environment)

    def init(key: Array) -> TargetLane:
        none, no = jnp.zeros((), jnp.int32), jnp.zeros((), bool)
        return TargetLane(program.init(key), none, none, jnp.zeros(()), no, ~no)

    def run(instructions: Instructions, num: Array | int, lane: TargetLane, num_steps: int) -> TargetLane:
        instructions = jax.tree.map(jnp.asarray, instructions)
        iterations = max(1, num_steps // program.env_steps)
        own = lane.state.learner._replace(meta_params=Data(instructions, jnp.asarray(num)))
        state, metrics, _ = program.run(lane.state._replace(learner=own), iterations)
        steps = lane.num_steps + program.env_steps * jnp.arange(1, iterations + 1)
        counts = lambda x: jnp.sum(jnp.where((steps <= config.budget) & ~lane.is_over, x, 0))
        finite = all_finite(state.learner.params)
        kept = state.learner._replace(meta_params=lane.state.learner.meta_params)
        return TargetLane(
            state._replace(learner=kept),
            steps[-1],
            lane.num_episodes + counts(metrics["episodes"]).astype(jnp.int32),
            lane.return_sum + counts(metrics["return_sum"]),
            lane.is_over | ~finite | (steps[-1] >= config.budget // program.env_steps * program.env_steps),
            lane.is_finite & (finite | lane.is_over),
        )

    return Lanes(init, run)
