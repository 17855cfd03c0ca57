"""The learning curves of a run, in its folder, and its summary for a person."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from experiments.results import plots, reading
from frodo import logs
from toy_envs.catch import Catch
from toy_envs.rule_room import MIXED

TITLES = {
    "return": "mean episode return",
    "sampled_return": "expected return of the policy as it acts",
    "error": "mean squared error of v",
    "target_difference": "mean squared difference from the V-trace target",
}
SHOWN = ("return", "sampled_return", "greedy_return", "error", "human_normalised", "target_difference")
Figures = dict[str, tuple[str, dict[str, str]]]  # by name: the vertical axis, and the columns with their labels


def show(summary: Mapping[str, Any], folder: Path, label: str) -> None:
    """Draw the curves of a run that is over into its folder, and print its summary and the paths of the figures."""
    results = reading.read(folder)
    env, unroll = results.config["config"]["env"], results.config["config"]["unroll"]
    bound = {}
    if env == "toy/catch" and (best := Catch().look_ahead_bound(unroll)) < 1:
        bound[f"{unroll}-step bound"] = best
    is_exact = bool({"error", "sampled_return"} & set(summary))
    alone = [name for name in TITLES if name in summary and not (name == "return" and is_exact)]
    figures: Figures = {name: (TITLES[name], {name: label}) for name in alone} | drawn_together(results)
    figures = figures if figures and plots.can_draw() else {}
    for name, (ylabel, labels) in figures.items():
        plots.curves(
            folder / f"{name}.png",
            [reading.curve(results, column)._replace(label=text) for column, text in labels.items()],
            title=f"{label} on {env}",
            xlabel="environment steps",
            ylabel=ylabel,
            hlines=bound if "return" in name else None,
            log=name == reading.DIFFERENCE,
        )
    values = {name: float(np.mean(summary[name])) for name in SHOWN if name in summary} | bound
    if summary["steps_per_cpu_second"] > 0:  # else the run had one row
        values["steps per CPU second"] = summary["steps_per_cpu_second"]
    print(logs.table([{"": name, "value": value} for name, value in values.items()]))
    for name in figures:
        print(f"learning curve: {folder / name}.png")


def drawn_together(results: reading.Results) -> Figures:
    """Return what is drawn in one figure.

    Figures 5 and 6 of Co-Reyes et al. 2021: what an agent initially expects, and what its policy gets from there,
    and which cases of a program's maxima are active. And the kinds of tasks that a curriculum chooses.
    """
    known, figures = results.columns, {}
    shares = {f"share_{kind}": f"{kind}, of all tasks {share:.0%}" for kind, share in MIXED.items()}
    if shares.keys() <= known.keys():
        figures["shares"] = "share of the episodes that are learned from", shares
    if "start_q" in known:
        starts = {"start_q": "Q(s, 0)", "start_return": "return of the greedy policy, discounted"}
        own = {column: label for column, label in starts.items() if column in known}
        figures["start_q"] = "discounted return from the start of an episode", own
    if cases := [column for column in known if column.startswith("case_")]:
        labels = {case: f"maxima take argument {', '.join(case.removeprefix('case_'))}" for case in cases}
        figures["cases"] = "share of transitions", labels
    return figures
