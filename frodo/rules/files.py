"""Rules to learn by: made by name, loaded from a file or the package, saved, and described.

The file of a rule is an .npz archive with η and, inside, the settings of the agents that it was discovered with, where,
and at what cost. Those of earlier versions are read, too, and so are files of other codes that the rule's entry knows.
"""

import contextlib
import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar, cast

import jax
import numpy as np

from agents.rule import UpdateRule
from agents.types import Params
from agents.validation import check_choice, check_type, did_you_mean
from frodo import archives, files
from frodo.archives import Archive
from frodo.rules import zoo
from frodo.rules.entries import OWN
from frodo.rules.fitted import check_target
from frodo.settings import earlier_versions, presets
from frodo.settings.config import AgentConfig, OnlineConfig
from frodo.settings.registry import RULES, Origin, RuleConfig, RuleEntry, Start, check_entry, make_update_rule, starts
from meta.targets import disco103
from meta.targets.disco import DiscoConfig

Config = TypeVar("Config", bound=AgentConfig)
CONFIG, ORIGIN = "config.json", "origin.json"  # keys of what is there as bytes
RESULT = "result.json"  # the same, in the file of a result (`results.py`)
SHIPPED = Path(__file__).parents[1] / "data"  # of each rule <name>.npz, and its card, <name>.md


@dataclasses.dataclass(frozen=True)
class Rule:
    """A rule to learn by.

    Attributes:
      name: the name that it was made or loaded by.
      config: settings of agents that learn by it; `config.rule` holds its own.
      meta_params: η; None where there is none yet: it is random then, for a hand-designed rule it is {}.
      origin: where it was discovered, None for one that was not.
    """

    name: str
    config: AgentConfig
    meta_params: Params | None = None
    origin: Origin | None = None

    @property
    def update_rule(self) -> UpdateRule:
        """The rule's functions."""
        return make_update_rule(self.config.rule)

    def save(self, path: Path | str) -> None:
        """Write the file of a rule, whole or not at all.

        Raises:
          ValueError: if it has no η.
          OSError: naming the path and the reason, where the disk refuses.
        """
        arrays = _arrays(self)
        origin = self.origin or Origin((), None, None)
        config = {"format": earlier_versions.FORMAT} | dataclasses.asdict(self.config)
        for key, value in ((CONFIG, config), (ORIGIN, origin._asdict())):
            arrays[key] = np.frombuffer(json.dumps(files.plain(value)).encode(), np.uint8)
        files.write_arrays(Path(path), arrays)

    def save_for_disco_rl(self, path: Path | str) -> None:
        """Write η under the names of the public DiscoRL code (github.com/google-deepmind/disco_rl).

        Such a file holds η alone: its reader must know settings such as max_value and discount; `load_rule` takes those
        of Disco103.

        Raises:
          ValueError: if the rule has no η, or is not that code's: π, y and z, an LSTM and a lifetime LSTM.
          OSError: as `save`.
        """
        settings = self.config.rule.settings
        if not isinstance(settings, DiscoConfig):
            raise ValueError(f"the rule {self.config.rule.name!r} has no targets π, y and z, expected 'disco'")
        is_theirs = settings.core == "lstm" and settings.lifetime_lstm and not settings.without
        is_theirs = is_theirs and settings.hidden == "nothing"
        if not is_theirs or len(settings.action_embedding) != 2:
            raise ValueError(
                f"core is {settings.core!r}, lifetime_lstm {settings.lifetime_lstm}, without {settings.without}, "
                f"hidden {settings.hidden!r} and action_embedding {settings.action_embedding}, expected those of the "
                "public code: an LSTM, a lifetime LSTM, all predictions, nothing hidden, two layers"
            )
        _arrays(self)
        weights = disco103.from_meta_params(cast(Params, self.meta_params))
        files.write_arrays(Path(path), {key: np.asarray(x) for key, x in weights.items()})

    def describe(self) -> str:
        """Return the rule's card, or, of a rule without one, its settings and origin."""
        if self.name in shipped_rules():
            return (SHIPPED / f"{self.name}.md").read_text(encoding="utf-8")
        if self.name.startswith(zoo.PREFIX):
            return zoo.page(self.name)
        lines = [f"{self.name}: rule {self.config.rule.name!r} for agents of the kind {self.config.rule.kind!r}"]
        if self.meta_params:
            lines.append(f"meta-parameters: {sum(x.size for x in jax.tree.leaves(self.meta_params)):,}")
        if self.origin:
            known = self.origin
            lines.append(f"discovered in: {', '.join(known.envs) or 'environments without names'}")
            if known.env_steps is not None:
                lines.append(f"environment steps: {known.env_steps:,}")
            if known.cpu_seconds is not None:
                lines.append(f"CPU time: {known.cpu_seconds:,.0f} s")
            lines += [known.note] if known.note else []
        settings = dataclasses.asdict(self.config.rule.settings)
        return "\n".join([*lines, *(f"{name}: {value}" for name, value in settings.items())])


def make_rule(name: str, **settings: Any) -> Rule:
    """Make a rule by its name in `RULES`. A learned rule has no η yet: it is random when training begins.

    Args:
      name: one of `RULES`, such as 'frodo' or 'ppo'.
      **settings: of that rule; the others keep their defaults.
    Raises:
      ValueError: naming a setting or rule that is not known, its value and those that are.
    """
    rule = RuleConfig(name).replace(**settings)
    rule.validate()
    return Rule(name, presets.for_rule("", name).agent_only().replace(rule=rule))


def fit_rule(target: str = "vtrace", **settings: Any) -> Rule:
    """Make a rule whose targets are hand-designed ones at first, to be learned further, with a fitted η.

    Args:
      target: "vtrace", "lambda_return" or "n_step_return", of FRODO's rule; "cmpo", of DiscoRL's (π̂ is fitted, and ŷ
        and ẑ are at random).
      **settings: of the rule, as of `make_rule`, that replace those of `presets.fitted` or `population_presets.small`.
    Raises:
      ValueError: naming the target if there is none, a setting that is not known, or the inputs that are missing.
    """
    check_choice("target", target, fits := starts(is_fitted=True))
    rule = _at_start(target, fits[target][1], **settings)
    return dataclasses.replace(rule, meta_params=load_meta_params(target, rule.config.rule))


def _at_start(name: str, start: Start, **settings: Any) -> Rule:
    """Return the rule that an η with a name is of, without that η."""
    config = start.agent("").agent_only()
    config = config.replace(rule=config.rule.replace(**settings))
    config.validate()
    return Rule(name, config, None, start.origin)


def register_rule(name: str, entry: RuleEntry) -> None:
    """Make a user-defined rule known by a name, to every function and to every program.

    Programs import what the environment variable FRODO_PLUGINS names: a file, such as my_rule.py, or a module, or
    several with commas between.

    Raises:
      ValueError: naming the part of the entry that is missing or wrong, or the name, if it is taken or is none.
    """
    if not str(name).isidentifier():
        raise ValueError(f"rule is {name!r}, expected a name of letters, digits and _")
    taken = {*OWN, *shipped_rules(), *(start for own in OWN.values() for start in own.starts)}
    if both := [one for one in (name, *entry.starts) if one in taken]:
        raise ValueError(f"rule is {name!r}, but {both[0]} is a name of the package's own")
    check_entry(name, entry)
    RULES[name] = entry


def shipped_rules() -> list[str]:
    """Return the names of the discovered rules that are part of the package."""
    return sorted(path.stem for path in SHIPPED.glob("*.npz"))


def load_rule(name: Path | str) -> Rule:
    """Load a discovered rule, or one that is fitted to a hand-designed target.

    Args:
      name: "disco103" for the published one (`disco103_weights.find` says where its weights come from), one of
        `shipped_rules()`, "vtrace" or another target of `fit_rule`, "hub:owner/name" for one of a zoo
        (`frodo.rules.zoo`), or the path of a file: one of this package's, or of another code, as the public one of
        DiscoRL.
    Raises:
      ValueError: if there is no such rule, or the file is not a rule's: naming it and its first wrong key.
    """
    check_type("name", name, str | Path, "a rule's name, or the path of its file")
    name = str(name)
    if start := _start(name):
        rule = _at_start(name, start)
        return dataclasses.replace(rule, meta_params=start.meta_params(rule.config.rule))
    with _opened(name) as archive:
        for of, entry in RULES.items() if CONFIG not in archive else ():
            if (other := entry.other_files) and set(other.expected_shapes()) <= set(archive):
                return _from_others(name, archive, of, other)
        origin = _origin(name, archive)
        record = archive.json(CONFIG)
        with files.refusing(f"{name} has a configuration that this version does not know"):
            written = record.pop("format", None)
            if written not in (None, earlier_versions.FORMAT):
                raise ValueError(f"format is {written!r}, this version reads those up to {earlier_versions.FORMAT}")
            config = files.from_plain(AgentConfig, record if written else earlier_versions.convert(record))
            if not config.rule.entry.is_learned:
                raise ValueError(f"rule.name is {config.rule.name!r}, expected one that has an η to learn")
            config.validate()
            expected = make_update_rule(config.rule).meta_param_shapes()
        found = archive.read_all(_by_key(expected), "its rule", (CONFIG, ORIGIN))
    return Rule(name, config, jax.tree.unflatten(jax.tree.structure(expected), found.values()), origin)


def load_settings(name: str) -> Rule:
    """Load a rule as `load_rule` does, but one that is fitted without η: that is fitted with the final settings."""
    start = _start(name)
    return _at_start(name, start) if start and start.is_fitted else load_rule(name)


def get_rule(rule: Rule | str) -> Rule:
    """Return the rule itself, or that of a name: loaded if it is a discovered rule or an .npz file, else made.

    Raises:
      ValueError: if it is neither.
    """
    if isinstance(rule, Rule):
        return rule
    check_type("rule", rule, str, "a Rule, or a name such as 'frodo'")
    if has_meta_params(rule):
        return load_rule(rule)
    check_choice("rule", rule, [*RULES, *_known()])
    return make_rule(rule)


def has_meta_params(name: str) -> bool:
    """Say whether a name is that of a rule with an η: discovered or fitted, or by its form a file or a zoo's."""
    return name in _known() or Path(name).suffix == ".npz" or name.startswith(zoo.PREFIX)


def load_origin(name: str) -> Origin:
    """Return where a rule comes from, without its η; errors are those of `load_rule`."""
    if start := _start(name):
        return start.origin
    with _opened(name) as archive:
        return _origin(name, archive)


def agent_for(name: str, env: str) -> OnlineConfig:
    """Return the settings of an agent that begins with a rule in an environment; errors are those of `load_rule`."""
    if start := _start(name):
        return start.agent(env)
    return presets.placed(load_rule(name).config, presets.for_environment(env).replace(vmap_seeds=False))


def config_for(rule: Rule, preset: Config) -> Config:
    """Return the settings of a population, of a preset, that goes on from a rule: mostly with the rule's own agents."""
    start = _start(rule.name)
    make = (start and start.in_population) or presets.placed
    return make(rule.config, preset)


def population_config(rule: Rule) -> AgentConfig:
    """Return the settings of the agents of a population that goes on from a rule: the rule's own, on uniform tasks."""
    return config_for(rule, rule.config.without_run()).agent_only()


def load_meta_params(name: str, config: RuleConfig) -> Params:
    """Load the η of a discovered rule for agents with a rule of this configuration.

    Raises:
      ValueError: as `load_rule`, and if the rule is of another configuration.
    """
    if (start := _start(name)) and start.is_fitted:
        check_target(name, config)
        return start.meta_params(config)
    loaded = load_rule(name)
    theirs, ours = (
        files.plain({"name": rule.name} | dataclasses.asdict(rule.settings)) for rule in (loaded.config.rule, config)
    )
    is_other = any(theirs.get(key) != ours[key] for key in ("name", *config.entry.eta_settings))
    shapes_of = lambda rule: make_update_rule(rule).meta_param_shapes()
    if is_other or (theirs != ours and shapes_of(loaded.config.rule) != shapes_of(config)):
        differing = {key: (theirs.get(key), ours[key]) for key in ours if theirs.get(key) != ours[key]}
        text = "; ".join(f"{key} is {a} there and {b} here" for key, (a, b) in differing.items())
        raise ValueError(f"{name} is a rule of another configuration: {text}")
    return loaded.meta_params


def _arrays(rule: Rule) -> dict[str, np.ndarray]:
    if rule.meta_params is None or not rule.config.rule.entry.is_learned:
        raise ValueError(f"the rule {rule.name!r} has no meta-parameters, expected one that was discovered or loaded")
    return {key: np.asarray(x) for key, x in _by_key(rule.meta_params).items()}


def _by_key(meta_params: Params) -> dict[str, Any]:
    """Name the leaves of η by their paths, in order: of {"lstm": {"w": x}} lstm/w."""
    leaves = jax.tree_util.tree_leaves_with_path(meta_params)
    return {jax.tree_util.keystr(path, simple=True, separator="/") or "meta_params": x for path, x in leaves}


def path_of(name: str) -> Path:
    """Return the file of a rule that is shipped, or of a zoo, or has this path."""
    if name.startswith(zoo.PREFIX):
        return zoo.find(name)
    return SHIPPED / f"{name}.npz" if name in shipped_rules() else Path(name)


@contextlib.contextmanager
def _opened(name: str) -> Iterator[Archive]:
    try:
        with archives.opened(path_of(str(name))) as archive:
            yield archive
    except FileNotFoundError:
        if name in RULES:
            raise ValueError(f"{name} is a rule without an η to load: frodo.make_rule({name!r}) makes it") from None
        known = f"{', '.join(_known())}, or the path of a rule's file{did_you_mean(name, _known())}"
        raise ValueError(f"{name} is no rule: expected one of {known}") from None


def _known() -> list[str]:
    """Return the names of rules with an η: those that were discovered, and those that are fitted."""
    return [*starts(is_fitted=False), *shipped_rules(), *starts(is_fitted=True)]


def _start(name: str) -> Start | None:
    return (starts(is_fitted=False) | starts(is_fitted=True)).get(name, (None, None))[1]


def _origin(name: str, archive: Archive) -> Origin:
    if RESULT in archive:
        raise ValueError(f"{name} is the file of a result: frodo.load reads it, and its `rule` is the rule")
    for key in (CONFIG, ORIGIN):
        if key not in archive:
            raise ValueError(f"{name} is not the file of a rule: it has no key {key!r}")
    record = archive.json(ORIGIN)
    with files.refusing(f"{name} is not the file of a rule: it has no good {ORIGIN!r}"):
        return files.from_plain(Origin, record)


def _from_others(name: str, archive: Archive, rule: str, other: Any) -> Rule:
    """Make a rule from η as another code writes it; sizes are those of the arrays."""
    with files.refusing(f"{name} holds no rule of {other.OF}"):
        settings = other.sizes(archive)
        config = presets.for_rule("", rule).agent_only().replace(rule=RuleConfig(rule, settings))
        config.validate()
        expected = other.expected_shapes(settings)
    arrays = archive.read_all(expected, f"{other.OF}'s")
    return Rule(name, config, other.to_meta_params(arrays), None)
