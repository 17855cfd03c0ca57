"""The best returns in rule rooms, exact, by dynamic programming over what may still be the rules.

What an explorer knows is the layout, and which tables of rules agree with all that came of its trials: each is as
likely as the others. It plans over journeys to the next object, by the shortest path past the others: the steps between
tell nothing and change nothing, and to be later is never better.
"""

import functools
import itertools

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

# The time, the agent's cell, what is in its hand, and a bit for each object that is in its own cell.
_Situation = tuple[int, int, int, int]


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


def oracle_return(task: Task) -> float:
    """Return the best return of a trial for who knows the rules."""
    return float(best_returns(task, np.asarray(task.reactions)[None], num_trials=1)[0])


def best_returns(task: Task, reactions: np.ndarray, num_trials: int) -> np.ndarray:
    """Return the expected return of each trial of the explorer whose sum over all trials is best, [num_trials].

    With one trial it is the optimum without memory across trials. Of a room that is solved the best is to stay.

    Args:
      task: its layout and horizon; its own rules do not matter.
      reactions: tables of rules that are possible, all as likely (`possible_reactions`), [num, ...].
      num_trials: in an episode.
    """
    if task.is_solved:
        return np.ones(num_trials)
    homes, horizon = [int(home) for home in task.homes if home != ABSENT], int(task.horizon)
    start: _Situation = (0, int(task.start), EMPTY, 2 ** len(homes) - 1)
    # A belief has a bit for each table that may be so, and so has each outcome of what is in the hand and an object.
    bits = lambda is_so: sum(1 << int(table) for table in np.flatnonzero(is_so))
    outcomes = {
        (hand, y): [(int(reaction), bits(column == reaction)) for reaction in np.unique(column)]
        for hand, row in enumerate(np.moveaxis(reactions, 0, -1))
        for y, column in enumerate(row)
    }

    @functools.cache
    def journeys(cell: int, home: int) -> list[tuple[int, int]]:
        """Return the objects within reach and how many steps they are away."""
        lies = {homes[y]: y for y in range(len(homes)) if home >> y & 1}
        distances, queue = {cell: 0}, [cell]
        for place in queue:
            if place == cell or place not in lies:
                for down, right in MOVES[1:].tolist():
                    row, column = place // SIZE + down, place % SIZE + right
                    neighbour = row * SIZE + column
                    if 0 <= row < SIZE and 0 <= column < SIZE and neighbour not in distances:
                        distances[neighbour] = distances[place] + 1
                        queue.append(neighbour)
        return [(y, distances[place]) for place, y in lies.items() if place != cell and place in distances]

    def branches(belief: int, situation: _Situation, y: int, arrival: int):
        """Yield what may come of a journey: its probability, what is then believed, the return, and the situation."""
        _, _, hand, home = situation
        without = home & ~(1 << y)
        for reaction, tables in outcomes[hand, y]:
            if left := belief & tables:
                pay = (horizon - arrival + 1) / horizon if reaction == GOAL else 0.0
                if reaction != NOTHING:
                    after = (INTERMEDIATE if reaction == MIDDLE else EMPTY), without
                elif hand == INTERMEDIATE:
                    after = hand, home
                else:
                    after = y, without | (1 << hand if hand != EMPTY else 0)
                yield left.bit_count() / belief.bit_count(), left, pay, (arrival, homes[y], *after)

    @functools.cache
    def plan(belief: int, num_left: int, situation: _Situation) -> tuple[float, tuple[int, int] | None]:
        """Return the best sum of returns from here, and the next object with the time of arrival; None is to wait."""
        best, choice = (plan(belief, num_left - 1, start)[0] if num_left > 1 else 0.0), None
        time, cell, _, home = situation
        for y, distance in journeys(cell, home):
            if time + distance <= horizon:
                total = 0.0
                for probability, left, pay, after in branches(belief, situation, y, time + distance):
                    total += probability * (pay + plan(left, num_left, after)[0])
                if total > best + 1e-9:
                    best, choice = total, (y, time + distance)
        return best, choice

    @functools.cache
    def returns(belief: int, num_left: int, situation: _Situation) -> np.ndarray:
        """Return what the plan earns from here in this trial and in each that follows, [num_left]."""
        _, choice = plan(belief, num_left, situation)
        if choice is None:
            return np.append(0.0, returns(belief, num_left - 1, start) if num_left > 1 else [])
        total = np.zeros(num_left)
        for probability, left, pay, after in branches(belief, situation, *choice):
            total += probability * returns(left, num_left, after)
            total[0] += probability * pay
        return total

    return returns(2 ** len(reactions) - 1, num_trials, start)
