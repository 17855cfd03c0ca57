"""What a rule's card is made of: two comparisons of the same suite, that of the baselines, which all cards share, and
the rule's own."""

import hashlib
import os
import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from experiments.comparison import findings, running
from experiments.comparison.comparison import Comparison, check, check_names
from experiments.comparison.findings import Findings, by_method
from experiments.comparison.methods import EVOLVED, FROZEN, OWN_FROZEN, RULE_FLAGS, all_methods, row_of, rule_flags
from experiments.comparison.protocol import Grid, parse_budgets
from experiments.results import statistics
from frodo import files, logs
from frodo.rules import cards, zoo
from frodo.rules.cards import Card, Estimate, Sensitivity
from frodo.rules.entries import OWN
from frodo.rules.files import Rule, get_rule, path_of
from frodo.runs.errors import UsageError
from frodo.runs.provenance import provenance, versions

if TYPE_CHECKING:
    import pandas as pd

SUITE = (  # ten environments of seven kinds, none of which takes long
    *("toy/catch/8x8", "toy/catch/6x11", "toy/grid_world/46", "toy/grid_world/48"),
    *("toy/rule_room/main/held_out/0", "changing/rewards/64000/toy/catch", "gymnax/CartPole-v1", "gymnax/Acrobot-v1"),
    *("gymnax/Breakout-MinAtar", "gymnax/Freeway-MinAtar"),
)
BUDGETS = "changing=200_000,control=200_000,minatar=500_000"
TUNING, RUNS = (100, 101), "runs"  # seeds of tuning; the folder of runs
GRID = Grid((1e-3, 3e-3, 1e-2), (0.01, 0.1), ((16, 16),))


def method_of(name: str, rule: Rule) -> tuple[str, dict[str, str]]:
    """Return the method of a comparison that a rule is, with η as it is where there is one, and the flag of its file.

    Raises:
      UsageError: if a comparison has no such rule, or it needs a file.
    """
    kind, known = rule.config.rule.name, all_methods()
    if name == "disco103":
        return "disco103_frozen", {}
    flags = [flag for flag, own in rule_flags().items() if own == kind] if rule.meta_params is not None else []
    frozen = [x for x, row in known.items() if row.rule in flags and row.regime in (FROZEN, OWN_FROZEN, EVOLVED)]
    method, rules = (frozen[0], {flags[0]: name}) if frozen else (kind, {})
    if method not in known or rule.config.rule.kind == "prediction":
        raise UsageError(f"{name} is a rule of the kind {kind!r}, which a card cannot compare with PPO and IMPALA")
    if known[method].rule in RULE_FLAGS and not rules:
        raise UsageError(f"{name} is a rule of the kind {kind!r} without η: name the file of one, .npz")
    return method, rules


def comparison_of(
    methods: Sequence[str], rules: Mapping[str, str], envs: Sequence[str], budgets: str, seeds: Sequence[int]
) -> tuple[Comparison, list[str]]:
    """Return a comparison of a card, and the arguments of `frodo compare` that say the same."""
    paths = {flag: rules.get(flag, "") for flag in rule_flags()}
    comparison = Comparison(tuple(envs), parse_budgets(budgets), tuple(seeds), TUNING, tuple(methods), paths, GRID)
    arguments = {
        "envs": ",".join(envs),
        "methods": ",".join(methods),
        "budgets": budgets,
        "seeds": ",".join(map(str, seeds)),
        "tuning_seeds": ",".join(map(str, TUNING)),
        "learning_rates": ",".join(f"{x:g}" for x in GRID.learning_rates),
        "entropy_costs": ",".join(f"{x:g}" for x in GRID.entropy_costs),
        "batches": ",".join("{}x{}".format(*x) for x in GRID.batches),
    }
    return comparison, [f"--{name}={text}" for name, text in (arguments | dict(rules)).items()]


def title_of(name: str) -> str:
    """Return what a card calls a rule of this name or path: of a file rule.npz, its folder's name.

    Raises:
      UsageError: if that is no name of a folder.
    """
    path = Path(name.rpartition(":")[2])
    title = path.resolve().parent.name if path.name == zoo.RULE else path.name.removesuffix(".npz")
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]{0,95}", title, re.ASCII) or title == RUNS:
        raise UsageError(f"{name} would have a card called {title!r}, expected letters, digits, _, - and .: rename it")
    return title


def write(
    name: str,
    out: Path,
    executor: Executor,
    command: str,
    *,
    envs: Sequence[str] = SUITE,
    budgets: str = BUDGETS,
    seeds: Sequence[int] = (0, 1, 2, 3, 4),
    licence: str = "",
) -> Card:
    """Run what is not finished, and write the folder of a rule: <out>/<its name>/ with its file, card and page.

    Runs are in <out>/runs/, of another rule, suite, budget or choice of seeds in another folder each.

    Args:
      name: of a rule, or the path of its file.
      out: the folder of cards.
      executor: that the runs are handed to (`frodo.runs.workers`).
      command: that is on the card.
      envs, budgets, seeds: as of `frodo compare`.
      licence: of the rule's file.
    Raises:
      UsageError: before anything is run, if there can be no card; and, as RunError, what `running.run` raises.
    """
    if len(seeds) < 2:
        raise UsageError(f"seeds are {seeds}, expected at least two: a card has intervals")
    rule, title = get_rule(name), title_of(name)
    method, rules = method_of(name, rule)
    suite: dict[str, Any] = dict(envs=envs, budgets=budgets, seeds=seeds)
    comparison, _ = comparison_of((method,), rules, **suite)
    check_names(comparison)
    check(comparison, allow_seen=True)
    has_file = rule.meta_params is not None and rule.config.rule.entry.is_learned and name != "disco103"
    data = path_of(name).read_bytes() if has_file else b""
    how = [*envs, *(str(comparison.budget(env)) for env in envs), *map(str, seeds)]
    baselines = _found("baselines", out, tuple(cards.BASELINES), {}, how, suite, executor)
    if method in cards.BASELINES:
        own = baselines
    else:
        sources = data or _sources(rule.config.rule.name)
        own = _found(title, out, (method,), rules, [*how, name, sources], suite, executor, data)
    shown = own.costs[own.costs["method"] == method]
    card = Card(
        name=title,
        kind=rule.config.rule.name,
        regime=row_of(method).regime,
        num_meta_params=sum(int(np.size(x)) for x in jax.tree.leaves(rule.meta_params)),
        sha256=hashlib.sha256(data).hexdigest() if data else "",
        origin=rule.origin,
        licence=licence,
        version=versions().get("frodo-rl", ""),
        machine=f"{provenance()['device']}, {platform.machine()}",
        command=command,
        budgets=tuple(comparison.budget(env) for env in envs),
        num_seeds=len(seeds),
        cpu_seconds=float(shown["CPU s"].sum() * len(seeds) + shown["CPU s to compile, all seeds"].sum()),
        seen=tuple(own.seen.get(method, ())),
        **estimates(baselines, own, method, envs),
        sensitivity=tuple(sensitivity(own.grid[own.grid["method"] == method])),
    )
    folder = out / title
    cards.from_json(card.to_json(), str(folder / zoo.CARD))  # as others will read it
    if data:
        files.write(folder / zoo.RULE, data)
    files.write(folder / zoo.CARD, card.to_json())
    files.write(folder / zoo.PAGE, cards.to_markdown(card).encode())
    return card


def _found(
    label: str,
    out: Path,
    methods: Sequence[str],
    rules: Mapping[str, str],
    identity: Sequence[str | bytes],
    suite: Mapping[str, Any],
    executor: Executor,
    data: bytes = b"",
) -> Findings:
    """Run a comparison in a folder of its own, from a copy of the rule's file, which may change meanwhile."""
    digest = hashlib.sha256(b"\0".join(x if isinstance(x, bytes) else x.encode() for x in identity)).hexdigest()
    folder = out / RUNS / f"{label}-{digest[:8]}"
    if data:
        files.write(folder / zoo.RULE, data)
        rules = {flag: str(folder / zoo.RULE) for flag in rules}
    comparison, arguments = comparison_of(methods, rules, **suite)
    resume = (folder / "comparison.json").exists()
    logs.note(running.run(comparison, folder, arguments, executor, allow_seen=True, resume=resume))
    return findings.find(comparison, folder, check(comparison, allow_seen=True))


def _sources(kind: str) -> bytes:
    """Return the code of a registered rule: the files that FRODO_PLUGINS names, if the rule is none of the package."""
    paths = [Path(part) for part in os.environ.get("FRODO_PLUGINS", "").split(",") if part]
    return b"".join(path.read_bytes() for path in paths if path.is_file()) if kind not in OWN else b""


def estimates(baselines: Findings, own: Findings, method: str, envs: Sequence[str]) -> dict[str, tuple[Estimate, ...]]:
    """Return the scores of a card and their differences, of all environments in which the method has finished."""
    of = lambda found, names, those: by_method(found.scores[found.scores["settings"] == "tuned"], names, those, "score")
    scores, differences = [], []
    for place in (*envs, cards.ALL):
        those = envs if place == cards.ALL else [place]
        known = {"": x for x in of(own, [method], those).values()}  # noqa: B035
        known |= of(baselines, [x for x in cards.BASELINES if x != method], those)
        for name, x in statistics.aggregate("IQM", known).items() if known else ():
            scores.append(Estimate(place, name, *map(float, x)))
        for name in [x for x in known if x and "" in known]:
            difference = statistics.mean_difference(known[""] - known[name])
            differences.append(Estimate(place, name, *map(float, difference)))
    return {"scores": tuple(scores), "differences": tuple(differences)}


def sensitivity(grid: "pd.DataFrame") -> Iterator[Sensitivity]:
    """Yield the mean score over environments for each value of a setting, with the best other settings in each."""
    settings = [name for name in ("learning_rate", "entropy_cost") if grid[name].nunique() > 1]
    points = grid.groupby(["environment", "learning_rate", "entropy_cost"], dropna=False)["score"].mean()
    for setting in settings:
        best = points.groupby(["environment", setting]).max().groupby(setting).mean()
        yield from (Sensitivity(setting, float(value), float(score)) for value, score in best.items())
