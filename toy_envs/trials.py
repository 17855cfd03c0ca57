"""Trials: an episode of several tries at one task, which a memory can learn from.

Source: AdA 2023, section 2.2 and appendix D.1; what is observed is of Table C.1.
"""

import dataclasses
import math
import numbers
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from toy_envs import base

MAX_SHOWN = 5  # trials; of more it is only observed that they are more


def _is_whole(number: Any) -> bool:
    return isinstance(number, numbers.Integral) and not isinstance(number, bool)


class TrialStats(NamedTuple):
    """Trials that ended, by their place in the episode: how many, and the sum of their (undiscounted) returns."""

    num_trials: base.Array  # int32, [..., num_trials]
    return_sum: base.Array  # float32, [..., num_trials]


class TrialsState(NamedTuple):
    key: base.Array
    state: Any  # of the environment
    num_trials: base.Array  # int32, of this episode
    trial: base.Array  # int32, from 0
    action: base.Array  # int32, the last one of this episode, initially -1
    reward: base.Array  # float32, the last one of this episode, initially 0
    trial_return: base.Array  # float32, so far
    stats: TrialStats  # since `initial_state`


@dataclasses.dataclass(frozen=True)
class Trials(base.Environment[TrialsState]):
    """Episodes of `num_trials` trials of one task, each of which is an episode of a pure environment.

    With `min_trials`, the number of an episode's trials is drawn, from it to `num_trials`, uniformly. If forgetful, the
    observation that follows a trial is marked as a first one, where agents reset their memory: an ablation. It still
    shows the last action and reward, and `transition`, which marks nothing, is the same.

    A task is what the environment's `initial_state` draws, and its `restart` keeps. Where a trial ends, by termination
    or by time, the environment restarts, and the episode goes on: neither does the discount become 0 there nor is the
    observation a first one, so a memory is kept, and the reward of its last step counts as any other. The last trial's
    end terminates the episode, also by time, as the number of trials is observed, and the next one is of another task.

    The observation is the environment's, flat (uint8 is divided by 255), and then how many trials are left with this
    one (one-hot for 1 to `MAX_SHOWN`, and whether they are more), the time left in this trial, the last action
    (one-hot) and reward, those of the trial before included.

    Raises:
      TypeError: if the environment is not a pure one.
      ValueError: if `num_trials` is no whole number from 1 on, or `min_trials` none from 1 to it.
    """

    environment: base.Environment
    num_trials: int
    min_trials: int | None = None  # None for `num_trials` in every episode
    is_forgetful: bool = False

    def __post_init__(self):
        base.check_pure("environment", self.environment)
        if not _is_whole(self.num_trials) or self.num_trials < 1:
            raise ValueError(f"num_trials is {self.num_trials!r}, expected a whole number of at least 1")
        least = self.min_trials
        if least is not None and not (_is_whole(least) and 1 <= least <= self.num_trials):
            raise ValueError(f"min_trials is {least!r}, expected 1 to num_trials ({self.num_trials})")

    @property
    def observation_shape(self) -> tuple[int, ...]:  # type: ignore[override]
        """The trial's observation, flat, and what is known of the episode."""
        return (math.prod(self.environment.observation_shape) + MAX_SHOWN + 2 + self.num_actions + 1,)

    @property
    def num_actions(self) -> int:  # type: ignore[override]
        """Those of a trial."""
        return self.environment.num_actions

    @property
    def horizon(self) -> int | None:  # type: ignore[override]
        """Steps of an episode, where those of a trial are known."""
        return self.environment.horizon and self.num_trials * self.environment.horizon

    @property
    def reward_range(self) -> tuple[float, float] | None:  # type: ignore[override]
        """That of a trial."""
        return self.environment.reward_range

    def initial_state(self, key: base.Array) -> TrialsState:
        zero, none = jnp.zeros((), jnp.int32), jnp.zeros((), jnp.float32)
        stats = TrialStats(jnp.zeros(self.num_trials, jnp.int32), jnp.zeros(self.num_trials, jnp.float32))
        return self.restart(TrialsState(key, None, zero + self.num_trials, zero, zero, none, none, stats))

    def restart(self, state: TrialsState) -> TrialsState:
        key, task_key = jax.random.split(state.key)
        return self.begin(state._replace(key=key), self.environment.initial_state(task_key))

    def begin(self, state: TrialsState, task: Any) -> TrialsState:
        """Return the start of an episode of the task that a state of the environment, a trial's first one, is of."""
        zero, none = jnp.zeros_like(state.trial), jnp.zeros_like(state.reward)
        if self.min_trials is not None:
            key, number_key = jax.random.split(state.key)
            drawn = jax.random.randint(number_key, (), self.min_trials, self.num_trials + 1, jnp.int32)
            state = state._replace(key=key, num_trials=drawn)
        return state._replace(state=task, trial=zero, action=zero - 1, reward=none, trial_return=none)

    def transition(self, state: TrialsState, action: base.Array):
        new, reward, terminated, truncated = self.environment.transition(state.state, action)
        is_over = terminated | truncated
        new = base.choose(is_over, self.environment.restart(base.cloned(new)), new)
        trial_return = state.trial_return + reward
        ended = is_over & (jnp.arange(self.num_trials) == state.trial)
        stats = TrialStats(
            num_trials=state.stats.num_trials + ended,
            return_sum=state.stats.return_sum + jnp.where(ended, trial_return, 0.0),
        )
        next_state = TrialsState(
            key=state.key,
            state=new,
            num_trials=state.num_trials,
            trial=state.trial + is_over,
            action=action.astype(jnp.int32),
            reward=reward,
            trial_return=jnp.where(is_over, 0.0, trial_return),
            stats=stats,
        )
        return next_state, reward, next_state.trial == state.num_trials, jnp.zeros((), bool)

    def is_first_of_trial(self, observation: base.Array) -> base.Array:
        """Return whether a trial begins, bool [...], of observations [..., n], where the time left is known."""
        return observation[..., math.prod(self.environment.observation_shape) + MAX_SHOWN + 1] == 1

    def is_last_trial(self, observation: base.Array) -> base.Array:
        """Return whether the trial is the last one of its episode, bool [...], of observations [..., n]."""
        return observation[..., math.prod(self.environment.observation_shape)] == 1

    def _seen(self, state: TrialsState, new: TrialsState, shown: dict[str, base.Array]) -> base.TimeStep:
        step = super()._seen(state, new, shown)
        return step._replace(is_first=step.is_first | (new.trial != state.trial)) if self.is_forgetful else step

    def observe(self, state: TrialsState) -> base.Array:
        num_left = state.num_trials - state.trial
        shown = self.environment.observe(state.state).ravel()
        parts = [
            shown / 255 if shown.dtype == jnp.uint8 else shown,
            jax.nn.one_hot(jnp.minimum(num_left, MAX_SHOWN + 1) - 1, MAX_SHOWN + 1),
            self.environment.time_left(state.state)[None],
            jax.nn.one_hot(state.action, self.num_actions),
            state.reward[None],
        ]
        return jnp.concatenate(parts).astype(jnp.float32)
