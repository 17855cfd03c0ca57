"""Returns by trial in held-out tasks, compared with the best that is possible: statistics, references, a figure.

Source: AdA 2023, appendix B: scores are normalised by a reference of each task, and shown as median and 20th percentile
over tasks. There the reference is the best last trial of an agent that was fine-tuned on the task; here it is the exact
best return of a trial for who knows the task's rules, the *oracle*.
"""

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.results import plots
from toy_envs.bandit import Bandit
from toy_envs.base import Environment
from toy_envs.changing import Changing
from toy_envs.rule_room import KINDS, NOTHING, RuleRoom
from toy_envs.rule_room_optimum import best_returns, oracle_return, possible_reactions

NUM_LAYOUTS = 64  # over which the optimum of rule rooms is a mean: the first of the tasks
MAX_PULLS = 40  # of two arms, up to which the best explorer's return is computed


class References(NamedTuple):
    """What is possible in an environment, in its own returns; empty or nan where it is not known.

    Attributes:
      oracle: of each task, [num_tasks], the best return of a trial for who knows it; 0 where there is no solution.
      mean_oracle: its mean over the tasks of which the optimum is a mean.
      optimum: for each number of trials the mean return of each, [num_trials], of the explorer that is best in all of
        them together; of a bandit the mean over trials, for each of them.
      one_trial: the same without memory across trials.
    """

    oracle: np.ndarray
    mean_oracle: float
    optimum: dict[int, np.ndarray]
    one_trial: float


def check_solvable(environment: Environment) -> None:
    """Raise a ValueError where tasks are of a kind without a goal to find."""
    if isinstance(environment, Changing):
        environment = environment.environment
    kinds = environment.shares if isinstance(environment, RuleRoom) else {}
    if found := [kind for kind in kinds if KINDS[kind].makes == NOTHING]:
        raise ValueError(f"tasks of the kind {' and '.join(found)} have no goal to find, expected another kind")


def references(environment: Environment, tasks: Any, nums_trials: tuple[int, ...]) -> References:
    """Return what is possible in `held_out_tasks`, [num_tasks, ...], for each number of trials."""
    if isinstance(environment, RuleRoom):
        return _of_rooms(environment, jax.tree.map(np.asarray, tasks.task), nums_trials)
    if isinstance(environment, Bandit):
        oracle = environment.num_pulls * np.asarray(tasks.probabilities).max(axis=1)
        is_known = lambda k: environment.num_arms == 2 and k * environment.num_pulls <= MAX_PULLS
        optimum = {k: np.full(k, environment.best_return(k) / k if is_known(k) else np.nan) for k in nums_trials}
        one_trial = environment.best_return(1) if is_known(1) else np.nan
        of_uniform = environment.num_pulls * environment.num_arms / (environment.num_arms + 1)
        return References(oracle, of_uniform, optimum, one_trial)
    return References(np.array([]), np.nan, {}, np.nan)


def _of_rooms(room: RuleRoom, tasks: Any, nums_trials: tuple[int, ...]) -> References:
    """An explorer knows the layout, and the rules where they are shown; its means are over all that they may be."""
    one_of = [jax.tree.map(lambda x, i=i: x[i], tasks) for i in range(len(tasks.start))]
    possible = [possible_reactions(KINDS[kind]) for kind in room.shares]
    numbers = jax.vmap(room.kind_number)(jnp.array(room.held_out_ids[:NUM_LAYOUTS], jnp.uint32)).tolist()
    kinds = zip(one_of, numbers, strict=False)
    layouts = [(task, task.reactions[None] if task.is_shown else possible[number]) for task, number in kinds]
    known = [oracle_return(task._replace(reactions=table)) for task, tables in layouts for table in tables]
    weights = [1 / len(tables) for _, tables in layouts for _ in tables]
    mean = lambda k: np.mean([best_returns(task, tables, k) for task, tables in layouts], axis=0)
    optimum = {k: mean(k) for k in {1, *nums_trials}}
    return References(
        oracle=np.array([oracle_return(task) for task in one_of]),
        mean_oracle=float(np.average(known, weights=weights)),
        optimum={k: optimum[k] for k in nums_trials},
        one_trial=float(optimum[1][0]),
    )


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


def draw(path: Path, found: Mapping[int, Mapping[str, np.ndarray]], known: References, title: str) -> None:
    """Write a PNG with a line over trials for each number of trials, means over seeds, and what is possible.

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
        ylabel = "return of a trial, 1: who knows the task" if is_scored else "mean return of a trial"
        axes.set(title=title, xlabel="trial", ylabel=ylabel, xticks=range(1, max(found) + 1))
        figure.legend(loc="outside lower center", ncols=2, fontsize=9)
