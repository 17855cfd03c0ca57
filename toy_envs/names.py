"""The toys by name: catch, catch/<rows>x<columns>, random_walk, grid_world/<0-56>, bandit/<arms>, two_colours,
discounting_chain, discounting_chain/<best chain, 0-4>, rule_room/<kind>.

A pool of tasks may follow a kind of rule room: rule_room/<kind>/<tasks>, rule_room/<kind>/held_out; and a pool the
number of the one task of it that the room always is: rule_room/<kind>/held_out/0.
"""

import re
from collections.abc import Callable

from toy_envs.bandit import Bandit
from toy_envs.base import Environment
from toy_envs.catch import Catch
from toy_envs.discounting_chain import DiscountingChain
from toy_envs.grid_worlds import NUM_WORLDS, GridWorld
from toy_envs.random_walk import RandomWalk
from toy_envs.rule_room import KINDS, MIXTURES, RuleRoom
from toy_envs.two_colours import TwoColours

_ROOMS = (*KINDS, *MIXTURES)
_KINDS = "|".join(_ROOMS)
# Patterns of names, and functions that make the environment from what is variable in a name, or raise a ValueError.
TOYS: dict[str, Callable[..., Environment]] = {
    r"catch": Catch,
    r"catch/(\d{1,3})x(\d{1,3})": Catch,
    r"random_walk": RandomWalk,
    r"grid_world/(\d{1,3})": GridWorld,
    r"bandit/(\d{1,3})": Bandit,
    r"two_colours": TwoColours,
    r"discounting_chain": DiscountingChain,
    r"discounting_chain/(\d)": DiscountingChain,
    rf"rule_room/({_KINDS})": RuleRoom,
    rf"rule_room/({_KINDS})/(\d{{1,10}}|held_out)": RuleRoom,
    rf"rule_room/({_KINDS})/(\d{{1,10}}|held_out)/(\d{{1,10}})": RuleRoom,
}


def examples() -> list[str]:
    """Return names of toys, for hints."""
    plain = [name for name in TOYS if name == re.escape(name)]
    rooms = [f"rule_room/{kind}{pool}" for kind in _ROOMS for pool in ("", "/4096", "/held_out", "/held_out/0")]
    return [*plain, "catch/8x8", *(f"grid_world/{index}" for index in range(NUM_WORLDS)), "bandit/2", *rooms]


def make(name: str) -> Environment | None:
    """Make the toy of that name; None if it has the form of none.

    Raises:
      ValueError: if a number in the name is out of range.
    """
    for pattern, make_toy in TOYS.items():
        if match := re.fullmatch(pattern, name):
            try:
                return make_toy(*(int(part) if part.isdigit() else part for part in match.groups()))
            except ValueError as error:
                raise ValueError(f"toy/{name}: {error}") from None
    return None
