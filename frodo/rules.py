"""All rules by name: how each is made, its own settings, the kinds of agent that it fits, and whether η is learned.

A rule is added by one file, and one line in `RULES`.
"""

import dataclasses
import functools
import numbers
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Self

from agents.impala import A2CConfig, ImpalaConfig, a2c, impala
from agents.muesli import MuesliConfig, muesli
from agents.ppo import PPOConfig, ppo
from agents.q_learning import QLearningConfig, q_learning
from agents.rule import UpdateRule, with_checked_predictions
from agents.td import TDLambdaConfig, td_lambda
from agents.validation import check_choice, did_you_mean
from meta.disco import DiscoConfig, disco
from meta.programs import DoubleDQNConfig, DQNClippedConfig, DQNRegConfig, ProgramConfig, program
from meta.scalar import FrodoConfig, LearnedLossConfig, frodo, learned_loss
from meta.target_programs import TargetProgramConfig, target_program


class RuleEntry(NamedTuple):
    """What the package knows of a rule.

    Attributes:
      make: settings -> UpdateRule.
      settings: the dataclass of the rule's settings; its `validate`, if it has one, raises a ValueError.
      kinds: of agent: 'actor_critic', 'value_based' or 'prediction'; of several, the setting `kind` says which.
      is_learned: whether it has meta-parameters η.
    """

    make: Callable[[Any], UpdateRule]
    settings: type
    kinds: tuple[str, ...] = ("actor_critic",)
    is_learned: bool = False


RULES: dict[str, RuleEntry] = {
    "frodo": RuleEntry(frodo, FrodoConfig, ("actor_critic", "value_based", "prediction"), is_learned=True),
    "learned_loss": RuleEntry(learned_loss, LearnedLossConfig, is_learned=True),
    "disco": RuleEntry(disco, DiscoConfig, is_learned=True),
    "impala": RuleEntry(impala, ImpalaConfig),
    "a2c": RuleEntry(a2c, A2CConfig),
    "a2c_no_bootstrap": RuleEntry(functools.partial(a2c, is_bootstrapped=False), A2CConfig),
    "ppo": RuleEntry(ppo, PPOConfig),
    "muesli": RuleEntry(muesli, MuesliConfig),
    "q_learning": RuleEntry(q_learning, QLearningConfig, ("value_based",)),
    "td_lambda": RuleEntry(td_lambda, TDLambdaConfig, ("prediction",)),
    "target_program": RuleEntry(target_program, TargetProgramConfig, is_learned=True),
    "program": RuleEntry(program, DQNRegConfig, ("value_based",), is_learned=True),
    "dqn": RuleEntry(functools.partial(program, is_learned=False), ProgramConfig, ("value_based",)),
    "double_dqn": RuleEntry(functools.partial(program, is_learned=False), DoubleDQNConfig, ("value_based",)),
    "dqn_reg": RuleEntry(functools.partial(program, is_learned=False), DQNRegConfig, ("value_based",)),
    "dqn_clipped": RuleEntry(functools.partial(program, is_learned=False), DQNClippedConfig, ("value_based",)),
}


@dataclasses.dataclass
class RuleConfig:
    """A rule by its name, with its own settings.

    Attributes:
      name: One of `RULES`.
      settings: Of the type that `RULES` says; none for that type's defaults.
    """

    name: str = "frodo"
    settings: Any = None

    def __post_init__(self):
        check_choice("rule", self.name, RULES)
        if self.settings is None:
            self.settings = RULES[self.name].settings()

    @property
    def entry(self) -> RuleEntry:
        return RULES[self.name]

    @property
    def kind(self) -> str:
        """The kind of agent."""
        return getattr(self.settings, "kind", self.entry.kinds[0])

    def validate(self) -> None:
        """Raise a ValueError that names the first bad setting."""
        if type(self.settings) is not self.entry.settings:
            found, expected = type(self.settings).__name__, self.entry.settings.__name__
            raise ValueError(f"rule {self.name!r} has settings of the type {found}, expected {expected}")
        if hasattr(self.settings, "validate"):
            with_prefix("rule", self.settings.validate)

    def replace(self, **settings: Any) -> Self:
        """Return the same rule with other settings; a ValueError names one that the rule does not have."""
        return dataclasses.replace(self, settings=replace(f"the rule {self.name!r}", self.settings, settings))

    @classmethod
    def from_plain(cls, value: Mapping[str, Any], convert: Callable[[type, Any, str], Any]) -> Self:
        """Turn `dataclasses.asdict(config)` back into config; `convert` does so for its settings."""
        name = convert(str, value["name"], "rule.name")
        check_choice("rule", name, RULES)
        return cls(name, convert(RULES[name].settings, value["settings"], "rule"))


def replace(owner: str, config: Any, settings: Mapping[str, Any]) -> Any:
    """Return a dataclass with some settings replaced.

    Raises:
      ValueError: naming the first setting that `owner` does not have, with those that it has, or the first one whose
        value has another type.
    """
    names = [field.name for field in dataclasses.fields(config)]
    hints = typing.get_type_hints(type(config))
    for name, value in settings.items():
        if name not in names:
            hint = did_you_mean(name, names)
            raise ValueError(f"{name} is {value!r}, but {owner} has no such setting{hint}: it has {', '.join(names)}")
        if not _has_type(value, hints[name]):
            expected = getattr(hints[name], "__name__", str(hints[name]))
            raise ValueError(f"{name} is {value!r}, expected a value of the type {expected}")
    return dataclasses.replace(config, **settings)


def _has_type(value: Any, hint: Any) -> bool:
    """Say whether a setting may be of that type; of generic types, whatever is inside."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return any(_has_type(value, one) for one in typing.get_args(hint))
    kind = typing.get_origin(hint) or hint
    if kind in (int, float):
        return isinstance(value, numbers.Integral if kind is int else numbers.Real) and not isinstance(value, bool)
    return kind is Any or isinstance(value, kind)


def with_prefix(prefix: str, validate: Callable[[], None]) -> None:
    """Call `validate`; where it raises a ValueError, put "prefix." before the name that the message begins with."""
    try:
        validate()
    except ValueError as error:
        raise ValueError(f"{prefix}.{error}") from None


def make_update_rule(config: RuleConfig) -> UpdateRule:
    """Make the functions of a rule; they refuse predictions that are not those of its spec."""
    config.validate()
    return with_checked_predictions(config.entry.make(config.settings))
