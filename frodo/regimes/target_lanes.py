"""Lanes of actor-critics: agents that learn by programs for targets, one beside the other in one compiled program.

As `meta.programs.lanes`, but that a lane is a lifetime of the online regime, with a rule that stays as it is, and is as
long as its budget of environment steps.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from agents.networks.agent import NetworkConfig
from agents.types import Array
from frodo.regimes.arguments import all_finite
from frodo.regimes.learner import build_learner
from frodo.regimes.lifetimes import OnlineState, make_online_program
from frodo.settings.config import AgentConfig
from frodo.settings.registry import RuleConfig
from meta.programs.evaluation import Instructions
from meta.programs.lanes import Lanes
from meta.programs.targets import Data, TargetProgramConfig
from meta.updates.optimizers import OptimizerConfig
from toy_envs.base import Environment


@dataclasses.dataclass
class TargetLaneConfig:
    """How an actor-critic learns by a program; the defaults are a point of the grid of `experiments.compare`.

    Attributes:
      hidden: Units of the layers of the network, at least 1 each.
      learning_rate: Learning rate of Adam, annealed to 0 over the lifetime, positive.
      entropy_cost: Weight of the policy's entropy, at least 0.
      discount: γ, from 0 to 1.
      batch_size: Environments side by side, at least 1.
      unroll: Steps of a trajectory, at least 1.
      budget: Environment steps of a lifetime, at least those of an update.
    """

    hidden: tuple[int, ...] = (64, 64)
    learning_rate: float = 3e-3
    entropy_cost: float = 0.03
    discount: float = 0.99
    batch_size: int = 16
    unroll: int = 16
    budget: int = 102_400

    def validate(self) -> None:
        """Raise a ValueError that names the first bad setting, its value and what was expected."""
        config = self.agent()
        config.validate()
        if self.budget < (least := config.num_env_steps(is_meta=False)):
            raise ValueError(f"budget is {self.budget}, expected at least the {least} steps of an update")

    def agent(self, formula: str = "") -> AgentConfig:
        """Return the settings of an agent that learns by a formula, "" by one that is data."""
        own = {"formula": formula} if formula else {"is_data": True}
        rule = TargetProgramConfig(discount=self.discount, entropy_cost=self.entropy_cost, **own)  # type: ignore[arg-type]
        return AgentConfig(
            batch_size=self.batch_size,
            unroll=self.unroll,
            validation_unroll=self.unroll,
            num_updates=1,
            is_acting_interleaved=True,
            gradient_mode="reverse",
            annealing=self.budget,
            rule=RuleConfig("target_program", rule),
            network=NetworkConfig("mlp", self.hidden, head_stddev=0.01),
            optimizer=OptimizerConfig(self.learning_rate, 0.999, 1e-5, max_gradient_norm=0.5, name="adam"),
        )


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
