"""The toys by name: catch, catch/<rows>x<columns>, random_walk, grid_world/<0-56>."""

import re
from collections.abc import Callable

from toy_envs.base import Environment
from toy_envs.catch import Catch
from toy_envs.grid_worlds import NUM_WORLDS, GridWorld
from toy_envs.random_walk import RandomWalk

# Patterns of names, and functions that make the environment from the numbers in a name, or raise a ValueError.
TOYS: dict[str, Callable[..., Environment]] = {
    r"catch": Catch,
    r"catch/(\d{1,3})x(\d{1,3})": Catch,
    r"random_walk": RandomWalk,
    r"grid_world/(\d{1,3})": GridWorld,
}


def examples() -> list[str]:
    """Return names of toys, for hints."""
    plain = [name for name in TOYS if name == re.escape(name)]
    return [*plain, "catch/8x8", *(f"grid_world/{index}" for index in range(NUM_WORLDS))]


def make(name: str) -> Environment | None:
    """Make the toy of that name; None if there is none."""
    for pattern, make_toy in TOYS.items():
        if match := re.fullmatch(pattern, name):
            try:
                return make_toy(*map(int, match.groups()))
            except ValueError:
                return None
    return None
