"""What flows between environment, agent and rule: their shapes, and checks of arrays that come from outside.

T is time, B the batch, A the number of actions. Index t belongs to the action taken at observation t: `reward[t]`,
`discount[t]` and `observation[t + 1]` are what the action led to. What ends an episode, and how, is defined in
`toy_envs/base.py`.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from agents.validation import as_array, check_shape
from toy_envs.base import Array

Params = Any  # a pytree of arrays
CoreState = Any  # a pytree of arrays [B, ...]; () without a recurrent core


class Trajectory(NamedTuple):
    """T consecutive steps of B environments; `make_trajectory` builds one from plain arrays."""

    observation: Array  # [T + 1, B, ...]
    is_first: Array  # [T + 1, B] bool, the observation is the first one of an episode
    action: Array  # [T, B] int32
    reward: Array  # [T, B] float32
    discount: Array  # [T, B] float32, 0 at a true termination, else mostly 1: the agent's own discount is not in it
    truncated: Array  # [T, B] bool, a time limit ended the episode, or what follows it is in another trajectory
    valid: Array  # [T, B] bool, False on steps that no agent chose, as those of a reset
    behaviour_logits: Array  # [T, B, A] float32, of the policy that acted (μ)
    core_state: CoreState  # [B, ...], the network's recurrent state before observation 0

    @property
    def is_last(self) -> Array:
        """Whether the step ended its episode, or belongs to none: [T, B] bool. Nothing is propagated across it."""
        return (self.discount == 0) | self.truncated | ~self.valid

    @property
    def is_successor_unknown(self) -> Array:
        """Whether a time limit ended the episode, and the next observation already is another one's: [T, B] bool."""
        return self.truncated & self.is_first[1:]

    @property
    def known_transitions(self) -> "Trajectory":
        """One step, T = 1, whose successor is its own observation where it is unknown: then none is."""
        before, after = self.observation
        is_unknown = jnp.reshape(self.is_successor_unknown[0], (-1, *(1,) * (after.ndim - 1)))
        observation = jnp.stack([before, jnp.where(is_unknown, before, after)])
        return self._replace(observation=observation, truncated=jnp.zeros_like(self.truncated))


class PredictionSpec(NamedTuple):
    """One prediction of an agent.

    Attributes:
      shape: its trailing axes, () for a scalar.
      is_per_action: whether there is one for each of A actions; the trailing axes are then (A, *shape).
      is_apart: whether its head alone learns by its loss: no gradient flows on into the layers before.
    """

    shape: tuple[int, ...] = ()
    is_per_action: bool = False
    is_apart: bool = False

    def axes(self, num_actions: int) -> tuple[int, ...]:
        """The trailing axes for that many actions."""
        return (num_actions, *self.shape) if self.is_per_action else self.shape


TargetSpec = Mapping[str, PredictionSpec]  # for each name what an agent predicts, or what a meta-network puts out
Predictions = Mapping[str, Array]  # for each name of the spec [T + 1, B, *axes of the spec]
Targets = Any  # a pytree of arrays [T, B, ...], known to the rule that made them


def successors(predictions: Array, trajectory: Trajectory) -> Array:
    """Return what was predicted of the observation that each step led to, [T + 1, B, ...] -> [T, B, ...].

    Where that is unknown (`Trajectory.is_successor_unknown`) it is what was predicted of the observation before: of the
    step's error its reward is left, and (γ − 1) v.
    """
    before, after = predictions[:-1], predictions[1:]
    is_unknown = trajectory.is_successor_unknown
    return jnp.where(jnp.reshape(is_unknown, (*is_unknown.shape, *(1,) * (after.ndim - 2))), before, after)


def make_trajectory(
    *,
    observation: ArrayLike,
    action: ArrayLike,
    reward: ArrayLike,
    discount: ArrayLike,
    behaviour_logits: ArrayLike,
    truncated: ArrayLike | None = None,
    is_first: ArrayLike | None = None,
    valid: ArrayLike | None = None,
    core_state: CoreState = (),
) -> Trajectory:
    """Build a trajectory from plain arrays, and check them.

    Where environments reset in the same step, `is_first` and `valid` need not be given: the observation after an end is
    a first one, and every step is valid. A truncated one then does not know what followed it (`successors`); to
    bootstrap from a last observation that is known, give it as the next one, and after it a step of a reset.

    Where environments reset in the next step (gymnasium's default, envpool, dm_env), give `is_first`: True of the
    observation that the step *after* an end shows. That step is then not valid; give it the reward 0 and the discount
    1. The time steps of `frodo.as_environment` are marked in these ways.

    Args:
      observation: [T + 1, B, ...], the last one is that after the last step.
      action: [T, B], whole numbers from 0 on.
      reward: [T, B], what each action led to.
      discount: [T, B], 0 at a true termination, else that of the environment, up to 1, mostly 1. The discount γ, a
        setting of the rule, multiplies it.
      behaviour_logits: [T, B, A], logits of the policy that acted.
      truncated: [T, B], a time limit ended the episode; by default nowhere.
      is_first: [T + 1, B], the observation is the first one of an episode; by default those that follow the end of an
        episode, as where environments reset in the same step.
      valid: [T, B], an agent chose the step; by default those that show a first observation and end no episode were a
        reset.
      core_state: the network's recurrent state before observation 0; () for agents without one.
    Raises:
      ValueError: naming the first array whose shape, dtype or entries are wrong.
    """
    given = dict(observation=observation, action=action, reward=reward, discount=discount)
    given |= dict(behaviour_logits=behaviour_logits)
    arrays = {name: as_array(name, x) for name, x in given.items()}
    actions = arrays["action"]
    _check_size(actions)
    check_shape("discount", arrays["discount"], actions.shape)
    ended = arrays["discount"] == 0
    is_truncated = jnp.zeros_like(ended) if truncated is None else jnp.asarray(truncated)
    _check_kind("truncated", is_truncated, jnp.bool_)
    check_shape("truncated", is_truncated, ended.shape)
    if is_first is None:
        is_first = jnp.concatenate([jnp.zeros_like(ended[:1]), ended | is_truncated])
    firsts = jnp.asarray(is_first)
    _check_kind("is_first", firsts, jnp.bool_)
    check_shape("is_first", firsts, (len(ended) + 1, *ended.shape[1:]))
    valids = ended | is_truncated | ~firsts[1:] if valid is None else jnp.asarray(valid)
    trajectory = Trajectory(**arrays, is_first=firsts, truncated=is_truncated, valid=valids, core_state=core_state)
    check_trajectory(trajectory)
    num_actions = trajectory.behaviour_logits.shape[-1]
    for name, is_good, expected in (
        ("action", lambda x: (x >= 0) & (x < num_actions), f"a number from 0 to {num_actions - 1}"),
        ("observation", lambda x: ~np.isnan(x), "a number"),
        ("reward", np.isfinite, "a finite number"),
        ("discount", lambda x: (x >= 0) & (x <= 1), "a number from 0 to 1, 0 where the episode terminated"),
        ("behaviour_logits", lambda x: ~np.isnan(x), "a number"),
    ):
        x = getattr(trajectory, name)
        if name == "observation" and not jnp.issubdtype(x.dtype, jnp.inexact):
            continue  # whole numbers are never nan
        if not isinstance(x, jax.core.Tracer) and not np.all(good := is_good(np.asarray(x))):
            place = tuple(int(i) for i in np.argwhere(~good)[0])
            raise ValueError(f"{name}{list(place)} is {np.asarray(x)[place]}, expected {expected}")
    return trajectory._replace(
        action=actions.astype(jnp.int32),
        reward=trajectory.reward.astype(jnp.float32),
        discount=trajectory.discount.astype(jnp.float32),
        truncated=is_truncated & ~ended,
        behaviour_logits=trajectory.behaviour_logits.astype(jnp.float32),
    )


def check_trajectory(trajectory: Trajectory) -> None:
    """Raise a ValueError that names the first array of a trajectory [T, B] whose shape or kind of numbers is wrong."""
    _check_size(trajectory.action)
    num_steps, batch_size = trajectory.action.shape
    _check_kind("action", trajectory.action, jnp.integer)
    for name in ("is_first", "truncated", "valid"):
        _check_kind(name, getattr(trajectory, name), jnp.bool_)
    for name in ("reward", "discount", "truncated", "valid"):
        check_shape(name, getattr(trajectory, name), (num_steps, batch_size))
    check_shape("is_first", trajectory.is_first, (num_steps + 1, batch_size))
    check_shape("behaviour_logits", trajectory.behaviour_logits, (num_steps, batch_size, None))
    if trajectory.observation.shape[:2] != (num_steps + 1, batch_size):
        raise ValueError(
            f"observation has the shape {list(trajectory.observation.shape)}, expected [{num_steps + 1}, {batch_size}, "
            "...]: one more than there are actions"
        )


def _check_size(action: Array) -> None:
    check_shape("action", action, (None, None))
    if not action.size:
        raise ValueError(f"action has the shape {list(action.shape)}, expected at least one step and one environment")


def _check_kind(name: str, x: Array, kind: Any) -> None:
    if not jnp.issubdtype(x.dtype, kind):
        expected = "bool" if kind is jnp.bool_ else "whole numbers, such as int32"
        raise ValueError(f"{name} has the dtype {x.dtype}, expected {expected}")


def check_predictions(predictions: Predictions, spec: TargetSpec, trajectory: Trajectory) -> None:
    """Raise a ValueError that names the first prediction that is missing, or whose shape is not that of the spec."""
    num_steps, batch_size, num_actions = trajectory.behaviour_logits.shape
    for name, prediction in spec.items():
        if name not in predictions:
            found, expected = ", ".join(predictions), ", ".join(spec)
            raise ValueError(f"prediction {name!r} is missing: the agent predicts {found}, expected {expected}")
        axes = (num_steps + 1, batch_size, *prediction.axes(num_actions))
        check_shape(f"prediction {name!r}", predictions[name], axes)
