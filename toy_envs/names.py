"""The toys by name: catch, catch/<rows>x<columns>, random_walk, grid_world/<0-56>."""

import re

from toy_envs.base import Environment
from toy_envs.catch import Catch
from toy_envs.grid_worlds import NUM_WORLDS, GridWorld
from toy_envs.random_walk import RandomWalk

EXAMPLES = ("catch", "catch/8x8", "random_walk", *(f"grid_world/{index}" for index in range(NUM_WORLDS)))


def make(name: str) -> Environment | None:
    """Make the toy of that name; None if there is none."""
    if match := re.fullmatch(r"catch(?:/(\d{1,3})x(\d{1,3}))?", name):
        rows, columns = (int(size) for size in match.groups()) if match[1] else (6, 11)
        return Catch(rows, columns) if rows > 1 and columns > 0 else None
    if match := re.fullmatch(r"grid_world/(\d{1,3})", name):
        return GridWorld(int(match[1])) if int(match[1]) < NUM_WORLDS else None
    return RandomWalk() if name == "random_walk" else None
