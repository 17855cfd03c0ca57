"""The best returns in rule rooms, exact, by dynamic programming over what may still be the rules.

What an explorer knows is the layout, and which tables of rules agree with all that came of its trials: each is as
likely as the others. It plans over journeys to the next object, by the shortest path past the others: the steps between
tell nothing and change nothing, and to be later is never better.

What may be known and held at which object does not depend on the layout: it is a graph, and all layouts are computed at
once, from the last step of a trial to the first.
"""

import functools
import itertools
from collections.abc import Hashable, Iterable
from typing import NamedTuple

import numpy as np

from toy_envs.rule_room import (
    ABSENT,
    EMPTY,
    GOAL,
    INTERMEDIATE,
    MIDDLE,
    MOVES,
    NOTHING,
    NUM_OBJECTS,
    SIZE,
    VOID,
    Kind,
    Task,
)

NUM_AT_ONCE = 800_000  # situations of layouts that are computed at once, at a time of a trial, for all trials
FAR = 10**6  # steps to what cannot be reached


def possible_reactions(kind: Kind) -> np.ndarray:
    """Return the tables of rules that tasks of a kind can have, all as likely, as `Task.reactions`: [num, ...].

    Raises:
      ValueError: if no pair of its objects leads to the goal.
    """
    if kind.makes == NOTHING:
        raise ValueError("kind makes NOTHING, expected GOAL or MIDDLE")
    pairs = list(itertools.combinations(range(kind.num_objects), 2))
    tables = []
    for pair in pairs:
        others = itertools.combinations([other for other in pairs if other != pair], kind.num_dead_ends)
        partners = set(range(kind.num_objects)) - set(pair) if kind.makes == MIDDLE else [None]
        for dead_ends, partner in itertools.product(others, partners):
            table = np.full((NUM_OBJECTS + 2, NUM_OBJECTS), NOTHING)
            for (i, j), reaction in [(pair, kind.makes), *((dead_end, VOID) for dead_end in dead_ends)]:
                table[i, j] = table[j, i] = reaction
            if partner is not None:
                table[INTERMEDIATE, partner] = GOAL
            tables.append(table)
    return np.array(tables)


def parted(keys: Iterable[Hashable]) -> Iterable[list[int]]:
    """Return the places of equal keys, of each key in turn."""
    parts: dict[Hashable, list[int]] = {}
    for i, key in enumerate(keys):
        parts.setdefault(key, []).append(i)
    return parts.values()


def oracle_returns(tasks: Task) -> np.ndarray:
    """Return the best return of a trial of each task, [num_tasks, ...], for who knows its rules, [num_tasks]."""
    found = np.empty(len(tasks.start))
    for rows in parted(table.tobytes() for table in tasks.reactions):
        of = Task(*(x[rows] for x in tasks))
        found[rows] = best_returns(of, np.asarray(of.reactions[:1]), num_trials=1)[:, 0]
    return found


def best_returns(tasks: Task, reactions: np.ndarray, num_trials: int) -> np.ndarray:
    """Return the expected return of each trial of the explorer whose sum over all trials is best, [L, num_trials].

    With one trial it is the optimum without memory across trials. Of a room that is solved the best is to stay.

    Args:
      tasks: layouts, [L, ...]; their own rules do not matter.
      reactions: tables of rules that are possible, all as likely (`possible_reactions`), [num, ...].
      num_trials: in an episode.
    """
    found = np.ones((len(tasks.start), num_trials))
    homes = [tuple(int(home) for home in own if home != ABSENT) for own in tasks.homes]
    kinds = zip(map(len, homes), tasks.horizon.tolist(), tasks.is_solved.tolist(), strict=True)
    for rows in parted(kinds):
        num, horizon = len(homes[rows[0]]), int(tasks.horizon[rows[0]])
        if tasks.is_solved[rows[0]]:
            continue
        graph = _graph(np.asarray(reactions), num)
        num_at_once = max(1, NUM_AT_ONCE // (len(graph.place) * num_trials))
        for first in range(0, len(rows), num_at_once):
            part = rows[first : first + num_at_once]
            steps = np.stack([_steps(int(tasks.start[i]), homes[i]) for i in part])
            found[part] = _of_layouts(graph, steps, horizon, num_trials)
    return found


@functools.lru_cache(4096)
def _steps(start: int, homes: tuple[int, ...]) -> np.ndarray:
    """Return how many steps objects are away by paths past the others: [from an object or the start, home, object].

    `home` has a bit for each object that is in its own cell. What cannot be reached is FAR steps away.
    """
    num = len(homes)
    steps = np.full((num + 1, 2**num, num), FAR)
    for (place, cell), home in itertools.product(enumerate((*homes, start)), range(2**num)):
        lies = {homes[y]: y for y in range(num) if home >> y & 1}
        distances, queue = {cell: 0}, [cell]
        for at in queue:
            if at == cell or at not in lies:
                for down, right in MOVES[1:].tolist():
                    row, column = at // SIZE + down, at % SIZE + right
                    neighbour = row * SIZE + column
                    if 0 <= row < SIZE and 0 <= column < SIZE and neighbour not in distances:
                        distances[neighbour] = distances[at] + 1
                        queue.append(neighbour)
        for at, y in lies.items():
            if at != cell and at in distances:
                steps[place, home, y] = distances[at]
    return steps


class _Graph(NamedTuple):
    """What an explorer may know, hold, and stand at: N situations, the first that of the beginning.

    Attributes:
      place, home: an object, or their number where a trial begins; a bit for each object in its own cell; [N].
      begins: the situation at the beginning of the next trial, [N].
      after, probability, pays: of each next object and outcome: situation, probability, whether it is the goal;
        [N, objects, outcomes], with probability 0 where there are fewer.
    """

    place: np.ndarray
    home: np.ndarray
    begins: np.ndarray
    after: np.ndarray
    probability: np.ndarray
    pays: np.ndarray


def _graph(reactions: np.ndarray, num: int) -> _Graph:
    # A belief has a bit for each table that may be so, and so has each outcome of what is in the hand and an object.
    bits = lambda is_so: sum(1 << int(table) for table in np.flatnonzero(is_so))
    outcomes = {
        (hand, y): [(int(reaction), bits(column == reaction)) for reaction in np.unique(column)]
        for hand, row in enumerate(np.moveaxis(reactions, 0, -1))
        for y, column in enumerate(row)
    }
    number: dict[tuple[int, int, int, int], int] = {}  # of a belief, a place, what is in the hand, and home
    queue: list[tuple[int, int, int, int]] = []

    def known(belief: int, place: int = num, hand: int = EMPTY, home: int = 2**num - 1) -> int:
        if (situation := (belief, place, hand, home)) not in number:
            number[situation] = len(queue)
            queue.append(situation)
        return number[situation]

    known(2 ** len(reactions) - 1)
    begins, edges = [], []
    for i, (belief, place, hand, home) in enumerate(queue):
        begins.append(known(belief))
        for y in (y for y in range(num) if home >> y & 1 and y != place):
            without = home & ~(1 << y)
            possible = ((reaction, belief & tables) for reaction, tables in outcomes[hand, y] if belief & tables)
            for k, (reaction, left) in enumerate(possible):
                if reaction != NOTHING:
                    after = known(left, y, INTERMEDIATE if reaction == MIDDLE else EMPTY, without)
                elif hand == INTERMEDIATE:
                    after = known(left, y, hand, home)
                else:
                    after = known(left, y, y, without | (1 << hand if hand != EMPTY else 0))
                edges.append((i, y, k, after, left.bit_count() / belief.bit_count(), reaction == GOAL))
    *at, follows, shares, is_goal = (np.array(x) for x in zip(*edges, strict=True))
    shape = (len(queue), num, 1 + int(at[2].max()))
    graph = _Graph(
        place=np.array([situation[1] for situation in queue]),
        home=np.array([situation[3] for situation in queue]),
        begins=np.array(begins),
        after=np.zeros(shape, int),
        probability=np.zeros(shape),
        pays=np.zeros(shape, bool),
    )
    for array, values in zip(graph[3:], (follows, shares, is_goal), strict=True):
        array[tuple(at)] = values
    return graph


def _of_layouts(graph: _Graph, steps: np.ndarray, horizon: int, num_trials: int) -> np.ndarray:
    """Return what `best_returns` does, of layouts with these steps, [L, objects + 1, 2 ** objects, objects]."""
    num_layouts, num, size = len(steps), graph.after.shape[1], len(graph.place)
    goal = np.sum(graph.probability * graph.pays, axis=2)
    journeys = []  # of each object: whence, and at time 0 what a goal pays and the flat places of what comes of it
    for y in range(num):
        of = np.flatnonzero(graph.probability[:, y, 0] > 0)
        away = np.minimum(steps[:, graph.place[of], graph.home[of], y].T, horizon + 1)
        pay = goal[of, y, None] * (horizon - away + 1) / horizon
        flat = [
            (away * size + graph.after[of, y, k, None]) * num_layouts + np.arange(num_layouts)
            for k in range(graph.after.shape[2])
        ]
        journeys.append((of, pay, flat))
    choices = np.full((num_trials + 1, horizon + 1, size, num_layouts), -1, np.int8)
    values = np.zeros((2 * horizon + 2, size, num_layouts))  # past the horizon 0, as nothing pays
    for left in range(1, num_trials + 1):
        wait = values[0][graph.begins] if left > 1 else np.zeros((size, num_layouts))
        for time in range(horizon, -1, -1):
            best, later = wait.copy(), values[time:].reshape(-1)
            for y, (of, pay, flat) in enumerate(journeys):
                total = pay - goal[of, y, None] * time / horizon
                for k, places in enumerate(flat):
                    total += graph.probability[of, y, k, None] * later[places]
                is_better = total > best[of] + 1e-9
                best[of] = np.where(is_better, total, best[of])
                choices[left, time, of] = np.where(is_better, y, choices[left, time, of])
            values[time] = best

    found = np.zeros((num_layouts, num_trials))
    for layout in range(num_layouts):

        @functools.cache
        def returns(left: int, time: int, at: int, layout: int = layout) -> np.ndarray:
            """Return what the plan earns from here in this trial and in each that follows, [left]."""
            if (y := choices[left, time, at, layout]) < 0:
                return np.append(0.0, returns(left - 1, 0, int(graph.begins[at])) if left > 1 else [])
            arrival, total = time + int(steps[layout, graph.place[at], graph.home[at], y]), np.zeros(left)
            for after, probability in zip(graph.after[at, y].tolist(), graph.probability[at, y].tolist(), strict=True):
                if probability:
                    total += probability * returns(left, arrival, after)
            total[0] += goal[at, y] * (horizon - arrival + 1) / horizon
            return total

        found[layout] = returns(num_trials, 0, 0)
    return found
