"""The rule room: which two objects make the goal is hidden, found in one trial and used in the next ones.

A small and exactly solvable relative of XLand 2.0, whose production rules and dead ends it has (AdA 2023, section 2.1).
The best returns in it are in `rule_room_optimum.py`.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from toy_envs import base

SIZE = 4  # of the square room
NUM_OBJECTS = 4  # slots, of which a kind uses the first ones
ABSENT = -1  # instead of a cell
HELD_OUT = range(2**31, 2**31 + 1000)  # ids of tasks that are in no other pool
MOVES = np.array([[0, 0], [-1, 0], [1, 0], [0, -1], [0, 1]], np.int32)  # stay, up, down, left, right

# What may be in the hand, besides an object.
INTERMEDIATE, EMPTY = NUM_OBJECTS, NUM_OBJECTS + 1
# What comes of entering an object's cell.
NOTHING, VOID, GOAL, MIDDLE, SPOILT = range(5)

# The number of a pair of objects, [hand, object]: those of the first objects come first; -1 is none.
_PAIRS = np.full((NUM_OBJECTS + 2, NUM_OBJECTS), -1, np.int32)
_FIRST, _SECOND = np.array([(i, j) for j in range(NUM_OBJECTS) for i in range(j)], np.int32).T
_PAIRS[_FIRST, _SECOND] = _PAIRS[_SECOND, _FIRST] = np.arange(len(_FIRST))
_SHOWN = np.tril_indices(NUM_OBJECTS + 1, -1, NUM_OBJECTS)  # each pair once, and those of the intermediate


class Kind(NamedTuple):
    """A family of tasks: layout and rules are drawn uniformly."""

    num_objects: int
    num_dead_ends: int
    makes: int = GOAL  # what one pair of objects makes: GOAL, MIDDLE, or NOTHING
    horizon: int = 12  # steps of a trial
    is_solved: bool = False  # the goal is reached initially, and lost where the agent enters one of the objects
    share_shown: float = 0.0  # of tasks whose rules are observed


KINDS = {
    "easy": Kind(2, 0),
    "medium": Kind(3, 1),
    "main": Kind(4, 2),
    "chain": Kind(4, 1, MIDDLE, horizon=16),
    "pre_solved": Kind(4, 2, NOTHING, is_solved=True),
    "impossible": Kind(4, 2, NOTHING),
    "visible": Kind(4, 2, share_shown=0.25),
}
# Most tasks of this kind teach nothing: work for a curriculum.
MIXED = {"main": 0.05, "chain": 0.05, "easy": 0.05, "medium": 0.05, "pre_solved": 0.4, "impossible": 0.4}
SOLVABLE = dict.fromkeys(("main", "chain", "easy", "medium"), 0.25)  # those of `MIXED` that teach something
MIXTURES = {"mixed": MIXED, "solvable": SOLVABLE}


class Task(NamedTuple):
    """What stays from trial to trial."""

    homes: base.Array  # int32, [NUM_OBJECTS]: cells of the objects, ABSENT in an unused slot
    start: base.Array  # int32, the agent's first cell
    reactions: base.Array  # int32, [NUM_OBJECTS + 2, NUM_OBJECTS]: by what is in the hand, and the object entered
    horizon: base.Array  # int32
    is_solved: base.Array  # bool
    is_shown: base.Array  # bool, the reactions are observed


class RuleRoomState(NamedTuple):
    task: Task
    num_steps: base.Array  # int32, steps of this trial
    agent: base.Array  # int32, a cell
    hand: base.Array  # int32: an object, INTERMEDIATE or EMPTY
    is_home: base.Array  # bool, [NUM_OBJECTS]: the object lies in its cell
    is_goal: base.Array  # bool


@dataclasses.dataclass(frozen=True)
class RuleRoom(base.Environment[RuleRoomState]):
    """Carry one object to another until a pair makes the goal, which pays 1/horizon from that step on.

    The agent stays or moves a cell in a room without inner walls. Entering an object's cell with an empty hand takes
    the object. With something in the hand, the two react, by rules that only trying tells (but for the kind `visible`):

    - NOTHING: what was in the hand flies home, and the object is in the hand; but an intermediate stays in the hand;
    - VOID, a dead end: both are gone until the trial's end;
    - GOAL: both are gone, and the goal is reached;
    - MIDDLE: both are gone, and an intermediate is in the hand, which makes the goal with one of the other objects;
    - SPOILT, where the goal is reached initially: both are gone, and the goal is lost, also with an empty hand.

    A trial is an episode of `horizon` steps, which ends in truncation; its return is the part of the time with the
    goal. `initial_state` draws the task from a pool, in which it has a number, the same in every pool; `restart` keeps
    it.

    What is observed: the agent's cell, each object's cell (zeros while it is away), whether each lies there, the hand,
    and whether the goal is reached; of the kind `visible` the rules as well, zeros if they are hidden.

    Args:
      kind: a name of `KINDS`; or "mixed" or "solvable", which draw a kind for each task (`MIXTURES`). Agents of mixed
        rooms are tested in solvable ones.
      pool: how many tasks there are; None for 2³¹, "held_out" for those of `HELD_OUT`.
      number: of the one task of the pool that it always is; None to draw it.
    Raises:
      ValueError: if there is no such kind, pool or number.
    """

    kind: str
    pool: int | str | None = None
    number: int | None = None
    num_actions = len(MOVES)
    no_op = 0
    held_out_ids = HELD_OUT

    def __post_init__(self):
        if self.kind not in {**KINDS, **MIXTURES}:
            raise ValueError(f"kind is {self.kind!r}, expected one of {', '.join([*KINDS, *MIXTURES])}")
        is_number = isinstance(self.pool, int) and 1 <= self.pool <= 2**31
        if not (is_number or self.pool in (None, "held_out")):
            raise ValueError(f"pool is {self.pool!r}, expected 1 to 2³¹ tasks, or held_out")
        if self.number is not None and not 0 <= self.number < len(self._pool):
            raise ValueError(f"number is {self.number}, expected that of one of {len(self._pool)} tasks, from 0 on")

    @property
    def observation_shape(self) -> tuple[int, ...]:  # type: ignore[override]
        num_shown = 3 * len(_SHOWN[0]) if self.kind == "visible" else 0
        return ((1 + NUM_OBJECTS) * SIZE**2 + 2 * NUM_OBJECTS + 3 + num_shown,)

    @property
    def horizon(self) -> int:  # type: ignore[override]
        return max(KINDS[name].horizon for name in self.shares)

    @property
    def reward_range(self) -> tuple[float, float]:  # type: ignore[override]
        return 0.0, 1 / min(KINDS[name].horizon for name in self.shares)

    @property
    def shares(self) -> dict[str, float]:
        """The kinds of its tasks, and how probable each is."""
        return MIXTURES.get(self.kind, {self.kind: 1.0})

    @property
    def tested(self) -> "RuleRoom":
        return dataclasses.replace(self, kind="solvable") if self.kind == "mixed" else self

    @property
    def task_ids(self) -> range:
        return self._pool if self.number is None else self._pool[self.number : self.number + 1]

    @property
    def _pool(self) -> range:
        if self.pool == "held_out":
            return HELD_OUT
        return range(2**31 if self.pool is None else int(self.pool))

    def kind_number(self, task_id: base.Array) -> base.Array:
        """Return the place in `shares` of the kind of the task of that number."""
        if len(self.shares) == 1:  # a sum over no numbers, as an index, crashes JAX 0.11 on several CPU devices
            return jnp.zeros((), jnp.int32)
        return jnp.sum(_draws(task_id)[0] >= np.cumsum(list(self.shares.values()))[:-1].astype(np.float32))

    def task(self, task_id: base.Array) -> Task:
        """Return the task of that number, which is below 2³²."""
        _, *uniform = _draws(task_id)
        number = self.kind_number(task_id)
        kind = jax.tree.map(lambda *values: jnp.array(values)[number], *(KINDS[name] for name in self.shares))

        start, *homes = _distinct(uniform[: 1 + NUM_OBJECTS], SIZE**2)
        num_pairs = kind.num_objects * (kind.num_objects - 1) // 2
        pair, *dead_ends = _distinct(uniform[1 + NUM_OBJECTS : 4 + NUM_OBJECTS], num_pairs)
        first, second = jnp.asarray(_FIRST)[pair], jnp.asarray(_SECOND)[pair]
        partner = (uniform[-2] * (kind.num_objects - 2)).astype(jnp.int32)  # of the objects that are not in the pair
        partner += partner >= first
        partner += partner >= second
        spoilt = (uniform[-2] * kind.num_objects).astype(jnp.int32)

        hand, objects = np.arange(NUM_OBJECTS + 2)[:, None], np.arange(NUM_OBJECTS)
        reactions = jnp.where(_PAIRS == pair, kind.makes, NOTHING)
        for i, dead_end in enumerate(dead_ends):
            reactions = jnp.where((_PAIRS == dead_end) & (i < kind.num_dead_ends), VOID, reactions)
        is_last = (kind.makes == MIDDLE) & (hand == INTERMEDIATE) & (objects == partner)
        reactions = jnp.where(is_last, GOAL, reactions)
        return Task(
            homes=jnp.where(objects < kind.num_objects, jnp.stack(homes), ABSENT),
            start=start,
            reactions=jnp.where(kind.is_solved & (objects == spoilt), SPOILT, reactions),
            horizon=kind.horizon,
            is_solved=kind.is_solved,
            is_shown=uniform[-1] < kind.share_shown,
        )

    def begin(self, task: Task) -> RuleRoomState:
        """Return the start of a trial."""
        zero, empty = jnp.zeros((), jnp.int32), jnp.full((), EMPTY, jnp.int32)
        return RuleRoomState(task, zero, task.start, empty, task.homes != ABSENT, task.is_solved)

    def numbered_state(self, task_id: base.Array) -> RuleRoomState:
        return self.begin(self.task(task_id))

    def initial_state(self, key: base.Array) -> RuleRoomState:
        ids = self.task_ids
        return self.numbered_state(np.uint32(ids.start) + jax.random.bits(key) % np.uint32(len(ids)))

    def restart(self, state: RuleRoomState) -> RuleRoomState:
        return self.begin(state.task)

    def transition(self, state: RuleRoomState, action: base.Array):
        task = state.task
        row, column = jnp.clip(jnp.stack(jnp.divmod(state.agent, SIZE)) + jnp.asarray(MOVES)[action], 0, SIZE - 1)
        agent = row * SIZE + column
        entered = state.is_home & (task.homes == agent)
        reaction = jnp.sum(jnp.where(entered, task.reactions[state.hand], 0))
        is_entered = jnp.any(entered)
        stays = (state.hand == INTERMEDIATE) & (reaction == NOTHING)
        goes_home = (jnp.arange(NUM_OBJECTS) == state.hand) & (reaction == NOTHING)
        is_home = jnp.where(is_entered & ~stays, state.is_home & ~entered | goes_home, state.is_home)
        hand = jnp.where(reaction == NOTHING, jnp.argmax(entered), jnp.where(reaction == MIDDLE, INTERMEDIATE, EMPTY))
        hand = jnp.where(is_entered & ~stays, hand, state.hand)
        is_goal = (state.is_goal | (reaction == GOAL)) & (reaction != SPOILT)
        state = RuleRoomState(task, state.num_steps + 1, agent, hand, is_home, is_goal)
        reward = (is_goal / task.horizon).astype(jnp.float32)
        return state, reward, jnp.zeros((), bool), state.num_steps == task.horizon

    def observe(self, state: RuleRoomState) -> base.Array:
        task, cells = state.task, jnp.arange(SIZE**2)
        objects = (task.homes[:, None] == cells) & state.is_home[:, None]
        hand = state.hand == jnp.arange(NUM_OBJECTS + 2)
        parts = [state.agent == cells, objects.ravel(), state.is_home, hand, state.is_goal[None]]
        if self.kind == "visible":
            reactions = jnp.where(task.is_shown, task.reactions[_SHOWN], NOTHING)
            parts.append((reactions[:, None] == jnp.array([VOID, GOAL, MIDDLE])).ravel())
        return jnp.concatenate(parts).astype(jnp.float32)

    def time_left(self, state: RuleRoomState) -> base.Array:
        return 1.0 - state.num_steps / state.task.horizon


def _draws(task_id: base.Array) -> base.Array:
    """All that is random in a task: its kind, and then its layout and rules."""
    key = jax.random.fold_in(jax.random.key(base.TASK_SEED), task_id)
    return jax.random.uniform(key, (NUM_OBJECTS + 7,), jnp.float32)


def _distinct(uniform: list[base.Array], count) -> list[base.Array]:
    """Return distinct numbers below `count`, int32, drawn by as many uniform ones."""
    numbers: list[base.Array] = []
    for i, draw in reversed(list(enumerate(uniform))):
        number = (draw * (count - i)).astype(jnp.int32)  # what follows is of those that are left
        numbers = [number, *(other + (other >= number) for other in numbers)]
    return numbers
