"""Rule rooms for a person: what they look like, and what may be their rules for who has seen as much as the agent."""

import numpy as np
from matplotlib.colors import to_rgb

from experiments.results.plots import COLOURS
from toy_envs.rule_room import EMPTY, GOAL, KINDS, MIDDLE, MOVES, NUM_OBJECTS, SIZE, RuleRoom, RuleRoomState
from toy_envs.rule_room_optimum import possible_reactions

CELL = 9  # pixels
# The pairs of objects A, B, C and D by their names in a film: those of the first objects come first.
PAIRS = {"ABCD"[i] + "ABCD"[j]: (i, j) for j in range(NUM_OBJECTS) for i in range(j)}
_OBJECTS = np.array([*map(to_rgb, COLOURS[1 : 1 + NUM_OBJECTS]), to_rgb("0.5"), (1, 1, 1)])  # by what is in the hand


def pictures(states: RuleRoomState) -> np.ndarray:
    """Draw the rooms of states [N], [N, H, W, 3] from 0 to 1.

    Objects are squares: A is orange, B green, C pink, and D yellow. The agent is a black frame around what it has in
    its hand, grey for the intermediate. The border is green where the goal is reached.
    """
    size = SIZE * CELL + SIZE + 1
    images = np.full((len(states.agent), size, size, 3), 0.9)

    def fill(image, cell, colour, margin):
        row, column = (1 + part * (CELL + 1) for part in divmod(int(cell), SIZE))
        image[row + margin : row + CELL - margin, column + margin : column + CELL - margin] = colour

    for n, image in enumerate(images):
        if states.is_goal[n]:
            image[:] = to_rgb(COLOURS[2])
            image[1:-1, 1:-1] = 0.9
        for cell in range(SIZE**2):
            fill(image, cell, 1.0, 0)
        for number in np.flatnonzero(states.is_home[n]):
            fill(image, states.task.homes[n][number], _OBJECTS[number], 1)
        fill(image, states.agent[n], 0.0, 2)
        fill(image, states.agent[n], _OBJECTS[states.hand[n]], 3)
    return images


def beliefs(room: RuleRoom, states: RuleRoomState, actions: np.ndarray) -> dict[str, np.ndarray]:
    """Return how probable it is that each pair of objects reacts to the goal (of chains, to the intermediate), [T].

    For who knows the kind of room, and of its rules what came of the actions [T] before, in states [T] that are all of
    one episode: what the explorer of `rule_room_optimum` believes. Nothing of kinds without such a pair.
    """
    if room.kind == "mixed" or KINDS[room.kind].makes not in (GOAL, MIDDLE):
        return {}
    kind = KINDS[room.kind]
    tables = possible_reactions(kind)
    is_possible, shares = np.ones(len(tables), bool), []
    pairs = {name: pair for name, pair in PAIRS.items() if max(pair) < kind.num_objects}
    for t, action in enumerate(actions):
        shares.append([np.mean(tables[is_possible][:, i, j] == kind.makes) for i, j in pairs.values()])
        row, column = np.clip(np.array(divmod(int(states.agent[t]), SIZE)) + MOVES[action], 0, SIZE - 1)
        hand, cell = states.hand[t], row * SIZE + column
        for entered in np.flatnonzero(states.is_home[t] & (states.task.homes[t] == cell)):
            if hand != EMPTY:
                is_possible &= tables[:, hand, entered] == states.task.reactions[t][hand, entered]
    return dict(zip(pairs, np.array(shares).T, strict=True))
