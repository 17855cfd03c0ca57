"""Programs as drifts in PPO's loop: what LPO's network computes, as a formula of r, A and t = n / N.

The loss of the policy is −(r A − drift). η is the program's constants.
"""

import dataclasses
import functools

from agents.rule import UpdateRule
from agents.rules.ppo import PPOConfig, Proximal
from agents.settings import CountOrZero
from agents.types import Array, Params
from meta.programs.evaluation import with_constants_as_eta
from meta.programs.language import DRIFTS, Program, parse_setting
from meta.targets.proximal import with_drift


def clipped(clip: float) -> str:
    """Return the formula of PPO's drift: r A less its minimum with the clipped one."""
    return f"max(0.0, (r - max({1 - clip:.4g}, min({1 + clip:.4g}, r))) * A)"


FORMULAS = {"ppo": clipped(0.2)}


@dataclasses.dataclass
class DriftProgramConfig(PPOConfig):
    """PPO with a program in the place of the clipped ratio; `clip` is of values alone.

    Attributes:
      formula: Formula of the drift of a step in the ratio r, the advantage A and t = n / N, or the name of one: 'ppo'.
      life: N, the trajectories of a life; 0 for those of the agent's annealing. Without either t is 0.
    """

    formula: str = FORMULAS["ppo"]
    life: CountOrZero = 0

    def validate(self) -> None:
        super().validate()
        _program(self.formula)


@functools.cache
def _program(formula: str) -> Program:
    return parse_setting("formula", DRIFTS, formula, FORMULAS)


def drift_program(config: DriftProgramConfig) -> UpdateRule:
    """PPO's targets, and −(r A − drift) with the drift of a program, whose constants are η."""
    of_constants, compute = with_constants_as_eta(DRIFTS, _program(config.formula))

    def drift(meta_params: Params, of: Proximal, progress: Array) -> Array:
        return compute(meta_params, {"r": of.ratio, "A": of.advantage, "t": progress.astype(of.ratio.dtype)})

    return with_drift(config, config.life, drift, lambda key, num_actions: of_constants)
