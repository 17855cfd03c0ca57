"""What flows between environment, agent and rule: every shape is stated here.

T is time, B the batch, A the number of actions. Index t belongs to the action taken at observation t: `reward[t]` and
`discount[t]` are what it led to, `observation[t + 1]` is what was seen next. What ends an episode, and how, is
defined in `toy_envs/base.py`.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from toy_envs.base import Array

Params = Any  # a pytree of arrays
CoreState = Any  # a pytree of arrays [B, ...]; () without a recurrent core


class Trajectory(NamedTuple):
    """T consecutive steps of B environments."""

    observation: Array  # [T + 1, B, ...]
    is_first: Array  # [T + 1, B] bool, the observation is the first one of an episode
    action: Array  # [T, B] int32
    reward: Array  # [T, B] float32
    discount: Array  # [T, B] float32, 0 at a true termination, else 1: the agent's own discount is not in it
    truncated: Array  # [T, B] bool
    valid: Array  # [T, B] bool, False on steps that no agent chose or whose successor is unknown
    behaviour_logits: Array  # [T, B, A] float32, of the policy that acted (μ)
    core_state: CoreState  # [B, ...], the network's recurrent state before observation 0

    @property
    def is_last(self) -> Array:
        """Whether the step ended its episode, or belongs to none: [T, B] bool. Nothing is propagated across it."""
        return (self.discount == 0) | self.truncated | ~self.valid


class PredictionSpec(NamedTuple):
    """One prediction of an agent: its trailing axes, `shape`, or `(A, *shape)` with one for each action."""

    shape: tuple[int, ...] = ()
    is_per_action: bool = False


TargetSpec = Mapping[str, PredictionSpec]  # for each name what an agent predicts, or what a meta-network puts out
Predictions = Mapping[str, Array]  # for each name of the spec [T + 1, B, *axes of the spec]
Targets = Any  # a pytree of arrays [T, B, ...], known to the rule that made them
