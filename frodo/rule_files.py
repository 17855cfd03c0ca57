"""Rules to learn by: made by name, loaded from a file or the package, saved, and described.

The file of a rule is an .npz archive with η and, inside, the settings of the agents that it was discovered with, where,
and at what cost. Those of earlier versions are read, too, and so are files of the public DiscoRL code, which hold η
alone.
"""

import contextlib
import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import jax
import numpy as np

from agents.rule import UpdateRule
from agents.types import Params
from agents.validation import check_choice, check_type
from frodo import archives, disco103_weights, earlier_versions, files, population_presets, presets
from frodo.archives import Archive
from frodo.config import AgentConfig
from frodo.fitted import RULE_OF, fitted_meta_params
from frodo.rules import RuleConfig, make_update_rule
from meta import disco103
from meta.disco import DiscoConfig
from meta.hand_made import TARGETS

Config = TypeVar("Config", bound=AgentConfig)
CONFIG, ORIGIN = "config.json", "origin.json"  # keys of what is there as bytes
RESULT = "result.json"  # the same, in the file of a result (`results.py`)
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
        if self.name in shipped_rules():
            return (SHIPPED / f"{self.name}.md").read_text(encoding="utf-8")
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
    with _opened(name, path) as archive:
        if CONFIG not in archive and set(disco103.expected_shapes()) <= set(archive):
            return _from_disco_rl(name, archive)
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
            expected = _shapes_of_eta(config.rule)
        found = _checked(name, archive.read_all(_described(expected), "its rule", (CONFIG, ORIGIN)))
    meta_params = {module: {x: found[f"{module}/{x}"] for x in own} for module, own in expected.items()}
    return Rule(name, config, meta_params, origin)


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
    with _opened(name, SHIPPED / f"{name}.npz" if name in shipped_rules() else Path(name)) as archive:
        return _origin(name, archive)


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
    theirs, ours = (files.plain(_flat(rule)) for rule in (loaded.config.rule, config))
    is_other = any(theirs.get(key) != ours.get(key) for key in OF_ETA)
    if is_other or _shapes_of_eta(loaded.config.rule) != _shapes_of_eta(config):
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


@contextlib.contextmanager
def _opened(name: str, path: Path) -> Iterator[Archive]:
    try:
        with archives.opened(path) as archive:
            yield archive
    except FileNotFoundError:
        known = ", ".join([PUBLISHED, *shipped_rules(), *RULE_OF])
        raise ValueError(f"{name} is no rule: expected one of {known}, or the path of a rule's file") from None


def _origin(name: str, archive: Archive) -> Origin:
    if RESULT in archive:
        raise ValueError(f"{name} is the file of a result: frodo.load reads it, and its `rule` is the rule")
    for key in (CONFIG, ORIGIN):
        if key not in archive:
            raise ValueError(f"{name} is not the file of a rule: it has no key {key!r}")
    record = archive.json(ORIGIN)
    with files.refusing(f"{name} is not the file of a rule: it has no good {ORIGIN!r}"):
        return files.from_plain(Origin, record)


def _shapes_of_eta(config: RuleConfig) -> Any:
    return jax.eval_shape(lambda: make_update_rule(config).random_meta_params(jax.random.key(0), 2))


def _described(shapes: Any) -> dict[str, str]:
    return {f"{module}/{x}": f"{s.dtype}{list(s.shape)}" for module, own in shapes.items() for x, s in own.items()}


def _checked(name: str, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    for key, x in arrays.items():
        if not np.all(np.isfinite(x)):
            raise ValueError(f"{name}: {key!r} has entries that are not finite")
    return arrays


def _from_disco_rl(name: str, archive: Archive) -> Rule:
    """Make a rule from η as the public DiscoRL code writes it; sizes are those of the arrays."""
    with files.refusing(f"{name} holds no rule of the public DiscoRL code"):
        settings = disco103.sizes(archive)
        config = presets.disco("").agent_only().replace(rule=RuleConfig("disco", settings))
        config.validate()
        expected = {key: f"float32{list(shape)}" for key, shape in disco103.expected_shapes(settings).items()}
    arrays = _checked(name, archive.read_all(expected, "the public DiscoRL code's"))
    return Rule(name, config, disco103.to_meta_params(arrays), None)
