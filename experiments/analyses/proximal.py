"""Statistics of rules in PPO's loop: interquartile means and differences, over searches and seeds."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from experiments.results import reading

REPETITIONS, SEED = 2000, 0  # of the bootstrap


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

    Intervals are those of a bootstrap that draws searches, and then the seeds of each; a difference is of pairs of both
    rules' searches. `p` is its two-sided p-value by the same bootstrap, before any correction for several tests.
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
        row: dict[str, Any] = {"env": env, "rule": rule, "num_seeds": len(own)}
        for name, x, mean, searches in (
            ("iqm", values, quarters, [row["search"] for row in own]),
            ("difference", differences, np.mean, [(row["search"], other[row["seed"]]["search"]) for row in own]),
        ):
            drawn = _bootstrap(x, searches, mean)
            low, high = np.percentile(drawn, [2.5, 97.5])
            row |= {name: float(mean(x)), f"{name}_low": float(low), f"{name}_high": float(high)}
        beyond = 2 * np.minimum(np.mean(drawn <= 0), np.mean(drawn >= 0)) + 1 / REPETITIONS
        row["p"] = float(np.minimum(beyond, 1))
        rows.append(row)
    return rows


def _bootstrap(values: np.ndarray, searches: Sequence, function: Callable) -> np.ndarray:
    """Return a function of values that are drawn with replacement, searches first, [REPETITIONS]."""
    random = np.random.default_rng(SEED)
    groups = [values[[i for i, x in enumerate(searches) if x == name]] for name in dict.fromkeys(searches)]
    draws = lambda: [random.choice(groups[i], len(groups[i])) for i in random.integers(len(groups), size=len(groups))]
    return np.array([function(np.concatenate(draws())) for _ in range(REPETITIONS)])
