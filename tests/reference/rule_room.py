"""The rule room as a plain loop, and its best explorer by dynamic programming over single steps."""

import functools

SIZE = 4
MOVES = ((0, 0), (-1, 0), (1, 0), (0, -1), (0, 1))  # stay, up, down, left, right


def begin(homes, start, is_goal=False):
    """Return a trial's first state: the agent's place, what is in the hand, the objects at home, and the goal."""
    return start, "empty", frozenset(range(len(homes))), is_goal


def step(homes, reactions, state, action):
    """Return the next state; `reactions` names what comes of a thing in the hand and an object, "nothing" if absent."""
    (row, column), hand, home, is_goal = state
    down, right = MOVES[action]
    if 0 <= row + down < SIZE and 0 <= column + right < SIZE:
        row, column = row + down, column + right
    for entered in home:
        if homes[entered] == (row, column):
            reaction = reactions.get((hand, entered), "nothing")
            if reaction == "nothing":
                if hand != "intermediate":
                    home = home - {entered} | (set() if hand == "empty" else {hand})
                    hand = entered
                break
            home = home - {entered}
            hand = "intermediate" if reaction == "middle" else "empty"
            if reaction == "goal":
                is_goal = True
            if reaction == "spoilt":
                is_goal = False
            break
    return (row, column), hand, frozenset(home), is_goal


def best_return(homes, start, horizon, all_reactions, num_trials) -> float:
    """Return the best expected sum of returns, where any of the reactions may be so, and all but them is seen."""

    @functools.cache
    def value(belief, num_left, time, state):
        if time == horizon:
            return value(belief, num_left - 1, 0, begin(homes, start)) if num_left > 1 else 0.0
        values = []
        for action in range(len(MOVES)):
            groups = {}
            for index in belief:
                groups.setdefault(step(homes, all_reactions[index], state, action), []).append(index)
            total = 0.0
            for after, group in groups.items():
                reward = after[-1] / horizon
                total += len(group) / len(belief) * (reward + value(tuple(group), num_left, time + 1, after))
            values.append(total)
        return max(values)

    return value(tuple(range(len(all_reactions))), num_trials, 0, begin(homes, start))
