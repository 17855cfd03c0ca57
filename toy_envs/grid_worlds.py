"""57 small grid worlds with objects to collect, all of one compiled program: what differs is in the state.

In the spirit of the tabular and the random grid worlds of Oh et al. 2020 (appendix); these worlds are our own.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from toy_envs import base

NUM_WORLDS = 57
SIZE = 9  # of the common board
NUM_OBJECTS = 3  # slots, of which a world uses at least one
ABSENT = -1  # instead of a cell

# A cell is a number of the board with a ring of walls around it, so a step never leaves the array.
_WIDTH = SIZE + 2
MOVES = np.array([0, -_WIDTH, _WIDTH, -1, 1], np.int32)  # stay, up, down, left, right
_CELLS = np.arange(_WIDTH**2, dtype=np.int32).reshape(_WIDTH, _WIDTH)[1:-1, 1:-1]


class World(NamedTuple):
    """What differs between worlds. `cells` and `is_random` have an entry for the start and one for each object."""

    walls: base.Array  # bool, [cells]
    free: base.Array  # int32, [SIZE²]: the cells that are not walls, then zeros
    num_free: base.Array  # int32
    cells: base.Array  # int32, [1 + NUM_OBJECTS]: fixed ones, ABSENT in an unused slot
    is_random: base.Array  # bool, [1 + NUM_OBJECTS]: drawn anew instead
    rewards: base.Array  # float32, [NUM_OBJECTS]
    respawn: base.Array  # float32, [NUM_OBJECTS]: probability to come back, at each step
    termination: base.Array  # float32, [NUM_OBJECTS]: probability that collecting it ends the episode
    horizon: base.Array  # int32, steps until truncation


class GridWorldState(NamedTuple):
    key: base.Array
    num_draws: base.Array  # int32, random draws of the whole lifetime
    num_steps: base.Array  # int32, steps of this episode
    agent: base.Array  # int32, a cell
    objects: base.Array  # int32, [NUM_OBJECTS]: cells, or ABSENT
    world: World


@functools.cache
def make_world(index: int) -> World:
    """Generate a world from its number; the arrays are read-only.

    - A horizon of 20 to 60 steps.
    - 5 to 9 rows and columns; walls with a density from U(0, 0.2), drawn anew until all free cells are connected, none
      of them `horizon` steps or more from another.
    - 1 to 3 objects: the reward of the first is from U(0.5, 1), of others from U(-1, 1). Respawn probabilities are 0
      for one in three, else from U(0, 0.3); termination probabilities are 0, 1, or from U(0, 1), each for one in three.
    - Worlds with an even number are tabular: the start and the objects have fixed cells. In the others these are drawn
      at the start of each episode, and an object comes back at any cell.
    """
    rng = np.random.default_rng([20_200_717, index])
    rows, columns = rng.integers(5, SIZE + 1, 2)
    density, horizon = rng.uniform(0, 0.2), rng.integers(20, 61)
    while True:
        walls = np.ones(_WIDTH**2, bool)
        walls[_CELLS[:rows, :columns]] = rng.random((rows, columns)) < density
        free = np.flatnonzero(~walls)
        if max(_distances(walls, cell)[free].max() for cell in free.tolist()) < horizon:
            break
    is_used = np.arange(NUM_OBJECTS) < rng.integers(1, NUM_OBJECTS + 1)
    cells = rng.choice(free, 1 + NUM_OBJECTS, replace=False)
    rewards = np.append(rng.uniform(0.5, 1), rng.uniform(-1, 1, NUM_OBJECTS - 1))
    respawn = np.where(rng.random(NUM_OBJECTS) < 1 / 3, 0.0, rng.uniform(0, 0.3, NUM_OBJECTS))
    termination = np.clip(rng.uniform(-1, 2, NUM_OBJECTS), 0.0, 1.0)
    arrays: dict[str, Any] = dict(
        walls=walls,
        free=np.pad(free, (0, SIZE**2 - len(free))).astype(np.int32),
        num_free=np.array(len(free), np.int32),
        cells=np.where(np.append(True, is_used), cells, ABSENT).astype(np.int32),
        is_random=np.append(True, is_used) & (index % 2 == 1),
        rewards=np.where(is_used, rewards, 0.0).astype(np.float32),
        respawn=np.where(is_used, respawn, 0.0).astype(np.float32),
        termination=np.where(is_used, termination, 0.0).astype(np.float32),
        horizon=np.array(horizon, np.int32),
    )
    for array in arrays.values():
        array.setflags(write=False)
    return World(**arrays)


def _distances(walls: np.ndarray, start: int) -> np.ndarray:
    """Return how many steps each cell is from one of them, infinity if out of reach and NaN for walls: [cells]."""
    distances, edge, num_steps = np.where(walls, np.nan, np.inf), {start}, 0
    while edge:
        distances[list(edge)] = num_steps
        edge = {cell + move for cell in edge for move in MOVES if distances[cell + move] == np.inf}
        num_steps += 1
    return distances


@dataclasses.dataclass(frozen=True)
class GridWorld(base.Environment[GridWorldState]):
    """One of the 57 worlds. Stay or move a cell; entering the cell of an object collects it and pays its reward.

    A wall leaves the agent where it is. At each step an object that is away comes back with its probability, unless the
    cell where it would is taken, be it by the agent. The planes of an observation are the agent, the walls, and one for
    each slot of an object. Only `initial_state` knows which world it is: the other methods do the same in all.
    """

    index: int
    num_actions = len(MOVES)
    observation_shape = (2 + NUM_OBJECTS, SIZE, SIZE)

    def __post_init__(self):
        if self.index not in range(NUM_WORLDS):
            raise ValueError(f"index is {self.index!r}, expected one of 0 to {NUM_WORLDS - 1}")

    @property
    def reward_range(self) -> tuple[float, float]:  # type: ignore[override]
        rewards = make_world(self.index).rewards
        return min(0.0, float(np.min(rewards))), max(0.0, float(np.max(rewards)))

    @property
    def program(self) -> "GridWorld":
        """Return the one environment whose `restart`, `transition` and `observe` serve the states of all worlds."""
        return GridWorld(0)

    def initial_state(self, key: base.Array) -> GridWorldState:
        world = World(*(jnp.array(array) for array in make_world(self.index)))
        zero = jnp.zeros((), jnp.int32)
        return self.restart(GridWorldState(key, zero, zero, zero, world.cells[1:], world))

    def restart(self, state: GridWorldState) -> GridWorldState:
        cells, zero = _draw_cells(state.world, _draw(state, 1 + NUM_OBJECTS)), jnp.zeros((), jnp.int32)
        return GridWorldState(state.key, state.num_draws + 1, zero, cells[0], cells[1:], state.world)

    def transition(self, state: GridWorldState, action: base.Array):
        world, uniform = state.world, _draw(state, 2 + 2 * NUM_OBJECTS)
        for_cells, for_respawn, for_termination = jnp.split(uniform, (1 + NUM_OBJECTS, 1 + 2 * NUM_OBJECTS))

        target = state.agent + jnp.asarray(MOVES)[action]
        agent = jnp.where(world.walls[target], state.agent, target)
        collected = state.objects == agent
        reward = jnp.sum(jnp.where(collected, world.rewards, 0.0))
        terminated = jnp.any(collected & (for_termination < world.termination))

        objects = jnp.where(collected, ABSENT, state.objects)
        cells = _draw_cells(world, for_cells)[1:]
        is_taken = (cells == agent) | jnp.any(cells[:, None] == objects[None], axis=1)
        respawns = (objects == ABSENT) & (for_respawn < world.respawn) & ~is_taken
        objects = jnp.where(respawns, cells, objects)
        state = GridWorldState(state.key, state.num_draws + 1, state.num_steps + 1, agent, objects, world)
        return state, reward, terminated, state.num_steps >= world.horizon

    def observe(self, state: GridWorldState) -> base.Array:
        shown = jnp.append(state.agent, state.objects)[:, None, None] == _CELLS
        walls = state.world.walls.reshape(1, _WIDTH, _WIDTH)[:, 1:-1, 1:-1]
        return jnp.concatenate([shown[:1], walls, shown[1:]]).astype(jnp.float32)

    def time_left(self, state: GridWorldState) -> base.Array:
        return 1.0 - state.num_steps / state.world.horizon


def _draw(state: GridWorldState, count: int) -> base.Array:
    """Return uniform numbers, [count]; the caller must add to `num_draws`."""
    return jax.random.uniform(jax.random.fold_in(state.key, state.num_draws), (count,))


def _draw_cells(world: World, uniform: base.Array) -> base.Array:
    """Return the cells of the start and of the objects, the random ones drawn from the free ones without repetition."""
    indices: list[base.Array] = []
    for i in range(1 + NUM_OBJECTS):
        index = (uniform[i] * (world.num_free - i)).astype(jnp.int32)  # among those not drawn yet
        ranks = [sum(other < one for other in indices) for one in indices]
        indices.append(index + sum(one - rank <= index for one, rank in zip(indices, ranks, strict=True)))
    return jnp.where(world.is_random, world.free[jnp.stack(indices)], world.cells)
