"""Statistics of rules in PPO's loop: interquartile means and differences, of searches and seeds."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from experiments.results import reading
from experiments.results.statistics import REPETITIONS, SEED, mean_difference
from frodo.runs.errors import UsageError


def scores_of(
    folder: Path, labels: Mapping[str, Mapping[str, str]], seeds: Mapping[str, Sequence[int]]
) -> list[dict[str, Any]]:
    """Return a row for each run of a seed: its labels, and how it ended. Runs are known by their names in a folder."""
    scores = []
    for name, label in labels.items():
        run = reading.read(folder / name)
        metric = "greedy_return" if "greedy_return" in run.columns else "return"
        ends, finals = reading.curve(run, metric).y[:, -1], reading.final_values(run, "return")
        for seed, end, final in zip(seeds[name], ends, finals, strict=True):
            scores.append(dict(label) | {"seed": seed, "score": float(end), "return": float(final)})
    return scores


def statistics(scores: Sequence[dict[str, Any]], first: str) -> list[dict[str, Any]]:
    """Return a row for each environment and rule of scores by search and seed.

    The intervals of `iqm` and `difference`, and the p-value of the latter, are of a bootstrap over the seeds of each
    search: they say something of these searches. `searches_low` and `searches_high` are the 95 % Student-t interval of
    the difference over searches, for others of their kind; nan where there is one.

    Raises:
      UsageError: two rules have several searches, and not as many.
    """
    rows = []
    quarters = lambda x: stats.trim_mean(x, 0.25)
    for env, rule in dict.fromkeys((row["env"], row["rule"]) for row in scores):
        of = {
            name: {row["seed"]: row for row in scores if (row["env"], row["rule"]) == (env, name)}
            for name in (rule, first)
        }
        own, other = of[rule].values(), of[first]
        values = np.array([row["score"] for row in own])
        differences = values - [other[row["seed"]]["score"] for row in own]
        searches = [(row["search"], other[row["seed"]]["search"]) for row in own]
        pairs = list(dict.fromkeys(searches))
        if len(pairs) > max(len(set(names)) for names in zip(*pairs, strict=True)):
            raise UsageError(f"--rules: {rule} and {first} have other numbers of searches, expected as many, or one")
        row: dict[str, Any] = {"env": env, "rule": rule, "num_seeds": len(own)}
        for name, x, mean in (("iqm", values, quarters), ("difference", differences, np.mean)):
            drawn = _bootstrap(x, searches, mean)
            low, high = np.percentile(drawn, [2.5, 97.5])
            row |= {name: float(mean(x)), f"{name}_low": float(low), f"{name}_high": float(high)}
        beyond = 2 * (1 + np.minimum(np.sum(drawn <= 0), np.sum(drawn >= 0))) / (1 + REPETITIONS)
        row["p"] = float("nan" if np.isnan(drawn).any() else np.minimum(beyond, 1))
        means = [np.mean([x for x, one in zip(differences, searches, strict=True) if one == pair]) for pair in pairs]
        of_searches = mean_difference(np.array(means)[:, None])
        row |= {"searches_low": float(of_searches.low), "searches_high": float(of_searches.high)}
        rows.append(row)
    return rows


def _bootstrap(values: np.ndarray, searches: Sequence, function: Callable) -> np.ndarray:
    """Return a function of values that are drawn with replacement from those of their search, [REPETITIONS]."""
    random = np.random.default_rng(SEED)
    groups = [values[[i for i, x in enumerate(searches) if x == name]] for name in dict.fromkeys(searches)]
    draws = lambda: np.concatenate([random.choice(group, len(group)) for group in groups])
    return np.array([function(draws()) for _ in range(REPETITIONS)])
