"""Figures of the predictions of an agent with DiscoRL's targets: how sure they are, and what they hold.

Source: Oh et al. 2025, Figure 4.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from agents.validation import did_you_mean
from experiments.analyses import predictions, target_formulas
from experiments.analyses import probes as probing
from experiments.results import plots
from experiments.runs import loaded_agent
from experiments.runs.loaded_agent import LoadedAgent
from frodo import files
from frodo.logs import note
from frodo.runs.errors import UsageError

NUM_STEPS, NUM_EPISODES = 500, 4  # steps that an agent acts, and episodes that are drawn at most
NUM_TRAJECTORIES, WARM_UP = 16, 100  # of `horizon`: steps that are acted before, to be anywhere in an episode
NUM_COLUMNS, NUM_PROBE_STEPS = 40, 100  # environments and steps in each that probes learn from

CONFIDENCE = {  # columns, and the panels that they are drawn in
    "reward": "reward",
    "value": "value",
    "policy_entropy": "policy entropy\n(nats)",
    "y_confidence": "confidence\n1 − H / log N",
    "z_confidence": "confidence\n1 − H / log N",
}

Rows = list[dict[str, Any]]


def confidence(agent: LoadedAgent, path: Path, title: str) -> Rows:
    """Draw how sure the agent is along episodes, and return a row for each step."""
    trajectory, _ = loaded_agent.play(agent, NUM_STEPS, 1, agent.seed)
    ends = np.flatnonzero(np.asarray(trajectory.is_last & trajectory.valid)[:, 0])
    num_steps = ends[:NUM_EPISODES][-1] + 1 if len(ends) else NUM_STEPS
    found = {name: np.asarray(x)[:num_steps, 0] for name, x in predictions.confidence(agent, trajectory).items()}
    columns = {name: found[name] for name in CONFIDENCE if name in found}
    panels: dict[str, list[str]] = {}
    for name in columns:
        panels.setdefault(CONFIDENCE[name], []).append(name)
    with plots.new_figure((9, 7.5), path) as figure:
        all_axes = figure.subplots(len(panels), sharex=True)
        for axes, (label, names) in zip(all_axes, panels.items(), strict=True):
            for name, colour in zip(names, plots.COLOURS, strict=False):
                axes.plot(columns[name], "o-", markersize=3, color=colour, label=name[0])
            for end in ends[ends < num_steps]:
                axes.axvline(end + 0.5, color="0.6", linestyle=":", linewidth=1)
            axes.set_ylabel(label)
        axes.legend(ncols=2, frameon=False)
        axes.set(xlabel="environment steps (dotted: an episode ends)")
        plots.in_whole_numbers(axes)
        figure.suptitle(f"Rewards, predictions and how sure they are\n{title}")
    is_end = np.isin(np.arange(num_steps), ends)
    return [
        {"step": t, **{name: x[t] for name, x in columns.items()}, "is_last": int(is_end[t])} for t in range(num_steps)
    ]


def probes(agent: LoadedAgent, path: Path, title: str) -> Rows:
    """Draw what probes predict of the future, and return a row for each input, k and fold."""
    trajectory, _ = loaded_agent.play(agent, NUM_PROBE_STEPS, NUM_COLUMNS, agent.seed)
    scores = probing.probes(agent, trajectory)
    panels = {"entropy": "test R²", "large_reward": "test accuracy"}
    names = {"entropy": "policy entropy in k steps", "large_reward": "a large reward within k steps"}
    with plots.new_figure((10, 5), path) as figure:
        for axes, (quantity, label) in zip(figure.subplots(1, 2), panels.items(), strict=True):
            lines = {name: getattr(one, quantity) for name, one in scores.items()}
            if quantity == "large_reward":
                lines["majority class"] = next(iter(scores.values())).majority
            for number, (name, score) in enumerate(lines.items()):
                mean, half_width = plots.mean_and_interval(score.T)
                x = np.arange(len(mean)) + 0.06 * (number - len(lines) / 2)
                colour = plots.COLOURS[number] if name in scores else "0.4"
                axes.errorbar(x, mean, half_width, fmt="o-", markersize=4, capsize=2, color=colour, label=name)
            axes.set(xlabel="k (steps)", ylabel=label, title=names[quantity])
            axes.set_xticks(range(len(probing.AHEAD)), probing.AHEAD)
            axes.set_xlim(-0.5, len(probing.AHEAD) - 0.5)
            axes.grid(alpha=0.25)
        figure.suptitle(f"What can be read off predictions\n{title}; 95 % Student-t intervals over five folds")
        handles = figure.axes[1].get_legend_handles_labels()
        figure.legend(*handles, loc="outside lower center", ncols=6, frameon=False)
    return [
        {"input": name, "k": k, "fold": fold, **{x: array[i, fold] for x, array in one._asdict().items()}}
        for name, one in scores.items()
        for i, k in enumerate(probing.AHEAD)
        for fold in range(probing.NUM_FOLDS)
    ]


def horizon(agent: LoadedAgent, path: Path, title: str) -> Rows:
    """Draw how far targets move with z later on, and return a row for each trajectory and k."""
    num_steps = agent.config.unroll
    trajectory, _ = loaded_agent.play(agent, WARM_UP + num_steps, NUM_TRAJECTORIES, agent.seed)
    moved = predictions.horizon(agent, trajectory, num_steps)
    k = np.arange(1, num_steps)
    names = {"z": "ẑ", "policy": "π̂", "y": "ŷ"}
    with plots.new_figure((11, 4.4), path) as figure:
        for axes, (name, symbol) in zip(figure.subplots(1, len(names)), names.items(), strict=True):
            mean, _ = plots.mean_and_interval(moved[name].T)
            axes.plot(k, moved[name], color=plots.COLOURS[0], linewidth=0.7, alpha=0.4)
            axes.plot(k, mean, "o-", color="black", markersize=4)
            axes.set(xlabel="k (steps)", ylabel="KL (nats)", title=f"change of {symbol}ₜ", yscale="log")
            plots.in_whole_numbers(axes)
            axes.grid(alpha=0.25)
        subtitle = f"{title}: {NUM_TRAJECTORIES} trajectories, mean in black"
        figure.suptitle(f"How far targets move with the prediction z at t + k\n{subtitle}")
    return [
        {"trajectory": column, "k": int(k[i]), **{name: moved[name][i, column] for name in names}}
        for column in range(NUM_TRAJECTORIES)
        for i in range(len(k))
    ]


FIGURES: Mapping[str, Callable[[LoadedAgent, Path, str], Rows]] = {
    "confidence": confidence,
    "probes": probes,
    "horizon": horizon,
}


def run(folder: Path, figures: Sequence[str], seed: int | None = None, out: str = "") -> list[Path]:
    """Make figures of one agent of a run, or formulas for its scalar rule, and return their paths.

    Raises:
      UsageError: if a figure is not known, or the run has no checkpoint, or its agent does not predict y and z.
    """
    for name in figures:
        if name not in FIGURES:
            hint = did_you_mean(name, FIGURES)
            raise UsageError(f"--figures: {name!r} is none{hint}; there are {', '.join(FIGURES)}")
    agent = loaded_agent.load(folder, seed)
    rule = agent.config.rule.name
    if rule == "frodo":
        if list(figures) != list(FIGURES):
            raise UsageError(f"--figures={','.join(figures)}: {folder} is a run of the rule frodo, which has formulas")
        return [target_formulas.of_run(agent, folder, out)]
    plots.require()
    if missing := sorted({"y", "z"} - set(agent.learner.setup.rule.spec(2))):
        raise UsageError(f"{folder} holds a run of the rule {rule}: its agent does not predict {', '.join(missing)}")
    title = f"{Path(agent.config.init_meta_params).stem or rule} on {agent.config.env}, seed {agent.seed}"
    paths = [Path(out or folder / "analysis") / f"{name}.png" for name in dict.fromkeys(figures)]
    for path in paths:
        files.write_csv(path.with_suffix(".csv"), FIGURES[path.stem](agent, path, title))
        note(f"figure: {path}")
    return paths
