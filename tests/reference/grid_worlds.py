"""The grid worlds again, cell by cell on a dictionary of places; the uniform numbers are the caller's."""

import numpy as np

MOVES = {0: (0, 0), 1: (-1, 0), 2: (1, 0), 3: (0, -1), 4: (0, 1)}  # stay, up, down, left, right


def place(cell: int) -> tuple[int, int]:
    """Return row and column of a cell on the 9 x 9 board, which is numbered with one more cell on each side."""
    return int(cell) // 11 - 1, int(cell) % 11 - 1


class GridWorld:
    def __init__(self, world):
        self.world = world
        self.free = [place(cell) for cell in range(11 * 11) if not world.walls[cell]]

    def draw_places(self, uniform) -> list:
        """Return the places of the start and of three objects: each random one is taken out of those that are left."""
        left, places = list(self.free), []
        for number, cell, is_random in zip(uniform, self.world.cells, self.world.is_random, strict=True):
            drawn = left.pop(int(np.float32(number) * np.float32(len(left))))
            places.append(drawn if is_random else None if cell < 0 else place(cell))
        return places

    def restart(self, uniform) -> None:
        start, *places = self.draw_places(uniform)
        self.agent, self.num_steps = start, 0
        self.objects = {slot: where for slot, where in enumerate(places) if where is not None}

    def step(self, action: int, uniform) -> tuple[float, bool, bool]:
        """Return the reward, and whether the episode terminated or was truncated. `uniform` are 4 + 3 + 1 numbers."""
        world = self.world
        row, column = self.agent[0] + MOVES[action][0], self.agent[1] + MOVES[action][1]
        if (row, column) in self.free:
            self.agent = (row, column)
        reward, terminated = 0.0, False
        for slot, where in list(self.objects.items()):
            if where == self.agent:
                del self.objects[slot]
                reward += world.rewards[slot]
                terminated |= bool(uniform[7] < world.termination[slot])
        for slot, where in enumerate(self.draw_places(uniform[:4])[1:]):
            if where is None or slot in self.objects or uniform[4 + slot] >= world.respawn[slot]:
                continue
            if where != self.agent and where not in self.objects.values():
                self.objects[slot] = where
        self.num_steps += 1
        return reward, terminated, self.num_steps == world.horizon

    def observation(self) -> np.ndarray:
        planes = np.zeros((5, 9, 9), np.float32)
        planes[0][self.agent] = 1
        planes[1] = 1
        for where in self.free:
            planes[1][where] = 0
        for slot, where in self.objects.items():
            planes[2 + slot][where] = 1
        return planes
