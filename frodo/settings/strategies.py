"""The settings of evolution strategies for η."""

import dataclasses
from typing import Annotated

from agents.settings import Count, CountOrZero, OneOf, Positive, Settings

KINDS = ("open_es", "snes")


@dataclasses.dataclass
class StrategyConfig(Settings):
    """How η moves by evolution strategies: agents with different η live whole lifetimes, whose returns are ranked.

    Attributes:
      generations: How many there are, after the meta-steps by meta-gradient; 0 for none.
      kind: 'open_es' (Salimans et al. 2017), antithetic and with Adam, or 'snes' (Wierstra et al. 2014).
      size: Different η of a generation, an even number, each with a life in every environment.
      stddev: Standard deviation of η in a generation, at first, positive.
      learning_rate: Of Adam of 'open_es', positive; the mean of 'snes' has 1, as in its paper.
    """

    generations: CountOrZero = 0
    kind: Annotated[str, OneOf(KINDS)] = "open_es"
    size: Count = 32
    stddev: Positive = 0.05
    learning_rate: Positive = 0.02

    def validate(self) -> None:
        super().validate()
        if self.size % 2:
            raise ValueError(f"size is {self.size}, expected an even number: pairs of η have the same keys")
