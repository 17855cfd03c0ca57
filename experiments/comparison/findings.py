"""The numbers of a comparison: what is in its CSV files, and the tables that its page makes of them."""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from experiments.comparison import cells
from experiments.comparison.cells import Cell, Choice
from experiments.comparison.comparison import Comparison
from experiments.comparison.methods import BASELINES, row_of
from experiments.comparison.protocol import ALL, family, groups_of
from experiments.results import reading, statistics
from frodo.regimes.scores import normalised
from frodo.settings.registry import RULES

if TYPE_CHECKING:  # what reads a comparison imports it, not what runs one of its cells
    import pandas as pd

AGGREGATES = list(statistics.AGGREGATES)
SCORES = ("environment", "family", "method", "settings", "seed", "return", "score", "is_seen")
ESTIMATES = ("settings", "environments", "method", "statistic", *statistics.Estimate._fields, "is_seen")
SETTINGS = ("learning_rate", "entropy_cost", "environments", "steps")
GRID = ("environment", "method", *SETTINGS, "seed", "return", "score", "is_tuned", "is_one")


class Findings(NamedTuple):
    """The numbers of a comparison.

    Attributes:
      choices: cell -> settings, of the cells whose tuning is finished.
      runs: cell -> its run at its best settings, of the finished ones.
      scores: a row of `SCORES` for each seed; the return is random play's where parameters were not finite at the end.
      statistics: a row of `ESTIMATES` for each; "environments" is an environment, a family or ALL.
      costs: a row for each cell at its best settings.
      grid: a row of `GRID` for each run that settings were chosen by.
      seen: method -> environments that its rule was discovered in.
      labels: method -> its name, marked where its rule has seen an environment.
    """

    choices: Mapping[Cell, Choice]
    runs: Mapping[Cell, reading.Results]
    scores: "pd.DataFrame"
    statistics: "pd.DataFrame"
    costs: "pd.DataFrame"
    grid: "pd.DataFrame"
    seen: Mapping[str, Sequence[str]]
    labels: Mapping[str, str]


def find(comparison: Comparison, out: Path, seen: Mapping[str, Sequence[str]]) -> Findings:
    """Return the numbers of the cells that are finished; arguments and errors are those of `report.write`."""
    import pandas as pd

    choices = cells.choices(comparison, out)
    runs = {
        which: {
            cell: cells.read(comparison, out, *cell, point=getattr(choice, which))
            for cell, choice in choices.items()
            if cells.is_shown(out, *cell, choice=choice)
        }
        for which in Choice._fields
    }
    rows = [
        (env, family(env), method, which, seed, value, float(normalised(env, value)), env in seen.get(method, ()))
        for which, own in runs.items()
        for (env, method), run in own.items()
        for seed, value in zip(comparison.seeds, cells.finals(env, cells.returns_of(run)).tolist(), strict=True)
    ]
    grid = [
        (env, method, point.learning_rate, point.entropy_cost, *point.batch, seed, value)
        + (float(normalised(env, cells.finals(env, np.array(value)))), point == choice.tuned, point == choice.one)
        for (env, method), choice in choices.items()
        for point, values in cells.tuning_returns(comparison, out, env, method).items()
        for seed, value in zip(comparison.tuning_seeds, values.tolist(), strict=True)
    ]
    scores = pd.DataFrame(rows, columns=SCORES)
    return Findings(
        choices,
        runs["tuned"],
        scores,
        pd.DataFrame(_statistics(comparison, scores, seen), columns=ESTIMATES),
        pd.DataFrame(_costs(comparison, runs["tuned"])),
        pd.DataFrame(grid, columns=GRID),
        seen,
        {method: row_of(method).label + " *" * (method in seen) for method in comparison.methods},
    )


def by_method(scores: "pd.DataFrame", methods: Sequence[str], envs: Sequence[str], which: str) -> dict[str, np.ndarray]:
    """Return "score" or "return" [num_seeds, len(envs)] of the methods that have all cells of these environments."""
    wide = scores.pivot(index=["method", "seed"], columns="environment", values=which).reindex(columns=envs)
    arrays = {m: np.array(wide.loc[m], float, order="C") for m in methods if m in wide.index}
    return {method: values for method, values in arrays.items() if np.isfinite(values).all()}


def pivot(
    found: Findings, columns: str, values: Sequence[str], text: Callable[[Any], Any], **of: str
) -> "pd.DataFrame":
    """Return a table of statistics: a row for each method that has one, under its label, None where there is none.

    Args:
      columns: what stands side by side, one of the columns of the statistics.
      values: which of them, in order.
      text: makes an entry of a row.
      of: what the others are.
    """
    own = found.statistics
    for name, value in of.items():
        own = own[own[name] == value]
    own = own[own[columns].isin(values)]
    wide = own.assign(text=[text(row) for row in own.itertuples()]).pivot(
        index="method", columns=columns, values="text"
    )
    return wide.reindex([m for m in found.labels if m in wide.index], columns=values).rename(index=found.labels)


def interval(estimate: Any) -> str:
    """Return the text of what has a value, from low to high."""
    return f"{estimate.value:.2f} [{estimate.low:.2f}, {estimate.high:.2f}]"


def signed(estimate: Any) -> str:
    """Return the text of a difference, marked where its interval excludes 0."""
    text = f"{estimate.value:+.2f} [{estimate.low:+.2f}, {estimate.high:+.2f}]"
    return text + (" ▲" if estimate.low > 0 else " ▼" if estimate.high < 0 else "")


def _statistics(comparison: Comparison, all_scores: "pd.DataFrame", seen: Mapping) -> Iterable[tuple]:
    """Return the rows of `ESTIMATES`: of returns by environment, of scores by family and over all, of differences."""
    groups = {name: [comparison.envs[i] for i in own] for name, own in groups_of(comparison.envs).items()}
    for which, own in all_scores.groupby("settings", sort=False):
        for place, envs in ({env: [env] for env in comparison.envs} | groups).items():
            scores = by_method(own, comparison.methods, envs, "score")
            found: dict[str, Mapping[str, statistics.Estimate]] = {}
            if place in groups:
                found["IQM"] = statistics.aggregate("IQM", scores)
            elif which == "tuned":
                found["mean return"] = statistics.means(by_method(own, comparison.methods, envs, "return"))
            if (which, place) == ("tuned", ALL):
                found |= {name: statistics.aggregate(name, scores) for name in AGGREGATES[1:]}
                for over in (over for over in BASELINES if over in scores and len(scores) > 1):
                    found[f"probability of improvement over {over}"] = statistics.improvements(scores, over)
            for over, pairs in _pairs(scores).items():
                differences = {m: statistics.mean_difference(scores[m] - scores[over]) for m in pairs}
                found[f"difference to {over}"] = differences
            for name, estimates in found.items():
                for method, estimate in estimates.items():
                    yield which, place, method, name, *map(float, estimate), method in seen


def _pairs(methods: Collection[str]) -> dict[str, list[str]]:
    """Return whose difference to what is shown: all methods' to the baselines, and of those that learn η to frozen."""
    pairs = {
        over: [m for m in methods if m != over and (over in BASELINES or row_of(m).frozen == over)]
        for over in dict.fromkeys((*BASELINES, *(row_of(method).frozen for method in methods)))
        if over in methods
    }
    return {over: own for over, own in pairs.items() if own}


def _costs(comparison: Comparison, runs: Mapping[Cell, reading.Results]) -> list[dict[str, Any]]:
    """Return for each cell the cost of η before the lifetime, and that of a seed's lifetime without compilation."""
    known = lambda x: math.nan if x is None else x
    rows = []
    for (env, method), results in runs.items():
        config, where = results.config["config"], comparison.origin(method)
        is_meta = RULES[config["rule"]["name"]].is_learned and not config["is_frozen"]
        fresh = (config["stride"] or config["num_updates"]) * config["unroll"]
        is_extra = is_meta and not config["is_validation_kept"]
        share = config["validation_unroll"] / (fresh + config["validation_unroll"]) if is_extra else 0.0
        env_steps = float(results.columns["env_steps"].max())
        seconds = env_steps / reading.steps_per_cpu_second(results)
        row = {
            "environment": env,
            "method": method,
            "env steps before": known(where.env_steps) if where else 0,
            "CPU s before": known(where.cpu_seconds) if where else 0,
            "note": where.note if where else "",
            "env steps": env_steps,
            "env steps for η": share * env_steps,
            "CPU s": seconds,
        }
        to_compile = float(results.columns["cpu_seconds"][-1]) - seconds * len(comparison.seeds)
        rows.append(row | {"CPU s to compile, all seeds": max(0.0, to_compile)})
    return rows
