"""Two colours: a grid whose two objects change their rewards every so many steps.

Source: Flennerhag et al. 2022 (Bootstrapped meta-learning), section 5.1; rules of motion after the public
re-implementation MagiFeeney/Bootstrapped-Meta-Learning.
"""

import dataclasses
import numbers
from typing import NamedTuple

import jax
import jax.numpy as jnp

from toy_envs import base

SIZE = 5  # of the grid
CELLS = SIZE * SIZE
STEP_REWARD = -0.04


class TwoColoursState(NamedTuple):
    key: base.Array
    blue: base.Array  # int32, the cell of the blue object, row by row
    red: base.Array
    agent: base.Array
    num_steps: base.Array  # int32, steps of the whole lifetime
    num_good: base.Array  # int32, of them those that paid +1
    num_bad: base.Array  # int32, of them those that paid -1


@dataclasses.dataclass(frozen=True)
class TwoColours(base.Environment[TwoColoursState]):
    """One object pays +1 when the agent reaches it, the other one −1; a step on any other cell pays −0.04.

    The agent moves up, down, left or right on 5 x 5 cells, and stays where a wall is. A reached object moves to a
    random free cell. There are no episodes. The blue object pays +1 in the first `phase_length` steps of a lifetime,
    the red one in as many steps after them, and so on. No observation shows the phase.

    Raises:
      ValueError: if `phase_length` is no whole number of at least 1.
    """

    phase_length: int = 100_000
    num_actions = 4
    reward_range = (-1.0, 1.0)

    def __post_init__(self):
        if not isinstance(self.phase_length, numbers.Integral) or self.phase_length < 1:
            raise ValueError(f"phase_length is {self.phase_length!r}, expected a whole number of at least 1")

    @property
    def observation_shape(self) -> tuple[int, ...]:  # type: ignore[override]
        return (6 * SIZE,)

    def initial_state(self, key: base.Array) -> TwoColoursState:
        key, draw = jax.random.split(key)
        cells = jax.random.choice(draw, CELLS, (3,), replace=False).astype(jnp.int32)
        blue, red, agent = cells
        return TwoColoursState(key, blue, red, agent, *(jnp.zeros((), jnp.int32),) * 3)

    def restart(self, state: TwoColoursState) -> TwoColoursState:
        return state

    def transition(self, state: TwoColoursState, action: base.Array):
        row, column = state.agent // SIZE, state.agent % SIZE
        row = jnp.clip(row + jnp.array([-1, 1, 0, 0])[action], 0, SIZE - 1)
        column = jnp.clip(column + jnp.array([0, 0, -1, 1])[action], 0, SIZE - 1)
        agent = (row * SIZE + column).astype(jnp.int32)
        at_blue, at_red = agent == state.blue, agent == state.red
        of_blue = 1.0 - 2.0 * ((state.num_steps // self.phase_length) % 2)
        reward = jnp.where(at_blue, of_blue, jnp.where(at_red, -of_blue, STEP_REWARD)).astype(jnp.float32)
        # A counter-based draw: the key never changes.
        draw = jax.random.randint(jax.random.fold_in(state.key, state.num_steps), (), 0, CELLS - 2, jnp.int32)
        blue = jnp.where(at_blue, _free_cell(draw, agent, state.red), state.blue)
        red = jnp.where(at_red, _free_cell(draw, agent, state.blue), state.red)
        num_good, num_bad = state.num_good + (reward > 0), state.num_bad + (reward < STEP_REWARD)
        state = TwoColoursState(state.key, blue, red, agent, state.num_steps + 1, num_good, num_bad)
        return state, reward, jnp.zeros((), bool), jnp.zeros((), bool)

    def mean_reward(self, before: TwoColoursState, after: TwoColoursState) -> base.Array:
        """Return the mean reward of the steps between two states, float32."""
        num, good, bad = (getattr(after, x) - getattr(before, x) for x in ("num_steps", "num_good", "num_bad"))
        return (good - bad + STEP_REWARD * (num - good - bad)) / num

    def observe(self, state: TwoColoursState) -> base.Array:
        """Row and column of blue, red and agent, each one-hot: [30]."""
        cells = jnp.stack([state.blue, state.red, state.agent])
        places = jnp.stack([cells // SIZE, cells % SIZE], axis=1)
        return jnp.ravel(jax.nn.one_hot(places, SIZE, dtype=jnp.float32))


def _free_cell(number: base.Array, one: base.Array, other: base.Array) -> base.Array:
    """Return the cell of that number among all but two different ones."""
    number = number + (number >= jnp.minimum(one, other))
    return number + (number >= jnp.maximum(one, other))
