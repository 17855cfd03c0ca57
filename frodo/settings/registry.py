"""The registry of rules: what the package knows of each stands in its entry, and rules are chosen by their names.

`frodo.rules.entries` holds the package's own; `frodo.register_rule` adds a user-defined one.
"""

import collections
import dataclasses
import importlib
import numbers
import types
import typing
from collections.abc import Callable, Collection, Mapping, MutableMapping
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp

from agents.rule import UpdateRule, with_checked_predictions
from agents.types import Params
from agents.validation import check_choice, did_you_mean

PREDICTED = {"actor_critic": "policy", "value_based": "q", "prediction": "value"}  # by every agent of a kind


class Origin(NamedTuple):
    """Where a rule was discovered, and what it cost."""

    envs: tuple[str, ...]  # of the agents; a name that ends in /* stands for a whole suite
    env_steps: int | None  # of all agents together; None where it is not known
    cpu_seconds: float | None
    note: str = ""


class Start(NamedTuple):
    """An η that is known by a name: a published one, or one that is fitted to a hand-designed target."""

    meta_params: Callable[["RuleConfig"], Params]  # the rule -> η
    agent: Callable[[str], Any]  # an environment's name, or "" -> the `OnlineConfig` of an agent that begins with it
    origin: Origin
    is_fitted: bool = False  # to the settings that the rule has; else they are those of `agent`
    check: Callable[[Any], None] = lambda settings: None  # a ValueError for settings that there is no such η for
    in_population: Callable[[Any, Any], Any] | None = None  # as, and by default, `presets.placed`


class RuleEntry(NamedTuple):
    """All that belongs to a rule. What is left out is as for most rules.

    Attributes:
      make: settings -> UpdateRule.
      settings: the dataclass of the rule's settings; its `validate`, if it has one, raises a ValueError.
      kinds: of agent: 'actor_critic', 'value_based' or 'prediction'; of several, the setting `kind` says which.
      is_learned: whether it has meta-parameters η.
      preset: the `OnlineConfig` of an environment, with this rule in it -> that of an agent that learns by it there.
        Of an environment that was given as an object `env` is "", or "atari/" where it shows pictures.
      population: for presets of populations, by name: what `preset` is, of `PopulationConfig`.
      tuning: axes of the grid of `experiments.compare` that are its own: of learning_rates, entropy_costs and batches.
      eta_settings: the settings without which an η means nothing: files of other ones are refused.
      starts: what η can begin with, by name.
      other_files: a module, as `meta.targets.disco103`, that reads η from files of another code.
    """

    make: Callable[[Any], UpdateRule]
    settings: type
    kinds: tuple[str, ...] = ("actor_critic",)
    is_learned: bool = False
    preset: Callable[[Any], Any] = lambda config: config
    population: Mapping[str, Callable[[Any], Any]] = types.MappingProxyType({})
    tuning: Mapping[str, tuple] = types.MappingProxyType({})
    eta_settings: Collection[str] = ()
    starts: Mapping[str, Start] = types.MappingProxyType({})
    other_files: Any = None


class _Rules(collections.UserDict[str, RuleEntry]):
    """Entries by name; the package's own are imported when they are first looked at: `import frodo` imports nothing."""

    def __init__(self) -> None:
        self._entries: dict[str, RuleEntry] = {}

    @property
    def data(self) -> dict[str, RuleEntry]:  # type: ignore[override]
        importlib.import_module("frodo.rules.entries")  # by name, as that room imports this one
        return self._entries


RULES: MutableMapping[str, RuleEntry] = _Rules()
"""All rules that are known, by their names."""


def starts(is_fitted: bool) -> dict[str, tuple[str, Start]]:
    """Return what η of any rule can begin with: name -> rule, start; of fitted ones or of published ones."""
    found = ((rule, one) for rule, entry in RULES.items() for one in entry.starts.items())
    return {name: (rule, start) for rule, (name, start) in found if start.is_fitted == is_fitted}


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
        """What `RULES` has of it."""
        return RULES[self.name]

    @property
    def kind(self) -> str:
        """The kind of agent."""
        return getattr(self.settings, "kind", self.entry.kinds[0])

    @property
    def has_critic(self) -> bool:
        """Whether agents predict a policy and v(S), towards scalar targets."""
        return {"policy", "value"} <= set(make_update_rule(self).spec(1))

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

    def with_known(self, **settings: Any) -> Self:
        """Return the same rule with those of the settings that it has, with values of that type."""
        own = typing.get_type_hints(type(self.settings))
        return self.replace(**{x: value for x, value in settings.items() if x in own and _has_type(value, own[x])})

    def adapted(self, config: Any, part: str, make: Callable[[Any], Any]) -> Any:
        """Return what this part of the entry makes of settings, which have the same type."""
        found = make(config)
        if not isinstance(found, type(config)):
            raise ValueError(f"{part} of the rule {self.name!r} returns {found!r}, expected a {type(config).__name__}")
        return found

    @classmethod
    def from_plain(cls, value: Mapping[str, Any], convert: Callable[[type, Any, str], Any]) -> Self:
        """Turn `dataclasses.asdict(config)` back into config; `convert` does so for its settings."""
        name = convert(str, value["name"], "rule.name")
        if name not in RULES:
            hint = did_you_mean(name, RULES)
            raise ValueError(f"rule is {name!r}, which is not registered{hint}: expected one of {', '.join(RULES)}")
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
            hint = _owners(config, name) or did_you_mean(name, names)
            raise ValueError(f"{name} is {value!r}, but {owner} has no such setting{hint}: it has {', '.join(names)}")
        if not _has_type(value, hints[name]):
            expected = getattr(hints[name], "__name__", str(hints[name]))
            raise ValueError(f"{name} is {value!r}, expected a value of the type {expected}")
    return dataclasses.replace(config, **settings)


def _owners(config: Any, name: str) -> str:
    """Say which settings inside of others have that name."""
    inner = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    inner = {of: getattr(one, "settings", one) for of, one in inner.items() if dataclasses.is_dataclass(one)}
    owners = [of for of, one in inner.items() if name in {field.name for field in dataclasses.fields(one)}]
    return f" ({' and '.join(owners)} {'have' if len(owners) > 1 else 'has'} one)" if owners else ""


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
    return with_checked_predictions(_made(config.name, config.entry, config.settings))


def check_entry(name: str, entry: RuleEntry) -> None:
    """Raise a ValueError that names the first part of an entry that is missing, or does not fit the others."""
    of = f"of the rule {name!r}"
    if not (isinstance(entry.settings, type) and dataclasses.is_dataclass(entry.settings)):
        raise ValueError(f"settings {of} is {entry.settings!r}, expected a dataclass")
    for field in dataclasses.fields(entry.settings):
        if field.default is field.default_factory is dataclasses.MISSING:
            raise ValueError(f"settings {of} has no default of {field.name}: a rule is made by its name alone")
    for setting in entry.eta_settings:
        check_choice(f"eta_settings {of}", setting, [field.name for field in dataclasses.fields(entry.settings)])
    for part in (part for part in ("make", "preset") if not callable(getattr(entry, part))):
        raise ValueError(f"{part} {of} is {getattr(entry, part)!r}, expected a function")
    for kind in entry.kinds:
        check_choice(f"kinds {of}", kind, PREDICTED)
    rule, of_agent = _made(name, entry, entry.settings()), getattr(entry.settings, "kind", entry.kinds[0])
    if PREDICTED[of_agent] not in rule.spec(1):
        raise ValueError(f"spec {of} has no {PREDICTED[of_agent]!r}, which agents of the kind {of_agent!r} predict")
    has_meta_params = bool(jax.tree.leaves(rule.meta_param_shapes()))
    if has_meta_params != entry.is_learned:
        there = "an η" if has_meta_params else "none"
        raise ValueError(f"is_learned {of} is {entry.is_learned}, but its random_meta_params makes {there}")


def _made(name: str, entry: RuleEntry, settings: Any) -> UpdateRule:
    rule = entry.make(settings)
    if not isinstance(rule, UpdateRule):
        raise ValueError(f"make of the rule {name!r} returns {rule!r}, expected an UpdateRule")
    strong = lambda x: jnp.asarray(x, jnp.result_type(x))  # of weakly typed arrays a second step would be compiled anew
    return rule._replace(random_meta_params=lambda *of: jax.tree.map(strong, rule.random_meta_params(*of)))
