"""Environments that change within a lifetime: what was learned about them is wrong every so many steps.

What the non-stationary random walk of Xu et al. 2020 (section 4.2) is for prediction, these are for control.
"""

import dataclasses
from typing import Any, NamedTuple

import jax.numpy as jnp

from toy_envs import base
from toy_envs.wrapper import Wrapper

CHANGES = ("rewards", "actions")


class ChangingState(NamedTuple):
    state: Any  # of the environment that changes
    num_steps: base.Array  # int32, steps of the whole lifetime


@dataclasses.dataclass(frozen=True)
class Changing(Wrapper):
    """A pure environment whose rewards or actions are others after every `period` of its steps, over all episodes.

    The steps are counted on where a population begins the next lifetime in it.

    "rewards": their sign is the other one in every second period. "actions": action a does what action a + n, modulo
    their number, does in the environment, in period n from 0 on. Nothing that is observed tells the period, and
    episodes go on over its end.

    Raises:
      TypeError: if the environment is not a pure one.
      ValueError: if there is no such change, or the period is below 1.
    """

    change: str
    period: int

    def __post_init__(self):
        super().__post_init__()
        if self.change not in CHANGES:
            raise ValueError(f"change is {self.change!r}, expected one of {', '.join(CHANGES)}")
        if self.period < 1:
            raise ValueError(f"period is {self.period}, expected at least 1 step")

    @property
    def reward_range(self) -> tuple[float, float] | None:  # type: ignore[override]
        found = self.environment.reward_range
        if found is None or self.change != "rewards":
            return found
        largest = max(map(abs, found))
        return -largest, largest

    @property
    def no_op(self) -> int | None:  # type: ignore[override]
        return None if self.change == "actions" else self.environment.no_op

    def numbered_state(self, task_id: base.Array) -> ChangingState:
        return ChangingState(self.environment.numbered_state(task_id), jnp.zeros((), jnp.int32))

    def initial_state(self, key: base.Array) -> ChangingState:
        return ChangingState(self.environment.initial_state(key), jnp.zeros((), jnp.int32))

    def restart(self, state: ChangingState) -> ChangingState:
        return state._replace(state=self.environment.restart(state.state))

    def transition(self, state: ChangingState, action: base.Array):
        num_changes = state.num_steps // self.period
        if self.change == "actions":
            action = (action + num_changes) % self.num_actions
        next_state, reward, terminated, truncated = self.environment.transition(state.state, action)
        if self.change == "rewards":
            reward = jnp.where(num_changes % 2 == 0, reward, -reward)
        return ChangingState(next_state, state.num_steps + 1), reward, terminated, truncated

    def observe(self, state: ChangingState) -> base.Array:
        return self.environment.observe(state.state)

    def time_left(self, state: ChangingState) -> base.Array:
        return self.environment.time_left(state.state)
