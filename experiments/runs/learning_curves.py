"""Training of one agent, with its learning curves in the run folder and a summary for a person."""

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from experiments.results import plots, reading
from experiments.runs import training
from experiments.runs.loaded_agent import load_teacher
from frodo import logs
from frodo.runs.folders import folder_of
from frodo.runs.options import RunOptions
from frodo.settings.config import OnlineConfig
from toy_envs.catch import Catch
from toy_envs.rule_room import MIXED

TITLES = {
    "return": "mean episode return",
    "sampled_return": "expected return of the policy as it acts",
    "error": "mean squared error of v",
    "target_difference": "mean squared difference from the V-trace target",
}


def train_and_draw(
    config: OnlineConfig, options: RunOptions, *, experiment: str, name: str, label: str
) -> dict[str, Any]:
    """Train, and draw the learning curves into the run folder; returns the summary and, under "figures", the paths."""
    summary = training.train(
        config,
        options,
        experiment=experiment,
        name=name,
        load_teacher=functools.partial(load_teacher, config),
    )
    folder = folder_of(options, experiment, name)
    bound = {}
    if config.env == "toy/catch" and (best := Catch().look_ahead_bound(config.unroll)) < 1:
        bound[f"{config.unroll}-step bound"] = best
    results, figures = reading.read(folder), []
    for metric in TITLES:
        if metric in summary and not (metric == "return" and {"error", "sampled_return"} & set(summary)):
            figures.append(folder / f"{metric}.png")
            plots.curves(
                figures[-1],
                [reading.curve(results, metric)._replace(label=label)],
                title=f"{label} on {config.env}",
                xlabel="environment steps",
                ylabel=TITLES[metric],
                hlines=bound if "return" in metric else None,
                log=metric == reading.DIFFERENCE,
            )
    for name, (ylabel, labels) in drawn_together(results).items():
        figures.append(folder / f"{name}.png")
        series = [reading.curve(results, column)._replace(label=text) for column, text in labels.items()]
        title = f"{label} on {config.env}"
        plots.curves(figures[-1], series, title=title, xlabel="environment steps", ylabel=ylabel)
    return summary | {"figures": figures} | bound


def drawn_together(results: reading.Results) -> dict[str, tuple[str, dict[str, str]]]:
    """Return what is drawn in one figure, by its name: the vertical axis, and the columns with their labels.

    Figures 5 and 6 of Co-Reyes et al. 2021: what an agent expects at the start beside what its policy gets from there,
    and which cases of a program's maxima are active. And the kinds of tasks that a curriculum chooses.
    """
    figures: dict[str, tuple[str, dict[str, str]]] = {}
    shares = {f"share_{kind}": f"{kind}, of all tasks {share:.0%}" for kind, share in MIXED.items()}
    if shares.keys() <= results.columns.keys():
        figures["shares"] = "share of the episodes that are learned from", shares
    if "start_q" in results.columns:
        labels = {"start_q": "Q(s, 0)", "start_return": "return of the greedy policy, discounted"}
        figures["start_q"] = (
            "discounted return from the start of an episode",
            {k: v for k, v in labels.items() if k in results.columns},
        )
    cases = [column for column in results.columns if column.startswith("case_")]
    if cases:
        labels = {case: "maxima take argument " + ", ".join(case.removeprefix("case_")) for case in cases}
        figures["cases"] = ("share of transitions", labels)
    return figures


def print_summary(summary: Mapping[str, Any]) -> None:
    """Print the summary of a run, and the paths of its curves."""
    shown = ("return", "sampled_return", "greedy_return", "error", "human_normalised", "target_difference")
    rows = [{"": name, "value": float(np.mean(summary[name]))} for name in shown if name in summary]
    rows += [{"": name, "value": summary[name]} for name in summary if name.endswith("-step bound")]
    if summary["steps_per_cpu_second"] > 0:  # else the run had one row
        rows += [{"": "steps per CPU second", "value": summary["steps_per_cpu_second"]}]
    print(logs.table(rows))
    for path in summary["figures"]:
        print(f"learning curve: {path}")
