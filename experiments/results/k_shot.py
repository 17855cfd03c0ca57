"""Returns by trial in held-out tasks, compared with what is possible: statistics and a figure.

Source: AdA 2023, appendix B: scores are normalised by a reference of each task (`frodo.regimes.k_shot`), and shown as
median and 20th percentile over tasks.
"""

import itertools
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from experiments.results import plots
from frodo.regimes.k_shot import References


def statistics(returns: np.ndarray, oracle: np.ndarray) -> dict[str, np.ndarray]:
    """Return statistics over tasks for each seed and trial, [num_seeds, num_trials].

    Args:
      returns: mean returns of each trial, [num_seeds, num_tasks, num_trials].
      oracle: [num_tasks], or [] where it is not known.
    Returns:
      "return", the mean; with an oracle "score", that mean over the oracle's; "median" and "p20", the median and the
      20th percentile of the tasks' own returns, each over its oracle's: of tasks that have a solution.
    """
    if not oracle.size:
        return {"return": returns.mean(axis=1)}
    scores = returns[:, oracle > 0] / oracle[oracle > 0, None]
    return {
        "return": returns.mean(axis=1),
        "score": returns.mean(axis=1) / oracle.mean(),
        "median": np.median(scores, axis=1),
        "p20": np.percentile(scores, 20, axis=1),
    }


def draw(
    path: Path, found: Mapping[int, Mapping[str, np.ndarray]], known: References, of_random: np.ndarray, title: str
) -> None:
    """Write a PNG with a line over trials for each number of trials, means over seeds, random play and the optimum.

    With an oracle lines are medians over tasks, dashed ones 20th percentiles, and dots means.
    """
    is_scored = bool(known.oracle.size)
    lines = {"median": "-s", "p20": "--v", "score": "o"} if is_scored else {"return": "-o"}
    with plots.new_figure((7.5, 5.5), path) as figure:
        axes = figure.subplots()
        for (k, own), colour in zip(found.items(), itertools.cycle(plots.COLOURS), strict=False):
            num_seeds = len(own["return"])
            label = f"{k} trial{'s' * (k > 1)} ({num_seeds} seed{'s' * (num_seeds > 1)})"
            label += ": median over tasks" * is_scored
            for name, look in lines.items():
                axes.plot(range(1, k + 1), own[name].mean(axis=0), look, color=colour, markersize=5, label=label)
                label = "_"  # for one of them
        if is_scored:
            axes.plot([], [], "--v", color="0.5", label="20th percentile over tasks")
            axes.plot([], [], "o", color="0.5", label="mean over tasks")
            best = known.optimum[max(found)] / known.mean_oracle
            axes.plot(range(1, len(best) + 1), best, color="0.35", linewidth=1.2, label="optimum")
            plots.levels(axes, {"optimum without memory across trials": known.one_trial / known.mean_oracle})
        level = of_random / known.oracle.mean() if is_scored else of_random
        axes.plot(range(1, len(level) + 1), level, ":", color="0.35", label="random actions")
        ylabel = "return of a trial, 1: who knows the task" if is_scored else "mean return of a trial"
        axes.set(title=title, xlabel="trial", ylabel=ylabel, xticks=range(1, max(found) + 1))
        figure.legend(loc="outside lower center", ncols=2, fontsize=9)
