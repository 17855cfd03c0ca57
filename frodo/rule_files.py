"""Rules to learn by: made by name, loaded from a file or the package, saved, and described.

The file of a rule is an .npz archive with η and, inside, the settings of the agents that it was discovered with, where,
and at what cost. Those of earlier versions are read, too, and so are files of the public DiscoRL code, which hold η
alone.
"""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import jax
import numpy as np

from agents.rule import UpdateRule
from agents.types import Params
from agents.validation import check_choice, check_type
from frodo import disco103_weights, earlier_versions, files, population_presets, presets
from frodo.config import AgentConfig
from frodo.fitted import RULE_OF, fitted_meta_params
from frodo.rules import RuleConfig, make_update_rule
from meta import disco103
from meta.disco import DiscoConfig
from meta.hand_made import TARGETS

Config = TypeVar("Config", bound=AgentConfig)
CONFIG, ORIGIN = "config.json", "origin.json"  # keys of what is there as bytes
SHIPPED = Path(__file__).with_name("data")  # of each rule <name>.npz, and its card, <name>.md
PUBLISHED = "disco103"


class Origin(NamedTuple):
    """Where a rule was discovered, and what it cost."""

    envs: tuple[str, ...]  # of the agents; a name that ends in /* stands for a whole suite
    env_steps: int | None  # of all agents together; None where it is not known
    cpu_seconds: float | None
    note: str = ""


EVOLVED_LOSSES = Origin((), None, None, "searches of some 72 hours on 300 CPUs (Co-Reyes et al. 2021)")
DISCO103 = Origin(
    ("atari/*", "procgen/*", "dmlab/*"),
    None,
    None,
    "206 agents on 2,048 TPUv3 cores for 60 hours (Oh et al. 2025)",
)


@dataclasses.dataclass(frozen=True)
class Rule:
    """A rule to learn by.

    Attributes:
      name: the name that it was made or loaded by.
      config: settings of agents that learn by it; `config.rule` holds its own.
      meta_params: η; None where there is none yet: it is random then, for a hand-made rule it is {}.
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
        card = SHIPPED / f"{self.name}.md"
        if card.is_file():
            return card.read_text(encoding="utf-8")
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
    """Make a rule by its name in `RULES`, with its own settings; a learned one has a random η.

    Raises:
      ValueError: naming what is not known, its value and what is.
    """
    rule = RuleConfig(name).replace(**settings)
    rule.validate()
    return Rule(name, presets.for_rule("", name).agent_only().replace(rule=rule))


def fit_rule(target: str = "vtrace", **settings: Any) -> Rule:
    """Make a rule whose targets are hand-made ones at first, to be learned further, with a fitted η.

    Args:
      target: "vtrace", "lambda_return" or "n_step_return", of FRODO's rule; "cmpo", of DiscoRL's (π̂ is fitted, and ŷ
        and ẑ are at random).
      **settings: of the rule, as of `make_rule`, that replace those of `presets.fitted` or `population_presets.small`.
    Raises:
      ValueError: naming the target if there is none, a setting that is not known, or the inputs that are missing.
    """
    rule = _to_be_fitted(target, **settings)
    return dataclasses.replace(rule, meta_params=fitted_meta_params(target, rule.config.rule))


def _to_be_fitted(target: str, **settings: Any) -> Rule:
    check_choice("target", target, RULE_OF)
    preset = presets.fitted("") if RULE_OF[target] == "frodo" else population_presets.small(RULE_OF[target])
    config = preset.agent_only()
    config = config.replace(rule=config.rule.replace(**settings))
    config.validate()
    return Rule(target, config, None, _origin_of_fit(target))


def _origin_of_fit(target: str) -> Origin:
    return Origin((), 0, None, f"fitted to {target} on made-up trajectories")


def shipped_rules() -> list[str]:
    """Return the names of the discovered rules that are part of the package."""
    return sorted(path.stem for path in SHIPPED.glob("*.npz"))


def load_rule(name: Path | str) -> Rule:
    """Load a discovered rule, or one that is fitted to a hand-made target.

    Args:
      name: "disco103" for the published one (`disco103_weights.find` says where its weights come from), one of
        `shipped_rules()`, "vtrace" or another target of `fit_rule`, or the path of a file: one of this package's, or of
        the public DiscoRL code's.
    Raises:
      ValueError: if there is no such rule, or the file is not a rule's: naming it and its first wrong key.
    """
    check_type("name", name, str | Path, "a rule's name, or the path of its file")
    name = str(name)
    if name == PUBLISHED:
        arrays = disco103_weights.read(disco103_weights.find())
        return Rule(name, presets.disco("").agent_only(), disco103.to_meta_params(arrays), DISCO103)
    if name in RULE_OF:
        return fit_rule(name)
    path = SHIPPED / f"{name}.npz" if name in shipped_rules() else Path(name)
    arrays = _read(name, path)
    if CONFIG not in arrays and set(disco103.expected_shapes()) <= set(arrays):
        return _from_disco_rl(name, arrays)
    origin = _origin(name, arrays)
    try:
        record = json.loads(arrays.pop(CONFIG).tobytes())
        written = record.pop("format", None)
        if written not in (None, earlier_versions.FORMAT):
            raise ValueError(f"format is {written}, this version reads those up to {earlier_versions.FORMAT}")
        config = files.from_plain(AgentConfig, record if written else earlier_versions.convert(record))
        config.validate()
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{name} has a configuration that this version does not know: {error}") from None
    del arrays[ORIGIN]
    return Rule(name, config, _meta_params(name, config.rule, arrays), origin)


def load_settings(name: str) -> Rule:
    """Load a rule as `load_rule` does, but one that is fitted without η: that is fitted with the final settings."""
    return _to_be_fitted(name) if name in RULE_OF else load_rule(name)


def get_rule(rule: Rule | str) -> Rule:
    """Return the rule itself, or that of a name: loaded if it is a discovered rule or an .npz file, else made.

    Raises:
      ValueError: if it is neither.
    """
    if isinstance(rule, Rule):
        return rule
    check_type("rule", rule, str, "a Rule, or a name such as 'frodo'")
    is_there = rule in (PUBLISHED, *shipped_rules(), *RULE_OF) or Path(rule).suffix == ".npz"
    return load_rule(rule) if is_there else make_rule(rule)


def load_origin(name: str) -> Origin:
    """Return where a rule comes from, without its η; errors are those of `load_rule`."""
    if name == PUBLISHED:
        return DISCO103
    if name in RULE_OF:
        return _origin_of_fit(name)
    return _origin(name, _read(name, SHIPPED / f"{name}.npz" if name in shipped_rules() else Path(name)))


def config_for(rule: Rule, preset: Config) -> Config:
    """Return the settings of an agent that learns by a rule, in the environment of a preset.

    For the published rule, all settings but the rule's are the preset's. For any other rule, the preset gives the
    environment, the choice of its tasks, the clipping of rewards and, for images, the network, for trials the memory.
    """
    if rule.name == PUBLISHED:
        skips = isinstance(preset.rule.settings, DiscoConfig) and preset.rule.settings.skips_first_steps
        return preset.replace(rule=RuleConfig("disco", DiscoConfig(skips_first_steps=skips)))
    own = {field.name: getattr(rule.config, field.name) for field in dataclasses.fields(AgentConfig)}
    of_run = {name: getattr(preset, name) for name in ("max_abs_reward", "curriculum", "distillation")}
    config = preset.replace(**own | of_run)
    if presets.is_image_torso(preset.network):
        return presets.with_images(config, preset.network)
    return presets.with_memory(config, preset)


def population_config(rule: Rule) -> AgentConfig:
    """Return the settings of the agents of a population that goes on from a rule: the rule's own, on uniform tasks.

    From one that is fitted to a scalar target, η moves in small steps, and the θ of each update acts its trajectory:
    with those of `presets.fitted` a population lost what the fit can do (docs/results.md).
    """
    config = rule.config.without_run()
    if rule.name not in TARGETS:
        return config
    small = dataclasses.replace(config.meta_optimizer, learning_rate=2e-5)
    return config.replace(is_acting_interleaved=True, meta_optimizer=small)


def load_meta_params(name: str, config: RuleConfig) -> Params:
    """Load the η of a discovered rule for agents with a rule of this configuration.

    Raises:
      ValueError: as `load_rule`, and if the rule is of another configuration.
    """
    if name in RULE_OF:
        return fitted_meta_params(name, config)
    loaded = load_rule(name)
    shapes = lambda rule: jax.eval_shape(
        lambda key: make_update_rule(rule).random_meta_params(key, 2), jax.random.key(0)
    )
    theirs, ours = (files.plain(_flat(rule)) for rule in (loaded.config.rule, config))
    is_other = any(theirs.get(key) != ours.get(key) for key in OF_ETA)
    if is_other or shapes(loaded.config.rule) != shapes(config):
        differing = {key: (theirs.get(key), ours[key]) for key in ours if theirs.get(key) != ours[key]}
        text = "; ".join(f"{key} is {a} there and {b} here" for key, (a, b) in differing.items())
        raise ValueError(f"{name} is a rule of another configuration: {text}")
    return loaded.meta_params


OF_ETA = (  # settings without which η means nothing
    "name",
    "kind",
    "inputs",
    "is_relative",
    "base",
    "without",
    "core",
    "formula",
    "ends",
)


def _flat(config: RuleConfig) -> dict[str, Any]:
    return {"name": config.name} | dataclasses.asdict(config.settings)


def _arrays(rule: Rule) -> dict[str, np.ndarray]:
    if rule.meta_params is None or not (rule.meta_params or rule.config.rule.entry.is_learned):
        raise ValueError(f"the rule {rule.name!r} has no meta-parameters, expected one that was discovered or loaded")
    return {f"{module}/{x}": np.asarray(w) for module, own in rule.meta_params.items() for x, w in own.items()}


def _read(name: str, path: Path) -> dict[str, np.ndarray]:
    try:
        return files.read_arrays(path)
    except FileNotFoundError:
        known = ", ".join([PUBLISHED, *shipped_rules(), *RULE_OF])
        raise ValueError(f"{name} is no rule: expected one of {known}, or the path of a rule's file") from None


def _origin(name: str, arrays: Mapping[str, np.ndarray]) -> Origin:
    for key in (CONFIG, ORIGIN):
        if key not in arrays:
            raise ValueError(f"{name} is not the file of a rule: it has no key {key!r}")
    try:
        record = json.loads(arrays[ORIGIN].tobytes())
        return Origin(**(record | {"envs": tuple(record["envs"])}))
    except (ValueError, TypeError, KeyError):
        raise ValueError(f"{name} is not the file of a rule: it has no good {ORIGIN!r}") from None


def _meta_params(name: str, config: RuleConfig, arrays: Mapping[str, np.ndarray]) -> Params:
    rule = make_update_rule(config)
    shapes = jax.eval_shape(lambda key: rule.random_meta_params(key, 2), jax.random.key(0))
    expected = {f"{module}/{x}": shape.shape for module, own in shapes.items() for x, shape in own.items()}
    disco103.check_arrays(name, arrays, expected, "its rule")
    for key in sorted(expected):
        if not np.all(np.isfinite(arrays[key])):
            raise ValueError(f"{name}: {key!r} has entries that are not finite")
    return {module: {x: arrays[f"{module}/{x}"] for x in own} for module, own in shapes.items()}


def _from_disco_rl(name: str, arrays: dict[str, np.ndarray]) -> Rule:
    """Make a rule from η as the public DiscoRL code writes it; sizes are those of the arrays."""
    settings = disco103.sizes(arrays)
    disco103.check_arrays(name, arrays, disco103.expected_shapes(settings), "the public DiscoRL code's")
    config = presets.disco("").agent_only().replace(rule=RuleConfig("disco", settings))
    return Rule(name, config, disco103.to_meta_params(arrays), None)
