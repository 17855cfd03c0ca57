"""Agents that discover their own reinforcement-learning objective: the package as a library.

Rules: `make_rule`, `load_rule`, `fit_rule`, `Rule`; `register_rule` adds a user-defined `RuleEntry` to `RULES`, and
`register_operator` an operator to the language of programs. A user-defined loop: `make_learner`, `make_trajectory`.
Regimes: `discover_online` on one environment, whose result `load` reads from a file (`shipped_agents` are in the
package), `discover` by a population,
`evolve` by a search for programs; all three keep a run in a folder and call back. In `Trials`, `returns_by_trial` on
`held_out_tasks` says what the agent's memory learns.
Environments of other libraries, or by name: `as_environment`, `make_environment`. Inside: `Learner.targets`,
`Learner.derivatives`. Settings: `AgentConfig`, `PopulationConfig` and what they are made of.

A name is imported when it is first used, so that `frodo --help` needs no JAX.
"""

import ast
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agents.acting.replay import ReplayConfig
    from agents.environments.adapt import as_environment
    from agents.environments.host import HostEnvironment, NotFiniteError
    from agents.environments.names import make_environment
    from agents.networks.agent import NetworkConfig
    from agents.rule import UpdateRule
    from agents.rules.categorical import log_probability
    from agents.rules.returns import lambda_returns, vtrace
    from agents.settings import Count, Fraction, NotNegative, Settings
    from agents.types import PredictionSpec, Trajectory, make_trajectory
    from frodo.regimes.adaptation import held_out_tasks, returns_by_trial
    from frodo.regimes.discovery import Discovery, discover
    from frodo.regimes.evaluation import HeldOut
    from frodo.regimes.k_shot import KShot, k_shot
    from frodo.regimes.learner import Learner, LearnerState, make_learner
    from frodo.regimes.online import discover_online, load
    from frodo.regimes.results import OnlineResult, shipped_agents
    from frodo.regimes.search_settings import EvolutionConfig
    from frodo.regimes.searching import Evolved, evolve
    from frodo.rules.files import Rule, fit_rule, load_rule, make_rule, register_rule, shipped_rules
    from frodo.runs.callbacks import CSV, Callback, Checkpoint, TensorBoard, WeightsAndBiases
    from frodo.settings import presets
    from frodo.settings.config import AgentConfig, PopulationConfig
    from frodo.settings.registry import RULES, RuleConfig, RuleEntry
    from frodo.settings.strategies import StrategyConfig
    from meta.programs.operators import register_operator
    from meta.targets.inputs import INPUTS, InputContext
    from meta.targets.target_network import TargetInputs, TargetNetwork, TargetNetworkConfig
    from meta.updates.curriculum import CurriculumConfig
    from meta.updates.distillation import DistillationConfig, Teacher
    from meta.updates.optimizers import OptimizerConfig, adam
    from meta.updates.outer import OuterConfig
    from toy_envs.base import DmEnv, Environment, TimeStep
    from toy_envs.trials import Trials

__all__ = [
    "CSV",
    "INPUTS",
    "RULES",
    "AgentConfig",
    "Callback",
    "Checkpoint",
    "Count",
    "CurriculumConfig",
    "Discovery",
    "DistillationConfig",
    "DmEnv",
    "Environment",
    "EvolutionConfig",
    "Evolved",
    "Fraction",
    "HeldOut",
    "HostEnvironment",
    "InputContext",
    "KShot",
    "Learner",
    "LearnerState",
    "NetworkConfig",
    "NotFiniteError",
    "NotNegative",
    "OnlineResult",
    "OptimizerConfig",
    "OuterConfig",
    "PopulationConfig",
    "PredictionSpec",
    "ReplayConfig",
    "Rule",
    "RuleConfig",
    "RuleEntry",
    "Settings",
    "StrategyConfig",
    "TargetInputs",
    "TargetNetwork",
    "TargetNetworkConfig",
    "Teacher",
    "TensorBoard",
    "TimeStep",
    "Trajectory",
    "Trials",
    "UpdateRule",
    "WeightsAndBiases",
    "adam",
    "as_environment",
    "discover",
    "discover_online",
    "evolve",
    "fit_rule",
    "held_out_tasks",
    "k_shot",
    "lambda_returns",
    "load",
    "load_rule",
    "log_probability",
    "make_environment",
    "make_learner",
    "make_rule",
    "make_trajectory",
    "presets",
    "register_operator",
    "register_rule",
    "returns_by_trial",
    "shipped_agents",
    "shipped_rules",
    "vtrace",
]

if not TYPE_CHECKING:  # else type checkers would take every name, also a misspelt one

    def __getattr__(name: str) -> Any:
        """Import a public name from where the statements above have it (PEP 562)."""
        if name in __all__:
            for node in ast.walk(ast.parse(__spec__.loader.get_source(__name__))):
                if isinstance(node, ast.ImportFrom) and name in {one.name for one in node.names}:
                    found = globals()[name] = getattr(__import__(node.module, fromlist=[name]), name)
                    return found
        text = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(text, name=name, obj=sys.modules[__name__])

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
