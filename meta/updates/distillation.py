"""Distillation, or kickstarting: a rule whose agent is also moved to a teacher's policy, early in its lifetime.

The agent acts by its own policy, and the teacher says what it would have done, given the same history. Source: Bauer et
al. 2023 (AdA), section 2.5 and eq. 2; the paper gives no weight of the loss, and its L2 is left out.
"""

import dataclasses
from collections.abc import Callable
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp

from agents.networks.agent import Agent
from agents.rule import RuleState, UpdateRule, masked_reduce, of_own_targets
from agents.rules.categorical import kl_divergence
from agents.rules.muesli import ahead, reached
from agents.settings import NOT_NEGATIVE, NotNegative, Settings
from agents.types import Array, Params, Predictions, Targets, Trajectory


@dataclasses.dataclass
class DistillationConfig(Settings):
    """Distillation: an actor-critic is also moved to a teacher's policy, early in its lifetime.

    Attributes:
      teacher: Folder of the run whose agent teaches, '' for none; in the library the teacher is an object.
      steps: Environment steps from the start of a lifetime in which it teaches; 0 for none.
      cost: Weight of KL(teacher ‖ agent), at least 0.
    """

    teacher: str = ""
    steps: Annotated[int, NOT_NEGATIVE] = 0
    cost: NotNegative = 1.0

    def validate(self) -> None:
        super().validate()
        if self.teacher and not self.steps:
            raise ValueError(f"steps is 0, expected how many environment steps {self.teacher} teaches")


class Teacher(NamedTuple):
    """An agent that teaches.

    Attributes:
      agent: its network.
      policy: predictions -> logits of the distribution that it acts by, [..., A], as of its rule.
      params: its θ.
    """

    agent: Agent
    policy: Callable[[Predictions], Array]
    params: Params

    def logits(self, trajectory: Trajectory) -> Array:
        """Return the logits of its policy at each step, [T, B, A]; its memory is empty where the trajectory begins."""
        batch_size = trajectory.action.shape[1]
        own = trajectory._replace(core_state=self.agent.initial_state(batch_size))
        logits = self.policy(self.agent.unroll(self.params, own))[:-1]
        return jnp.maximum(logits, -1e9)  # for a KL, which a probability of 0 by a logit of -inf would make nan

    def knows(self, trajectory: Trajectory) -> Array:
        """Say in which steps it has seen what the agent has seen, [T, B] bool: with a memory, all of the episode."""
        if not jax.tree.leaves(self.agent.initial_state(1)):
            return jnp.ones_like(trajectory.valid)
        return jnp.cumsum(trajectory.is_first[:-1], axis=0) > 0

    def check(self, raw: Array, observation: Array, num_actions: int) -> None:
        """Raise a ValueError for an agent that it cannot teach, as their observations or numbers of actions differ.

        Args:
          raw: observation as the environment gives it, [B, ...]; shapes alone are compared.
          observation: the same as the agent prepares it.
          num_actions: of the agent.
        """
        agent = self.agent
        shapes = lambda tree: jax.tree.map(lambda x: x.shape, tree)
        try:
            if jax.eval_shape(agent.prepare, raw).shape != observation.shape:
                raise ValueError
            expected = jax.eval_shape(agent.init, jax.random.key(0), observation)
            core_state = jax.eval_shape(lambda: agent.initial_state(len(observation)))
            is_first = jnp.zeros(len(observation), bool)
            predictions, _ = jax.eval_shape(agent.step, self.params, observation, is_first, core_state)
        except (TypeError, ValueError):
            expected = None
        if expected is None or shapes(expected) != shapes(self.params):
            raise ValueError(f"the teacher sees other observations than those of the shape {raw.shape[1:]}")
        own = jax.eval_shape(self.policy, predictions).shape[-1]
        if own != num_actions:
            raise ValueError(f"the teacher has {own} actions, expected {num_actions}")


class DistilledState(NamedTuple):
    own: RuleState
    num_updates: Array  # int32, so far


class DistilledTargets(NamedTuple):
    """What an agent is moved to that has a teacher."""

    own: Targets
    policy: Array  # logits of the teacher in the state i steps later, [T, B, K + 1, A]; K is 0 without a model
    weight: Array  # of the KL to each of them, [T, B, K + 1]


def distilled(rule: UpdateRule, teacher: Teacher | None, num_updates: int, cost: float) -> UpdateRule:
    """Add cost · Σᵢ KL(teacher ‖ agent's policy i steps ahead) to a rule's loss, i from 0 to the K of its model.

    Args:
      rule: of an actor-critic. One that predicts policies by a model names them model_policy.
      teacher: None for an agent that is only looked at: targets and losses are those of the rule alone.
      num_updates: the first ones of a lifetime, in which it teaches; an update is a trajectory.
      cost: of the KL.
    """
    num_ahead = rule.model_steps + 1 if "model_policy" in rule.spec(1) else 1

    def init() -> DistilledState:
        return DistilledState(rule.init(), jnp.zeros((), jnp.int32))

    def of_rule(meta_params, state: DistilledState, trajectory, predictions, target_predictions):
        own, rule_state = rule.apply(meta_params, state.own, trajectory, predictions, target_predictions)
        return own, DistilledState(rule_state, state.num_updates + 1)

    if teacher is None:
        return rule._replace(init=init, apply=of_rule)

    def apply(meta_params, state: DistilledState, trajectory, predictions, target_predictions):
        own, new_state = of_rule(meta_params, state, trajectory, predictions, target_predictions)
        logits, weight = taught(trajectory, state.num_updates)
        weight = ahead(weight, num_ahead) * reached(trajectory, num_ahead)
        return DistilledTargets(own, ahead(logits, num_ahead), weight), new_state

    def taught(trajectory: Trajectory, so_far: Array) -> tuple[Array, Array]:
        """Return the teacher's logits [T, B, A] and the weight of each step [T, B], 0 once it teaches no more."""
        nothing = jnp.zeros_like(trajectory.behaviour_logits), jnp.zeros_like(trajectory.reward)

        def now(trajectory: Trajectory) -> tuple[Array, Array]:
            found = teacher.logits(trajectory), cost * teacher.knows(trajectory)
            return jax.tree.map(lambda x, like: jax.lax.stop_gradient(x).astype(like.dtype), found, nothing)

        return jax.lax.cond(so_far < num_updates, now, lambda _: nothing, trajectory)

    def loss(targets: DistilledTargets, predictions: Predictions, trajectory: Trajectory) -> Array:
        policy = rule.policy(predictions)[:-1, :, None]
        if num_ahead > 1:
            policy = jnp.concatenate([policy, predictions["model_policy"][:-1]], axis=2)
        taught_loss = jnp.sum(targets.weight * kl_divergence(targets.policy, policy), axis=-1)
        return rule.loss(targets.own, predictions, trajectory) + taught_loss

    def metrics(targets: DistilledTargets, predictions: Predictions, trajectory: Trajectory) -> dict[str, Array]:
        divergence = kl_divergence(targets.policy[:, :, 0], rule.policy(predictions)[:-1])
        is_taught = trajectory.valid & (targets.weight[..., 0] > 0)
        mean = masked_reduce(divergence, is_taught, "mean")
        return rule.metrics(targets.own, predictions, trajectory) | {
            "teacher_kl": jnp.where(jnp.any(is_taught), mean, jnp.nan)  # nan once it teaches no more
        }

    return rule._replace(apply=apply, loss=loss, init=init, **of_own_targets(rule) | {"metrics": metrics})
