"""Learning curves: the mean over seeds with its confidence interval, drawn without a display."""

import contextlib
import io
import itertools
import textwrap
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter
from scipy.special import stdtrit

from experiments.results.statistics import Estimate
from frodo.files import write

# Okabe and Ito's colours: told apart by colour-blind people too; line styles change when they begin again.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
STYLES = ("-", "--", "-.", ":")
CAPTION = "Line: mean over seeds. Band: 95 % Student-t confidence interval of the mean; of two seeds, each thinly."


class Series(NamedTuple):
    """One learning curve."""

    label: str
    x: np.ndarray  # [N]
    y: np.ndarray  # [num_seeds, N]; NaN where a seed has no value


def mean_and_interval(y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean over seeds and the half-width of its 95 % Student-t interval; NaN stands for no value.

    Args:
      y: values, [num_seeds, N].
    Returns:
      mean and half-width, both [N]; the half-width is NaN where fewer than two seeds have a value.
    """
    is_missing = np.isnan(y)
    count = (~is_missing).sum(axis=0).astype(float)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.where(is_missing, 0, y).sum(axis=0) / count
        variance = np.where(is_missing, 0, (y - mean) ** 2).sum(axis=0) / (count - 1)
        half_width = stdtrit(np.maximum(count - 1, 1), 0.975) * np.sqrt(variance / count)
    return mean, np.where(count < 2, np.nan, half_width)


def curves(
    path: Path | str,
    series: Sequence[Series],
    *,
    title: str,
    xlabel: str,
    ylabel: str,
    hlines: Mapping[str, float] | None = None,
    inset: Sequence[Series] = (),
    log: bool = False,
) -> None:
    """Write a PNG with learning curves and a legend, whole or not at all.

    Args:
      path: the file.
      series: what is drawn, without smoothing; the legend says over how many seeds.
      title, xlabel, ylabel: with units.
      hlines: levels to compare with, by their name in the legend.
      inset: what is drawn smaller in the upper right corner: the same methods in the same order, over a window of x.
      log: whether the vertical axis is logarithmic; values are positive.
    Raises:
      DiskError: if the disk refuses the write.
    """
    with new_figure((7.5, 5.5), path) as figure:
        axes = figure.subplots()
        _draw(axes, series)
        _levels(axes, hlines or {})
        axes.set(title=title, xlabel=xlabel, ylabel=ylabel)
        axes.margins(x=0.01)
        values = np.concatenate([np.ravel(one.y) for one in series] + [np.array([*(hlines or {}).values()])])
        if np.isfinite(values).any():  # bands may reach further than any seed
            low, high = np.nanmin(values), np.nanmax(values)
            if log:
                axes.set_yscale("log")
                axes.set_ylim(low / 1.2, high * 1.2)
            else:
                axes.set_ylim(low - 0.05 * (high - low or 1), high + 0.05 * (high - low or 1))
        axes.grid(alpha=0.25)
        if any(np.max(one.x, initial=0) >= 1e4 for one in series):
            axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        if inset:
            _inset(axes, inset)
        figure.legend(loc="outside lower center", ncols=2, frameon=False)
        if any(len(one.y) > 1 for one in series):
            axes.annotate(CAPTION, (0, 1.0), (2, 2), "axes fraction", "offset points", fontsize=8, color="0.35")
            axes.set_title(title, pad=18)


def estimates(path: Path, by_name: Mapping[str, Mapping[str, Estimate]]) -> None:
    """Write a PNG with a panel for each statistic: for each method a point, and a line for its interval."""
    with new_figure((9, 1.2 + 0.35 * max(map(len, by_name.values()))), path) as figure:
        for axes, (name, own) in zip(figure.subplots(1, len(by_name), sharey=True), by_name.items(), strict=True):
            for row, estimate in enumerate(own.values()):
                colour = COLOURS[row % len(COLOURS)]
                axes.plot(
                    [estimate.low, estimate.high],
                    [row, row],
                    color=colour,
                    linewidth=5,
                    alpha=0.4,
                    solid_capstyle="butt",
                )
                axes.plot(estimate.value, row, "o", color=colour)
            title = f"{name}\n(less is better)" if name == "optimality gap" else name
            axes.set(title=title, yticks=range(len(own)), yticklabels=list(own), xlabel="normalised score")
            axes.grid(alpha=0.25, axis="x")
        figure.axes[0].invert_yaxis()


def panels(
    path: Path,
    by_panel: Mapping[str, Sequence[Series]],
    *,
    title: str,
    xlabel: str,
    ylabel: str,
    hlines: Mapping[str, float],
) -> None:
    """Write a PNG with learning curves in panels over the same axes; a label has one colour in all of them.

    Of fewer than three seeds each is drawn, thinly, instead of a band.
    """
    with _panels(
        path, by_panel, title, xlabel, ylabel, {one.label: one for x in by_panel.values() for one in x}
    ) as all_:
        for axes, series, colours in all_:
            for one in series:
                _curve(axes, one, one.label, color=colours[one.label])
            _levels(axes, hlines)
            axes.xaxis.set_major_formatter(EngFormatter(sep=""))


def profiles(path: Path, thresholds: np.ndarray, by_panel: Mapping[str, Mapping[str, Estimate]]) -> None:
    """Write a PNG with the fraction of each method's runs that have a score above each threshold, with bands."""
    labels = {label: None for own in by_panel.values() for label in own}
    texts = ("Performance profiles", "normalised score τ", "fraction of runs with score > τ")
    with _panels(path, by_panel, *texts, labels) as all_:
        for axes, own, colours in all_:
            for label, estimate in own.items():
                axes.plot(thresholds, estimate.value, color=colours[label], label=label)
                axes.fill_between(
                    thresholds, estimate.low, estimate.high, color=colours[label], alpha=0.15, linewidth=0
                )


def sensitivity(path: Path, by_method: Mapping[str, Mapping[str, Mapping[str, Mapping[float, float]]]]) -> None:
    """Write a PNG with a row for each method and a column for each family: its score over the learning rate.

    Args:
      path: the file.
      by_method: method -> family -> what else is set -> learning rate -> score.
    """
    families = list(next(iter(by_method.values())))
    with new_figure((2.6 * len(families) + 1, 1.9 * len(by_method) + 1), path) as figure:
        grid = figure.subplots(len(by_method), len(families), sharex=True, sharey=True, squeeze=False)
        handles: dict[str, Any] = {}
        for row, (method, own) in zip(grid, by_method.items(), strict=True):
            for axes, name in zip(row, families, strict=True):
                for number, (label, scores) in enumerate(own[name].items()):
                    style = dict(color=COLOURS[number % len(COLOURS)], marker="o", markersize=3)
                    (line,) = axes.plot(list(scores), list(scores.values()), linewidth=1.2, **style)
                    handles.setdefault(label, line)
                axes.set_xscale("log")
                axes.grid(alpha=0.25)
            row[0].set_ylabel("\n".join(textwrap.wrap(method, 18)), fontsize=9)
        for axes, name in zip(grid[0], families, strict=True):
            axes.set_title(name)
        for axes in grid[-1]:
            axes.set_xlabel("learning rate")
        figure.supylabel("normalised score")
        figure.legend(handles.values(), handles, loc="outside lower center", ncols=4, frameon=False, fontsize=9)


def radar(path: Path, by_sweep: Mapping[str, Mapping[str, float]], title: str) -> None:
    """Write a PNG with the score of each sweep for each tag, on rays from 0 to 1; a tag without a score is left out."""
    with new_figure((7, 6.5), path) as figure:
        axes = figure.add_subplot(projection="polar", theta_offset=np.pi / 2, theta_direction=-1)
        tags = list(next(iter(by_sweep.values())))
        angles = dict(zip(tags, np.linspace(0, 2 * np.pi, len(tags), endpoint=False), strict=True))
        for number, (label, scores) in enumerate(by_sweep.items()):
            known = [tag for tag in tags if np.isfinite(scores[tag])]
            x, y = ([of[tag] for tag in [*known, *known[:1]]] for of in (angles, scores))
            colour, style = COLOURS[number % len(COLOURS)], STYLES[number // len(COLOURS) % len(STYLES)]
            axes.plot(x, y, color=colour, linestyle=style, marker="o", linewidth=1.8, label=label, clip_on=False)
            axes.fill(x, y, color=colour, alpha=0.12)
        scored = {tag for scores in by_sweep.values() for tag in tags if np.isfinite(scores[tag])}
        names = [tag.replace("_", "\n") + "\n(no score)" * (tag not in scored) for tag in tags]
        axes.set_xticks(list(angles.values()), names)
        for text, angle in zip(axes.get_xticklabels(), angles.values(), strict=True):
            side = np.sin(angle)
            text.set_horizontalalignment("center" if abs(side) < 0.3 else "left" if side > 0 else "right")
        axes.set(ylim=(0, 1), yticks=(0.25, 0.5, 0.75, 1), title=title)
        axes.tick_params("y", labelsize=8, labelcolor="0.35")
        axes.grid(alpha=0.35)
        axes.spines["polar"].set_alpha(0.35)
        figure.legend(loc="outside lower center", ncols=3, frameon=False)


def bars(path: Path, names: Sequence[str], by_sweep: Mapping[str, Mapping[str, tuple[float, str]]]) -> None:
    """Write a PNG with a bar for the score of each sweep in each experiment.

    Args:
      path: the file.
      names: the experiments, from top to bottom.
      by_sweep: for each sweep the score by experiment, and what it lacks to be bsuite's: then it is pale, and says so.
    """
    height = 0.8 / len(by_sweep)
    with new_figure((8.5, 1.6 + max(0.24 * len(by_sweep), 0.3) * len(names)), path) as figure:
        axes = figure.subplots()
        for number, (label, scores) in enumerate(by_sweep.items()):
            axes.barh(0, 0, color=COLOURS[number % len(COLOURS)], label=label)  # for the legend
            for name, (score, part) in scores.items():
                y = names.index(name) + (number - (len(by_sweep) - 1) / 2) * height
                has_score = np.isfinite(score)
                if has_score:
                    axes.barh(y, score, height, color=COLOURS[number % len(COLOURS)], alpha=0.45 if part else 1)
                text = (f"{score:.2f}" if has_score else "no score") + f"   {part}" * bool(part)
                axes.text(score + 0.01 if has_score else 0.01, y, text, va="center", fontsize=8)
        axes.set(yticks=range(len(names)), yticklabels=names, xlim=(0, 1.45), xticks=np.linspace(0, 1, 5))
        axes.set(xlabel="score", title="bsuite: score by experiment (pale: not over all ids and episodes)")
        axes.grid(alpha=0.25, axis="x")
        axes.invert_yaxis()
        figure.legend(loc="outside lower center", ncols=3, frameon=False)


@contextlib.contextmanager
def _panels(
    path: Path, by_panel: Mapping[str, Any], title: str, xlabel: str, ylabel: str, labels: Collection[str]
) -> Iterator[list[tuple[Axes, Any, Mapping[str, str]]]]:
    """Give axes, what belongs there and each label's colour, of panels two in a row."""
    num_rows = (len(by_panel) + 1) // 2
    colours = dict(zip(labels, itertools.cycle(COLOURS), strict=False))
    with new_figure((10, 0.8 + 3.3 * num_rows), path) as figure:
        grid = figure.subplots(num_rows, 2, sharex=True, sharey=True, squeeze=False).ravel()
        yield [(axes, own, colours) for axes, own in zip(grid, by_panel.values(), strict=False)]
        for axes, name in zip(grid, by_panel, strict=False):
            axes.grid(alpha=0.25)
            axes.margins(x=0.01)
            place = dict(loc="lower left", bbox_to_anchor=(0, 1), alignment="left", ncols=2)
            axes.legend(title=name, title_fontsize=11, fontsize=8, frameon=False, **place)
        for axes in grid[len(by_panel) :]:
            axes.set_axis_off()
        figure.suptitle(title)
        figure.supxlabel(xlabel)
        figure.supylabel(ylabel)


@contextlib.contextmanager
def new_figure(size: tuple[float, float], path: Path | str) -> Iterator[Figure]:
    """Give a figure, and write what was drawn into it as a PNG, whole or not at all."""
    with mpl.rc_context({"font.size": 11, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=size, layout="constrained")
        yield figure
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=150)
    write(Path(path), buffer.getvalue())


def _draw(axes: Axes, series: Sequence[Series], linewidth: float = 1.8) -> None:
    for number, one in enumerate(series):
        colour, style = COLOURS[number % len(COLOURS)], STYLES[number // len(COLOURS) % len(STYLES)]
        seeds = f"{len(one.y)} seed{'s' if len(one.y) > 1 else ''}"
        _curve(axes, one, f"{one.label} ({seeds})", linewidth, color=colour, linestyle=style)


def _curve(axes: Axes, one: Series, label: str, linewidth: float = 1.8, **style: Any) -> None:
    """The mean over seeds, and its band; of fewer than three seeds each is drawn, thinly, instead."""
    mean, half_width = mean_and_interval(np.asarray(one.y, float))
    axes.plot(one.x, mean, linewidth=linewidth, label=label, **style)
    if len(one.y) < 3:
        axes.plot(one.x, one.y.T, linewidth=0.8, alpha=0.5, **style)
    else:
        axes.fill_between(one.x, mean - half_width, mean + half_width, color=style["color"], alpha=0.2, linewidth=0)


def _levels(axes: Axes, hlines: Mapping[str, float]) -> None:
    for number, (label, level) in enumerate(hlines.items()):
        axes.axhline(level, color="0.35", linestyle=STYLES[1 + number % 3], linewidth=1.2, label=label)


def _inset(axes: Axes, series: Sequence[Series]) -> None:
    small = axes.inset_axes((0.5, 0.55, 0.48, 0.42))
    _draw(small, series, 1.2)
    small.set_xlim(series[0].x[0], series[0].x[-1])
    small.xaxis.set_major_formatter(EngFormatter(sep=""))
    small.tick_params(labelsize=8)
    small.grid(alpha=0.25)
    small.spines[["top", "right"]].set_visible(True)
