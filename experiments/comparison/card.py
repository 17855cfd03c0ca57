"""What a rule's card is made of: two comparisons of the same suite, that of the baselines, which all cards share, and
the rule's own."""

import hashlib
import platform
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import TYPE_CHECKING

import jax
import numpy as np

from experiments.comparison import findings, running
from experiments.comparison.comparison import Comparison, check
from experiments.comparison.findings import Findings, by_method
from experiments.comparison.methods import EVOLVED, FROZEN, OWN_FROZEN, all_methods, rule_flags
from experiments.comparison.protocol import Grid, parse_budgets
from experiments.results import statistics
from frodo import files, logs
from frodo.rules import cards, zoo
from frodo.rules.cards import Card, Estimate, Sensitivity
from frodo.rules.files import Rule, get_rule, path_of
from frodo.runs.provenance import provenance, versions

if TYPE_CHECKING:
    import pandas as pd

SUITE = (  # ten environments of seven kinds, none of which takes long
    *("toy/catch/8x8", "toy/catch/6x11", "toy/grid_world/46", "toy/grid_world/48"),
    *("toy/rule_room/main/held_out/0", "changing/rewards/64000/toy/catch", "gymnax/CartPole-v1", "gymnax/Acrobot-v1"),
    *("gymnax/Breakout-MinAtar", "gymnax/Freeway-MinAtar"),
)
BUDGETS = "changing=200_000,control=200_000,minatar=500_000"
GRID = Grid((1e-3, 3e-3, 1e-2), (0.01, 0.1), ((16, 16),))


def method_of(name: str, rule: Rule) -> tuple[str, dict[str, str]]:
    """Return the method of a comparison that a rule is, with η as it is, and the flag that names its file."""
    kind = rule.config.rule.name
    if not rule.config.rule.entry.is_learned or rule.meta_params is None:
        return kind, {}
    if name == "disco103":
        return "disco103_frozen", {}
    (flag,) = (flag for flag, own in rule_flags().items() if own == kind)
    known = {method: x for method, x in all_methods().items() if x.rule == flag}
    return next(m for m, x in known.items() if x.regime in (FROZEN, OWN_FROZEN, EVOLVED)), {flag: name}


def comparison_of(
    methods: Sequence[str], rules: dict[str, str], envs: Sequence[str], budgets: str, seeds: Sequence[int]
) -> tuple[Comparison, list[str]]:
    """Return a comparison of a card, and the arguments of `frodo compare` that say the same."""
    paths = {flag: rules.get(flag, "") for flag in rule_flags()}
    tuning = (100, 101)
    comparison = Comparison(tuple(envs), parse_budgets(budgets), tuple(seeds), tuning, tuple(methods), paths, GRID)
    numbers = lambda values: ",".join(f"{x:g}" for x in values)
    arguments = {
        "envs": ",".join(envs),
        "methods": ",".join(methods),
        "budgets": budgets,
        "seeds": numbers(seeds),
        "tuning_seeds": numbers(tuning),
        "learning_rates": numbers(GRID.learning_rates),
        "entropy_costs": numbers(GRID.entropy_costs),
        "batches": ",".join("{}x{}".format(*x) for x in GRID.batches),
    }
    return comparison, [f"--{name}={text}" for name, text in (arguments | rules).items()]


def title_of(name: str) -> str:
    """Return what a card calls a rule of this name or path: of a file rule.npz, its folder's name."""
    path = Path(name.rpartition(":")[2])
    return path.resolve().parent.name if path.name == zoo.RULE else path.name.removesuffix(".npz")


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

    Args:
      name: of a rule, or the path of its file.
      out: the folder of cards; runs are in <out>/runs/.
      executor: that the runs are handed to (`frodo.runs.workers`).
      command: that is on the card.
      envs, budgets, seeds: as of `frodo compare`.
      licence: of the rule's file.
    Raises:
      UsageError, RunError: as `running.run`.
    """
    rule, title = get_rule(name), title_of(name)
    method, rules = method_of(name, rule)
    of_baselines = tuple(x for x in cards.BASELINES if x != method)
    found = []
    for label, methods, own_rules in (("baselines", of_baselines, {}), (title, (method,), rules)):
        comparison, arguments = comparison_of(methods, own_rules, envs, budgets, seeds)
        folder = out / "runs" / label
        how = dict(allow_seen=True, resume=(folder / "comparison.json").exists())
        logs.note(running.run(comparison, folder, arguments, executor, **how))
        found.append(findings.find(comparison, folder, check(comparison, allow_seen=True)))
    baselines, own = found
    costs = own.costs
    card = Card(
        name=title,
        kind=rule.config.rule.name,
        num_meta_params=sum(int(np.size(x)) for x in jax.tree.leaves(rule.meta_params)),
        sha256=digest_of(name, rule),
        origin=rule.origin,
        licence=licence,
        version=versions().get("frodo-rl", ""),
        machine=f"{provenance()['device']}, {platform.machine()}",
        command=command,
        num_seeds=len(seeds),
        cpu_seconds=float(costs["CPU s"].sum() * len(seeds) + costs["CPU s to compile, all seeds"].sum()),
        seen=tuple(own.seen.get(method, ())),
        **estimates(baselines, own, method, envs),
        sensitivity=tuple(sensitivity(own.grid)),
    )
    folder = out / title
    if card.sha256:
        files.write(folder / zoo.RULE, path_of(name).read_bytes())
    files.write(folder / zoo.CARD, card.to_json())
    files.write(folder / zoo.PAGE, cards.to_markdown(card).encode())
    return card


def digest_of(name: str, rule: Rule) -> str:
    """Return the SHA-256 of a rule's file; "" where it has none, or is published elsewhere."""
    is_file = rule.config.rule.entry.is_learned and rule.meta_params is not None and name != "disco103"
    return hashlib.sha256(path_of(name).read_bytes()).hexdigest() if is_file else ""


def estimates(baselines: Findings, own: Findings, method: str, envs: Sequence[str]) -> dict[str, tuple[Estimate, ...]]:
    """Return the scores of a card and their differences, of all environments in which the method has finished."""
    tuned = [found.scores[found.scores["settings"] == "tuned"] for found in (own, baselines)]
    scores, differences = [], []
    for place in (*envs, cards.ALL):
        those = envs if place == cards.ALL else [place]
        known = by_method(tuned[0], [method], those, "score") | by_method(tuned[1], [*cards.BASELINES], those, "score")
        for name, x in statistics.aggregate("IQM", known).items() if known else ():
            scores.append(Estimate(place, "" if name == method else name, *map(float, x)))
        for name in [x for x in known if x != method and method in known]:
            difference = statistics.mean_difference(known[method] - known[name])
            differences.append(Estimate(place, name, *map(float, difference)))
    return {"scores": tuple(scores), "differences": tuple(differences)}


def sensitivity(grid: "pd.DataFrame") -> Iterator[Sensitivity]:
    """Yield the mean score over environments for each value of a setting, with the best other settings in each."""
    settings = [name for name in ("learning_rate", "entropy_cost") if grid[name].nunique() > 1]
    points = grid.groupby(["environment", "learning_rate", "entropy_cost"], dropna=False)["score"].mean()
    for setting in settings:
        best = points.groupby(["environment", setting]).max().groupby(setting).mean()
        yield from (Sensitivity(setting, float(value), float(score)) for value, score in best.items())
