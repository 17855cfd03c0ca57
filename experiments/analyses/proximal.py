"""Statistics of rules in PPO's loop: interquartile means, and differences of the same seeds."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import stats


def statistics(scores: Sequence[dict[str, Any]], first: str) -> list[dict[str, Any]]:
    """Return a row for each environment and rule of scores by seed."""
    rows = []
    for env, rule in dict.fromkeys((row["env"], row["rule"]) for row in scores):
        of = {
            name: np.array([row["score"] for row in scores if (row["env"], row["rule"]) == (env, name)])
            for name in (rule, first)
        }
        row: dict[str, Any] = {"env": env, "rule": rule, "num_seeds": len(of[rule])}
        quarters = lambda x, axis=-1: stats.trim_mean(x, 0.25, axis=axis)
        for name, x, mean in (("iqm", of[rule], quarters), ("difference", of[rule] - of[first], np.mean)):
            row[name] = float(mean(x))
            low = high = row[name]
            if len(x) > 1 and np.ptp(x) > 0:
                low, high = stats.bootstrap((x,), mean, method="percentile", rng=0).confidence_interval
            row |= {f"{name}_low": float(low), f"{name}_high": float(high)}
        rows.append(row)
    return rows
