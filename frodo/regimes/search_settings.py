"""The settings of a search for programs, and what is searched for."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Annotated, NamedTuple

import numpy as np

from agents.networks.agent import NetworkConfig
from agents.settings import Count, CountOrZero, Fraction, OneOf, Settings
from agents.validation import check_numbers, is_whole
from frodo.settings.config import AgentConfig
from frodo.settings.registry import RuleConfig, with_prefix
from meta.programs.equivalence import EQUIVALENCES, of_loss, of_target
from meta.programs.lanes import LaneConfig
from meta.programs.language import FORMULAS, LOSSES, TARGETS, Language, Program, parse_setting
from meta.programs.targets import FORMULAS as OF_TARGETS
from meta.programs.targets import TargetProgramConfig
from meta.updates.optimizers import OptimizerConfig

MAX_SEEDS = 2**16  # of programs: the draws of a task, before those of the next one
SEEDS_OF_FINALISTS = 1000  # the first of their seeds: those of `experiments.score` are other ones
LENGTHS = ("num_episodes", "max_steps", "exploration")  # settings of a lane that may differ between environments


@dataclasses.dataclass
class TargetLaneConfig:
    """How an actor-critic learns by a program; the defaults are a point of the grid of `experiments.compare`.

    Attributes:
      hidden: Units of the layers of the network, at least 1 each.
      learning_rate: Learning rate of Adam, annealed to 0 over the lifetime, positive.
      entropy_cost: Weight of the policy's entropy, at least 0.
      discount: γ, from 0 to 1.
      batch_size: Environments side by side, at least 1.
      unroll: Steps of a trajectory, at least 1.
      budget: Environment steps of a lifetime, at least those of an update.
    """

    hidden: tuple[int, ...] = (64, 64)
    learning_rate: float = 3e-3
    entropy_cost: float = 0.03
    discount: float = 0.99
    batch_size: int = 16
    unroll: int = 16
    budget: int = 102_400

    def validate(self) -> None:
        """Raise a ValueError that names the first bad setting, its value and what was expected."""
        config = self.agent()
        config.validate()
        if self.budget < (least := config.num_env_steps(is_meta=False)):
            raise ValueError(f"budget is {self.budget}, expected at least the {least} steps of an update")

    def agent(self, formula: str = "") -> AgentConfig:
        """Return the settings of an agent that learns by a formula, "" by one that is data."""
        own = {"formula": formula} if formula else {"is_data": True}
        rule = TargetProgramConfig(discount=self.discount, entropy_cost=self.entropy_cost, **own)  # type: ignore[arg-type]
        return AgentConfig(
            batch_size=self.batch_size,
            unroll=self.unroll,
            validation_unroll=self.unroll,
            num_updates=1,
            is_acting_interleaved=True,
            gradient_mode="reverse",
            annealing=self.budget,
            rule=RuleConfig("target_program", rule),
            network=NetworkConfig("mlp", self.hidden, head_stddev=0.01),
            optimizer=OptimizerConfig(self.learning_rate, 0.999, 1e-5, max_gradient_norm=0.5, name="adam"),
        )


class Kind(NamedTuple):
    """What is searched for.

    Attributes:
      language: of the programs.
      formulas: known programs by name.
      fingerprints: compact program, what a loss is told of ends by -> what distinguishes it
        (`meta.programs.equivalence`).
      nothing: a program by which nothing is learned.
    """

    language: Language
    formulas: Mapping[str, str]
    fingerprints: Callable[[Program, str], dict[str, np.ndarray]]
    nothing: str


KINDS = {
    "losses": Kind(LOSSES, FORMULAS, of_loss, "r + gamma"),
    "targets": Kind(TARGETS, OF_TARGETS, of_target, "v + 0 * r"),
}


@dataclasses.dataclass
class EvolutionConfig(Settings):
    """A search of programs.

    Attributes:
      language: What is searched: 'losses' of value-based agents, or 'targets' of actor-critics.
      population_size: Members of the population, at least 1 (Co-Reyes et al. 2021, section 4.1).
      tournament_size: Members drawn at a time, whose best is varied, at least 1 (Co-Reyes et al. 2021, section 4.1).
      mutation_share: Share of proposals that are varied, from 0 to 1; the others are new random programs (Co-Reyes et
        al. 2021, section 4.1).
      start: A formula, or the name of one, that all first programs begin with; '' for nothing.
      num_frozen: Nodes of `start` that no mutation changes, from 0 on.
      hurdle: The first seed's score in the first environment from which a program gets all others (Co-Reyes et al.
        2021, section 4.1).
      stopped_share: A program's first training is stopped at half where its score is in this lowest share of those of
        earlier programs at half, from 0, which stops none, to 1.
      equivalence: What programs of one score are equal in: 'gradient', or 'output' (Co-Reyes et al. 2021, section 3.3).
      num_seeds: Agents of an evaluation in an environment, at least 1; their median counts.
      num_confirming: More agents of an evaluation in each environment, at least 0, where its score is among the best
        tenth; their median counts.
      num_lanes: Lanes of an environment for programs that need no more than Q(s) and Q_targ(s_next), at least 1; a CPU
        runs four at a time, so that more are no faster there.
      num_full_lanes: Lanes of an environment for all programs, at least 1; with start='' most need one.
      chunk: Steps of all lanes between two looks at them, at least 1.
      num_episodes: Episodes of a training in each environment; () for lane.num_episodes in all.
      max_steps: Environment steps of a training at most, in each environment; () for lane.max_steps in all.
      exploration: Environment steps over which ε falls in each environment; () for lane.exploration in all.
      lane: How agents learn by losses.
      target_lane: How agents learn by targets.
      num_finalists: The best programs, which are scored again, at least 1.
      num_final_seeds: Fresh seeds that each finalist is scored with, at least 1.
    """

    language: Annotated[str, OneOf(KINDS)] = "losses"
    population_size: Count = 300
    tournament_size: Count = 25
    mutation_share: Fraction = 0.95
    start: str = "Q(s)[a]"
    num_frozen: CountOrZero = 2
    hurdle: float = 0.6
    stopped_share: Fraction = 0.75
    equivalence: Annotated[str, OneOf(EQUIVALENCES)] = "gradient"
    num_seeds: Count = 1
    num_confirming: CountOrZero = 5
    num_lanes: Count = 32
    num_full_lanes: Count = 8
    chunk: Count = 1000
    num_episodes: tuple[int, ...] = ()
    max_steps: tuple[int, ...] = ()
    exploration: tuple[int, ...] = ()
    lane: LaneConfig = dataclasses.field(default_factory=LaneConfig)
    target_lane: TargetLaneConfig = dataclasses.field(default_factory=TargetLaneConfig)
    num_finalists: Count = 10
    num_final_seeds: Count = 5

    @property
    def kind(self) -> Kind:
        """What the language's programs are of."""
        return KINDS[self.language]

    def validate(self) -> None:
        """Raise a ValueError that names the first bad setting, its value and what was expected."""
        super().validate()
        rest = {"num_confirming": MAX_SEEDS - self.num_seeds, "num_final_seeds": MAX_SEEDS - SEEDS_OF_FINALISTS}
        for name, most in {"num_seeds": MAX_SEEDS, **rest}.items():
            if getattr(self, name) > most:
                raise ValueError(f"{name} is {getattr(self, name)}, expected at most {most}")
        if self.tournament_size > self.population_size:
            raise ValueError(
                f"tournament_size is {self.tournament_size}, expected at most population_size ({self.population_size})"
            )
        num = min(len(self.parse_start()), self.kind.language.max_nodes - 1)
        if self.num_frozen > num:
            raise ValueError(f"num_frozen is {self.num_frozen}, expected 0 to {num}, by the nodes of start")
        if not math.isfinite(self.hurdle):
            raise ValueError(f"hurdle is {self.hurdle}, expected a number")
        for name in LENGTHS:
            if getattr(self, name) and self.language != "losses":
                raise ValueError(f"{name} is {getattr(self, name)}, expected none: targets have target_lane.budget")
            if not all(is_whole(value) and value >= 1 for value in getattr(self, name)):
                raise ValueError(f"{name} is {getattr(self, name)}, expected integers of at least 1")
        check_numbers(self)
        with_prefix("lane", self.lane.validate)
        with_prefix("target_lane", self.target_lane.validate)

    def in_tasks(self, num: int) -> "list[EvolutionConfig]":
        """Return the settings for each of `num` environments.

        Raises:
          ValueError: if another number of them have lengths of their own.
        """
        given = {name: getattr(self, name) for name in LENGTHS if getattr(self, name)}
        for name, values in given.items():
            if len(values) != num:
                raise ValueError(f"{name} is {values}, expected a number for each of {num} environments, or none")
        lanes = [dataclasses.replace(self.lane, **{name: own[i] for name, own in given.items()}) for i in range(num)]
        return [dataclasses.replace(self, lane=lane) for lane in lanes]

    def parse_start(self) -> Program:
        """Return the program that the search begins with, () for none."""
        return parse_setting("start", self.kind.language, self.start, self.kind.formulas) if self.start else ()
