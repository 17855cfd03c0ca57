"""How a comparison is fair: budgets by family, one grid for all rules, settings chosen elsewhere than they are judged.

docs/concepts/fair_comparison.md says why.
"""

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from agents.environments.names import unscaled
from agents.validation import did_you_mean
from experiments.runs import command_line
from frodo.runs.errors import UsageError

ALL = "all"  # environments


class Family(NamedTuple):
    """Environments of one kind: what belongs to it, and the environment steps of each agent by default."""

    has: Callable[[str], bool]
    budget: int


FAMILIES = {
    "changing": Family(lambda env: env.startswith("changing/"), 1_000_000),
    "catch": Family(lambda env: env.startswith(("toy/catch", "bsuite/catch/")), 200_000),
    "grid_worlds": Family(lambda env: env.startswith("toy/grid_world/"), 200_000),
    "rooms": Family(lambda env: env.startswith("toy/rule_room/"), 200_000),
    "minatar": Family(lambda env: env.endswith("-MinAtar"), 1_000_000),
    "atari": Family(lambda env: env.startswith("atari/"), 2_000_000),
    "control": Family(lambda env: True, 500_000),
}


def family(env: str) -> str:
    """Return the name of the family that an environment is of, at any scale of its rewards."""
    _, plain = unscaled(env)
    return next(name for name, one in FAMILIES.items() if one.has(plain))


def groups_of(envs: Sequence[str]) -> dict[str, list[int]]:
    """Return for each family of environments, if there are several, and for all of them, which they are."""
    families = [family(env) for env in envs]
    groups = {name: [i for i, own in enumerate(families) if own == name] for name in dict.fromkeys(families)}
    return (groups if len(groups) > 1 else {}) | {ALL: list(range(len(families)))}


class Point(NamedTuple):
    """One setting of a rule's agent: a point of the grid.

    Attributes:
      learning_rate: of the agent.
      entropy_cost: of its policy's loss, None where the rule has no such term.
      batch: environments and steps of a trajectory.
    """

    learning_rate: float
    entropy_cost: float | None
    batch: tuple[int, int]

    @property
    def program(self) -> "Program":
        return Program(self.entropy_cost, self.batch)

    def __str__(self) -> str:
        return f"rate {self.learning_rate:g}, {self.program}"


class Program(NamedTuple):
    """What the points that differ in the learning rate alone share: one compiled program."""

    entropy_cost: float | None
    batch: tuple[int, int]

    def __str__(self) -> str:
        text = "" if self.entropy_cost is None else f"entropy {self.entropy_cost:g}, "
        return f"{text}{self.batch[0]} × {self.batch[1]}"

    @property
    def folder(self) -> str:
        text = "" if self.entropy_cost is None else f"entropy_{self.entropy_cost:g}_"
        return f"{text}batch_{self.batch[0]}x{self.batch[1]}"


@dataclasses.dataclass(frozen=True)
class Grid:
    """The settings that every rule may choose from."""

    learning_rates: tuple[float, ...] = (1e-3, 3e-3, 1e-2)
    entropy_costs: tuple[float, ...] = (0.01, 0.1, 1.0)
    batches: tuple[tuple[int, int], ...] = ((16, 16), (64, 32))

    def validate(self) -> None:
        """Raise a UsageError where a value is twice there, or is none."""
        for name, values in vars(self).items():
            texts = ["{}x{}".format(*x) if isinstance(x, tuple) else f"{x:g}" for x in values]
            given = f"--{name}={','.join(texts)}"
            if not values:
                raise UsageError(f"{given}: give at least one value")
            if repeated := [text for text in texts if texts.count(text) > 1]:
                raise UsageError(f"{given}: {repeated[0]} is given more than once; give it once")
            may_be_none = name == "entropy_costs"
            if not all(x < 3.4e38 and (x > 0 or (x == 0 and may_be_none)) for x in np.ravel(values).tolist()):
                raise UsageError(f"{given}: give positive numbers")

    def programs(self, has_entropy: bool) -> list[Program]:
        costs = self.entropy_costs if has_entropy else (None,)
        return [Program(cost, batch) for cost in costs for batch in self.batches]

    def edges(self, point: Point) -> list[str]:
        """Say which numbers of a point are the largest or the smallest of three or more."""
        axes = ("rate", point.learning_rate, self.learning_rates), ("entropy", point.entropy_cost, self.entropy_costs)
        return [name for name, x, values in axes if len(values) > 2 and x in (min(values), max(values))]


Scores = Mapping[tuple[str, Point], float]  # of one rule: environment and point -> mean normalised score


def choose(scores: Scores, env: str, is_discovered: bool) -> Point:
    """Return the setting that a rule is shown with in an environment: the best by the tuning runs.

    Args:
      scores: of the tuning runs; nan where no episode ended: a point with fewer of these is better than any with more.
      is_discovered: then the environment itself does not count, but the others of its family, or if there are none
        all others: leave one out.
    """
    if not is_discovered:
        return _best(scores, {env})
    others = {name for name, _ in scores} - {env}
    return _best(scores, {name for name in others if family(name) == family(env)} or others)


def choose_one(scores: Scores) -> Point:
    """Return the one setting for all environments."""
    return _best(scores, {name for name, _ in scores})


def _best(scores: Scores, envs: Iterable[str]) -> Point:
    points = list(dict.fromkeys(point for _, point in scores))
    of_point = {point: [scores[env, point] for env in sorted(envs)] for point in points}

    def rank(point: Point) -> tuple[int, float]:
        own = [score for score in of_point[point] if not math.isnan(score)]
        return len(own), float(np.mean(own)) if own else 0.0

    return max(points, key=rank)


def parse_grid(learning_rates: Sequence[str], entropy_costs: Sequence[str], batches: str) -> Grid:
    """Return the grid of numbers, and of batches, environments x steps of a trajectory, as in "16x16,64x32"."""
    numbers = {}
    for flag, texts in (("learning_rates", learning_rates), ("entropy_costs", entropy_costs)):
        try:
            numbers[flag] = tuple(map(float, texts))
        except ValueError:
            raise UsageError(f"--{flag}={','.join(texts)}: give numbers, such as 0.001,0.01") from None
    pairs = parse_pairs(batches, "batches", "environments x steps of trajectories, such as 16x16,64x32")
    return Grid(**numbers, batches=pairs)


def parse_replay(text: str) -> tuple[int, int] | None:
    """Return trajectories that are kept and those of an update, as in "1024x64"; None for ""."""
    if not text:
        return None
    what = "trajectories kept x those of an update, such as 1024x64"
    (pair, *others) = parse_pairs(text, "replay", what)
    if others or not all(pair):
        raise UsageError(f"--replay={text}: give {what}")
    return pair


def parse_pairs(text: str, flag: str, what: str) -> tuple[tuple[int, int], ...]:
    """Return the pairs of "16x16,64x32"."""
    pairs = [re.fullmatch(r"(\d+)x(\d+)", part) for part in text.split(",")]
    found = tuple((int(pair[1]), int(pair[2])) for pair in pairs if pair)
    if len(found) < len(pairs):
        raise UsageError(f"--{flag}={text}: give {what}")
    return found


def parse_budgets(text: str) -> dict[str, int]:
    """Return the environment steps of each family: the defaults, but for those of "minatar=5e6,catch=1e5"."""
    budgets = {name: one.budget for name, one in FAMILIES.items()}
    for part in text.split(",") if text else []:
        name, _, steps = part.partition("=")
        if name not in FAMILIES:
            hint = did_you_mean(name, FAMILIES) or f": give some of {', '.join(FAMILIES)}"
            raise UsageError(f"--budgets={text}: {name!r} is no family{hint}")
        budgets[name] = command_line.parse_steps(steps, "budgets")
    return budgets
