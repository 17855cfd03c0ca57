"""What `experiments.compare` compares: methods, each a choice of targets and of a regime, in environments.

A cell is a method in an environment with all seeds: a run folder <out>/cells/<env>/<method>/.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from experiments.results.scores import BSUITE_CATCH, reference_scores
from experiments.runs import settings
from experiments.runs.errors import UsageError, caused_by
from frodo import presets
from frodo.config import OnlineConfig
from frodo.rule_files import load_origin, load_rule
from toy_envs import names

DISCO_BATCH = 8  # environments of Disco103's agents: four times the public code's, with as many updates less


class Method(NamedTuple):
    """One way to have an objective.

    Attributes:
      label: its name for people.
      targets, regime: its place in the matrix.
      rule: where η comes from: "" (none, or random), "disco103", or the flag that names a rule.
      configure: environment, rule -> settings.
      frozen: where it learns η, the method with the same agent that does not: of FRODO's it has no meta-network.
    """

    label: str
    targets: str
    regime: str
    rule: str
    configure: Callable[[str, str], OnlineConfig]
    frozen: str = ""


def _hand_made(name: str) -> Callable[[str, str], OnlineConfig]:
    return lambda env, rule: settings.configure(env, name)


def _with_batch(config: OnlineConfig) -> OnlineConfig:
    """Return settings with fewer, larger iterations, for the published rule's agent in small environments."""
    return config.replace(batch_size=max(config.batch_size, DISCO_BATCH))


def _adapted(env: str, rule: str) -> OnlineConfig:
    return _with_batch(settings.configure(env, "", rule))


def _disco_from_random(env: str, rule: str) -> OnlineConfig:
    """Return an agent and a meta-network as `discover` has them, for the online regime."""
    agent = settings.population("disco", (env,)).agent_only()
    return OnlineConfig(**vars(agent), env=env).replace(max_abs_reward=presets.for_environment(env).max_abs_reward)


def _frozen(env: str, rule: str) -> OnlineConfig:
    return _with_batch(settings.configure_frozen(env, rule))


NONE, RANDOM, FROZEN, ADAPTED = "no η", "online, from random η", "population, frozen", "population, then online"
HAND_MADE, SCALAR, DISCO, PUBLISHED = "hand-made", "scalar G", "π, y, z", "π, y, z of Disco103"
METHODS = {
    "impala": Method("IMPALA", HAND_MADE, NONE, "", _hand_made("impala")),
    "a2c": Method("A2C", HAND_MADE, NONE, "", _hand_made("a2c")),
    "frodo": Method("FRODO", SCALAR, RANDOM, "", _hand_made("frodo"), "impala"),
    "scalar_frozen": Method("discovered scalar rule, frozen", SCALAR, FROZEN, "scalar_rule", _frozen),
    "scalar_adapted": Method(
        "discovered scalar rule, online", SCALAR, ADAPTED, "scalar_rule", _adapted, "scalar_frozen"
    ),
    "disco": Method("π, y, z online, from random η", DISCO, RANDOM, "", _disco_from_random, "disco_frozen"),
    "disco_frozen": Method("discovered π, y, z rule, frozen", DISCO, FROZEN, "disco_rule", _frozen),
    "disco_adapted": Method("discovered π, y, z rule, online", DISCO, ADAPTED, "disco_rule", _adapted, "disco_frozen"),
    "disco103_frozen": Method("Disco103, frozen", PUBLISHED, FROZEN, "disco103", _frozen),
    "disco103_adapted": Method("Disco103, online", PUBLISHED, ADAPTED, "disco103", _adapted, "disco103_frozen"),
}


class Discovery(NamedTuple):
    """How --discover makes the rule of a flag: by `experiments.discover` with a preset, in environments of its own."""

    rule: str
    envs: str
    meta_steps: int


DISCOVERIES = {
    "scalar_rule": Discovery(
        "frodo", "toy/catch/5x5,toy/catch/5x5,toy/catch/9x9,toy/catch/9x9,toy/grid_world/0-3", 3000
    ),
    "disco_rule": Discovery("disco", "toy/catch/5x5,toy/catch/5x5", 1600),
}


@dataclasses.dataclass(frozen=True)
class Comparison:
    """What is compared."""

    envs: tuple[str, ...]
    budget: int  # environment steps of each agent
    seeds: tuple[int, ...]
    methods: tuple[str, ...]
    files: Mapping[str, str]  # rules, of the flags scalar_rule and disco_rule: a name or a path; "" for none

    def rule(self, method: str) -> str | None:
        """Return the source of a method's η: a rule's name or path, "" for none, None if it is missing."""
        name = METHODS[method].rule
        return self.files[name] or None if name in self.files else name

    def missing(self, method: str) -> str:
        """Say why a method cannot be run, or ""."""
        return f"no --{METHODS[method].rule}" if self.rule(method) is None else ""

    def cells(self) -> list[tuple[str, str]]:
        """Return environment and method of what can be run."""
        return [(env, method) for env in self.envs for method in self.methods if not self.missing(method)]

    def configure(self, env: str, method: str) -> OnlineConfig:
        return METHODS[method].configure(env, self.rule(method) or "")


def cell_folder(out: Path, env: str, method: str) -> Path:
    return out / "cells" / env.replace("/", "_") / method


def check_names(comparison: Comparison) -> None:
    """Raise a UsageError where a method or an environment, by whatever name, is there twice."""
    known: dict[object, str] = {}
    for name, identity in [(x, x) for x in comparison.methods] + [(env, _identity(env)) for env in comparison.envs]:
        if identity in known:
            same = f", which is {known[identity]}" if known[identity] != name else ""
            raise UsageError(f"{name}{same} is to be compared twice: give it once")
        known[identity] = name


def check(comparison: Comparison, allow_seen: bool) -> dict[str, list[str]]:
    """Refuse what cannot be compared, before anything is run.

    Returns:
      method -> the environments that its rule was discovered in.
    Raises:
      UsageError: naming the first environment without scores to normalise by, rule file that is none or has other
        targets, or rule that was discovered in an environment that it is to be evaluated in, unless `allow_seen`.
    """
    for env in comparison.envs:
        reference_scores(env)
    for flag, discovery in DISCOVERIES.items():
        if path := comparison.files[flag]:
            with caused_by(f"--{flag}"):
                found = load_rule(path).config.rule.name
            if found != discovery.rule:
                raise UsageError(f"--{flag}={path} holds a rule named {found}, expected {discovery.rule}")
    seen: dict[str, list[str]] = {}
    for method in comparison.methods:
        if rule := comparison.rule(method):
            seen[method] = refuse_seen(comparison, rule, load_origin(rule).envs, allow_seen)
    for env, method in comparison.cells():
        comparison.configure(env, method).validate()
    return {method: envs for method, envs in seen.items() if envs}


def refuse_seen(comparison: Comparison, rule: str, known: Sequence[str], allow_seen: bool) -> list[str]:
    """Return the environments that a rule was discovered in and is to be evaluated in: a UsageError, unless allowed."""
    suites = tuple(env[:-1] for env in known if env.endswith("/*"))
    identities = {_identity(env) for env in known}
    seen = [env for env in comparison.envs if _identity(env) in identities or (suites and env.startswith(suites))]
    if seen and not allow_seen:
        raise UsageError(
            f"{rule} was discovered in {seen[0]}, which it would be evaluated in: leave the environment out, or say "
            "--allow_seen, which the report then marks"
        )
    return seen


def _identity(env: str) -> object:
    """What two names of one environment share: toy/catch is toy/catch/6x11, and bsuite's ids of Catch are seeds."""
    suite, _, name = env.partition("/")
    if suite == "toy":
        return names.make(name) or env
    if suite == "bsuite":
        return BSUITE_CATCH if name.startswith("catch/") else (suite, name.partition("/")[0])
    return env.lower()
