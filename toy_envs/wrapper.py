"""Environments that are another one but for something, and those whose rewards are of another scale."""

import dataclasses

from toy_envs import base

SMALLEST, LARGEST = 1e-30, 1e30  # factors of rewards, which are float32


@dataclasses.dataclass(frozen=True)
class Wrapper(base.Environment[base.State]):
    """A pure environment in all that a subclass does not change; one with a `step` or `init` of its own loses it.

    Raises:
      TypeError: if the environment is not a pure one.
    """

    environment: base.Environment

    def __post_init__(self):
        base.check_pure("environment", self.environment)

    @property
    def observation_shape(self) -> tuple[int, ...]:  # type: ignore[override]
        return self.environment.observation_shape

    @property
    def num_actions(self) -> int:  # type: ignore[override]
        return self.environment.num_actions

    @property
    def horizon(self) -> int | None:  # type: ignore[override]
        return self.environment.horizon

    @property
    def reward_range(self) -> tuple[float, float] | None:  # type: ignore[override]
        return self.environment.reward_range

    @property
    def is_restart_slow(self) -> bool:  # type: ignore[override]
        return self.environment.is_restart_slow

    @property
    def no_op(self) -> int | None:  # type: ignore[override]
        return self.environment.no_op

    @property
    def program(self) -> "Wrapper":
        return dataclasses.replace(self, environment=self.environment.program)

    @property
    def tested(self) -> "Wrapper":
        return dataclasses.replace(self, environment=self.environment.tested)

    @property
    def has_time_left(self) -> bool:
        return self.environment.has_time_left

    @property
    def task_ids(self) -> range:
        return self.environment.task_ids

    @property
    def held_out_ids(self) -> range | None:  # type: ignore[override]
        return self.environment.held_out_ids

    def numbered_state(self, task_id: base.Array) -> base.State:
        return self.environment.numbered_state(task_id)

    def initial_state(self, key: base.Array) -> base.State:
        return self.environment.initial_state(key)

    def restart(self, state: base.State) -> base.State:
        return self.environment.restart(state)

    def transition(self, state: base.State, action: base.Array):
        return self.environment.transition(state, action)

    def observe(self, state: base.State) -> base.Array:
        return self.environment.observe(state)

    def time_left(self, state: base.State) -> base.Array:
        return self.environment.time_left(state)


@dataclasses.dataclass(frozen=True)
class Scaled(Wrapper):
    """A pure environment whose rewards are `factor` times as large.

    Raises:
      TypeError: if the environment is not a pure one.
      ValueError: if the factor is not from SMALLEST to LARGEST.
    """

    factor: float

    def __post_init__(self):
        super().__post_init__()
        if not SMALLEST <= self.factor <= LARGEST:
            raise ValueError(f"factor is {self.factor:g}, expected {SMALLEST:g} to {LARGEST:g}")

    @property
    def reward_range(self) -> tuple[float, float] | None:  # type: ignore[override]
        found = self.environment.reward_range
        return found and (self.factor * found[0], self.factor * found[1])

    def transition(self, state: base.State, action: base.Array):
        next_state, reward, terminated, truncated = self.environment.transition(state, action)
        return next_state, self.factor * reward, terminated, truncated
