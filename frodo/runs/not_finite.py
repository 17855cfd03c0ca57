"""What is looked for where parameters are no longer finite: the first number that an environment showed as none."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from agents.environments.host import not_finite
from agents.types import Array, Trajectory


class NotFinite(NamedTuple):
    """Which number that an environment showed is not finite, if there is one."""

    is_there: Array  # bool
    step: Array  # int32, after which it was shown
    number: Array  # int32, of the environment in its batch
    element: Array  # int32, in the flat observation; -1 of a reward
    value: Array  # float32


def nothing() -> NotFinite:
    """Return what is found before anything is looked at."""
    zero = jnp.zeros((), jnp.int32)
    return NotFinite(jnp.zeros((), bool), zero, zero, zero, jnp.zeros(()))


def first_not_finite(trajectories: Trajectory, validation: Trajectory | None, is_clipped: bool) -> NotFinite:
    """Return the first number that is not finite in the trajectories [M, T, B, ...] of an iteration.

    With `is_clipped`, an infinite reward is none: it is clipped for learning.
    """
    parts = [trajectories] + ([] if validation is None else [jax.tree.map(lambda x: x[None], validation)])
    values, steps = zip(*map(_shown, parts), strict=True)
    shown = jnp.concatenate(values)  # [M * (T + 1) + T' + 1, B, n + 1]
    before = np.cumsum([0, *(part.action.shape[0] * part.action.shape[1] for part in parts)])
    step = np.concatenate([own + start for own, start in zip(steps, before, strict=False)])
    bad = ~jnp.isfinite(shown)
    if is_clipped:
        bad = bad.at[..., -1].set(jnp.isnan(shown[..., -1]))
    row, number, element = (x.astype(jnp.int32) for x in jnp.unravel_index(jnp.argmax(bad), bad.shape))
    value = shown[row, number, element].astype(float)
    element = jnp.where(element == bad.shape[-1] - 1, -1, element)
    return NotFinite(jnp.any(bad), jnp.asarray(step, jnp.int32)[row], number, element, value)


def _shown(trajectories: Trajectory) -> tuple[Array, np.ndarray]:
    """Return observation and reward after each step, [M * (T + 1), B, n + 1], and the numbers of the steps from 0 on.

    The first of a trajectory is what was shown before its first step. Whole numbers are finite, and left out.
    """
    num, length, batch_size = trajectories.action.shape
    observation = jnp.reshape(trajectories.observation, (num * (length + 1), batch_size, -1))
    if not jnp.issubdtype(observation.dtype, jnp.floating):
        observation = jnp.zeros((*observation.shape[:2], 0))
    reward = jnp.pad(trajectories.reward, ((0, 0), (1, 0), (0, 0)))
    values = [observation, jnp.reshape(reward, (num * (length + 1), batch_size, 1))]
    return jnp.concatenate(values, axis=-1), np.ravel(np.arange(num)[:, None] * length + np.arange(length + 1))


def what_was_shown(found: NotFinite, name: str, observation_shape: tuple[int, ...], step: int) -> str:
    """Say what was found in an environment of that name, from so many steps on; "" where all was finite."""
    found = jax.device_get(found)
    if not found.is_there:
        return ""
    place = (name, int(found.number), step + int(found.step))
    if found.element < 0:
        return not_finite(*place, "reward", (), float(found.value))
    index = tuple(int(i) for i in np.unravel_index(found.element, observation_shape))
    return not_finite(*place, "observation", index, float(found.value))
