"""Catch: a pellet falls, a paddle on the bottom row has to be under it. With its exact values by dynamic programming.

Source: the toy of Xu et al. 2020 (section 4.1, Figure 2a), after Mnih et al. 2014.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from toy_envs import base


class CatchState(NamedTuple):
    key: base.Array
    row: base.Array  # int32, the pellet's row, 0 at the top
    pellet: base.Array  # int32, the pellet's column
    paddle: base.Array  # int32, the paddle's column


@dataclasses.dataclass(frozen=True)
class Catch(base.Environment[CatchState]):
    """The paddle starts in the centre and moves left, stays or moves right; +1 for a catch, -1 for a miss.

    The pellet starts in a random column of the top row and falls one cell a step, so an episode has `rows - 1` moves.
    """

    rows: int = 6
    columns: int = 11
    num_actions = 3
    reward_range = (-1.0, 1.0)

    def __post_init__(self):
        if self.rows < 2 or self.columns < 1:
            raise ValueError(f"rows x columns is {self.rows}x{self.columns}, expected at least 2x1")

    @property
    def observation_shape(self) -> tuple[int, ...]:  # type: ignore[override]
        return (self.rows, self.columns)

    def initial_state(self, key: base.Array) -> CatchState:
        return self.restart(CatchState(key, *(jnp.zeros((), jnp.int32),) * 3))

    def restart(self, state: CatchState) -> CatchState:
        key, draw = jax.random.split(state.key)
        pellet = jax.random.randint(draw, (), 0, self.columns, jnp.int32)
        return CatchState(key, jnp.zeros((), jnp.int32), pellet, jnp.full((), self.columns // 2, jnp.int32))

    def transition(self, state: CatchState, action: base.Array):
        row = state.row + 1
        paddle = jnp.clip(state.paddle + action.astype(jnp.int32) - 1, 0, self.columns - 1)
        terminated = row == self.rows - 1
        reward = jnp.where(terminated, jnp.where(paddle == state.pellet, 1.0, -1.0), 0.0).astype(jnp.float32)
        return CatchState(state.key, row, state.pellet, paddle), reward, terminated, jnp.zeros((), bool)

    def observe(self, state: CatchState) -> base.Array:
        rows, columns = jnp.arange(self.rows)[:, None], jnp.arange(self.columns)[None]
        pellet = (rows == state.row) & (columns == state.pellet)
        paddle = (rows == self.rows - 1) & (columns == state.paddle)
        return (pellet | paddle).astype(jnp.float32)

    def all_observations(self) -> base.Array:
        """Return the observation of every state an agent acts in: [rows - 1, pellets, paddles, rows, columns]."""
        grid = jnp.meshgrid(*(jnp.arange(n) for n in (self.rows - 1, self.columns, self.columns)), indexing="ij")
        observe = lambda row, pellet, paddle: self.observe(CatchState(jax.random.key(0), row, pellet, paddle))
        return jnp.vectorize(observe, signature="(),(),()->(r,c)")(*grid)

    def expected_return(self, probabilities: base.Array) -> base.Array:
        """Return the exact expected return of a policy, by dynamic programming.

        Args:
          probabilities: of each action in each state of `all_observations`, [rows - 1, pellets, paddles, 3].
        """
        after = self._paddle_after_action()
        value = 2.0 * jnp.eye(self.columns) - 1.0  # [pellets, paddles] on the bottom row
        for row in reversed(range(self.rows - 1)):
            value = jnp.sum(probabilities[row] * value[:, after], axis=-1)
        return jnp.mean(value[:, self.columns // 2])

    def look_ahead_bound(self, num_moves: int) -> float:
        """Return the best expected return of an agent that sees rewards at most `num_moves` ahead.

        All moves but the last `num_moves` are blind to the pellet, the last ones are optimal. It is 3/11 for three
        moves on the default board.
        """
        after = self._paddle_after_action()
        value = 2.0 * np.eye(self.columns) - 1.0
        for _ in range(min(num_moves, self.rows - 1)):
            value = value[:, after].max(axis=-1)
        blind = value.mean(axis=0)  # [paddles]
        for _ in range(self.rows - 1 - num_moves):
            blind = blind[after].max(axis=-1)
        return float(blind[self.columns // 2])

    def _paddle_after_action(self) -> np.ndarray:
        """Return the paddle's column after each action: [columns, 3]."""
        return np.clip(np.arange(self.columns)[:, None] + np.arange(3)[None] - 1, 0, self.columns - 1)
