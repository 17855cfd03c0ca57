"""Figures, drawn without a display: curves with bands, points with intervals, bars.

They need matplotlib, of the extra `plots`; nothing else does.
"""

import contextlib
import importlib.util
import io
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from frodo.files import write
from frodo.logs import note
from frodo.runs.errors import UsageError

if TYPE_CHECKING:  # what takes long to import is imported by what draws: --help of a program does without
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours: told apart by colour-blind people too; line styles change when they begin again.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
STYLES = ("-", "--", "-.", ":")
INSTALL = "pip install 'frodo-rl[plots]'"
STYLE: dict[Any, Any] = {  # of all figures
    "font.size": 11,
    "legend.frameon": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
CAPTION = "Line: mean over seeds. Band: 95 % Student-t confidence interval of the mean; of two seeds, each thinly."


def write_gif(path: Path, pictures: Sequence[Any], colours: Any, durations: Sequence[int]) -> None:
    """Write RGB pictures as a GIF that repeats, each for so many milliseconds.

    One palette for all, of a picture with all colours: what stays is not stored again.
    """
    from PIL import Image

    palette, buffer = colours.quantize(48), io.BytesIO()
    first, *others = [picture.quantize(palette=palette, dither=Image.Dither.NONE) for picture in pictures]
    how: dict[str, Any] = dict(append_images=others, duration=durations, loop=0, optimize=True)
    first.save(buffer, format="GIF", save_all=True, **how)
    write(path, buffer.getvalue())


def require() -> None:
    """Refuse, by a UsageError that says what to install, to draw without matplotlib."""
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError(f"figures need matplotlib: {INSTALL}")


def can_draw(how: str = "the same command with --resume draws them") -> bool:
    """Say whether a run that is over can draw its figures; where not, note how they are drawn later."""
    if importlib.util.find_spec("matplotlib") is not None:
        return True
    note(f"figures are left out, as matplotlib is missing: {INSTALL}; then {how}")
    return False


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
    from scipy.special import stdtrit

    is_missing = np.isnan(y)
    count = (~is_missing).sum(axis=0).astype(float)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.where(is_missing, 0, y).sum(axis=0) / count
        variance = np.where(is_missing, 0, (y - mean) ** 2).sum(axis=0) / (count - 1)
        half_width = stdtrit(np.maximum(count - 1, 1), 0.975) * np.sqrt(variance / count)
    return mean, np.where(count < 2, np.nan, half_width)


def look(number: int, **style: Any) -> dict[str, Any]:
    """Return colour and line style of the curve of that number, and what else is given."""
    return dict(color=COLOURS[number % len(COLOURS)], linestyle=STYLES[number // len(COLOURS) % len(STYLES)]) | style


def curve(axes: "Axes", x: np.ndarray, y: np.ndarray, label: str, **style: Any) -> None:
    """Draw the mean over seeds of y [num_seeds, N], and its band; of fewer than three seeds each, thinly, instead."""
    mean, half_width = mean_and_interval(np.asarray(y, float))
    style = dict(linewidth=1.8) | style
    if len(y) < 3:
        axes.plot(x, mean, label=label, **style)
        axes.plot(x, y.T, **style | dict(linewidth=0.8, alpha=0.5, marker=""))
    else:
        band(axes, x, mean, mean - half_width, mean + half_width, label=label, **style)
    if np.max(np.abs(x), initial=0) >= 1e4:
        in_thousands(axes)


def in_thousands(axes: "Axes") -> None:
    """Write the numbers of the horizontal axis with units: 100k."""
    from matplotlib.ticker import EngFormatter

    axes.xaxis.set_major_formatter(EngFormatter(sep=""))


def in_whole_numbers(axes: "Axes") -> None:
    """Have the ticks of the horizontal axis at whole numbers."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def band(axes: "Axes", x: np.ndarray, middle: np.ndarray, low: np.ndarray, high: np.ndarray, **style: Any) -> None:
    """Draw a line with a band, all [N]."""
    axes.plot(x, middle, **style)
    axes.fill_between(x, low, high, color=style["color"], alpha=0.2, linewidth=0)


def levels(axes: "Axes", hlines: Mapping[str, float]) -> None:
    """Draw levels to compare with, by their name in the legend."""
    for number, (label, level) in enumerate(hlines.items()):
        axes.axhline(level, color="0.35", linestyle=STYLES[1 + number % 3], linewidth=1.2, label=label)


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
      log: whether the vertical axis is logarithmic, if any value is positive.
    Raises:
      DiskError: if the disk refuses the write.
    """
    with new_figure((7.5, 5.5), path) as figure:
        axes = figure.subplots()
        for number, one in enumerate(series):
            label = f"{one.label} ({len(one.y)} seed{'s' * (len(one.y) > 1)})"
            curve(axes, one.x, one.y, label, **look(number))
        levels(axes, hlines or {})
        axes.set(title=title, xlabel=xlabel, ylabel=ylabel)
        axes.margins(x=0.01)
        values = np.concatenate([np.ravel(one.y) for one in series] + [np.array([*(hlines or {}).values()])])
        if log := log and bool(np.any(values > 0)):
            values = values[values > 0]
        if np.isfinite(values).any():  # bands may reach further than any seed
            low, high = np.nanmin(values), np.nanmax(values)
            margin = 0.05 * (high - low or 1)
            axes.set_ylim((low / 1.2, high * 1.2) if log else (low - margin, high + margin))
        axes.set_yscale("log" if log else "linear")
        if inset:
            small = axes.inset_axes((0.5, 0.55, 0.48, 0.42), xlim=(inset[0].x[0], inset[0].x[-1]))
            for number, one in enumerate(inset):
                curve(small, one.x, one.y, one.label, **look(number, linewidth=1.2))
            in_thousands(small)
            small.tick_params(labelsize=8)
            small.spines[["top", "right"]].set_visible(True)
        figure.legend(loc="outside lower center", ncols=2)
        if any(len(one.y) > 1 for one in series):
            axes.annotate(CAPTION, (0, 1.0), (2, 2), "axes fraction", "offset points", fontsize=8, color="0.35")
            axes.set_title(title, pad=18)


@contextlib.contextmanager
def panels(path: Path, names: Collection[str], title: str, xlabel: str, ylabel: str) -> Iterator[dict[str, "Axes"]]:
    """Give axes by name, and write what was drawn there as a PNG: panels over the same axes, two in a row."""
    num_rows = (len(names) + 1) // 2
    with new_figure((10, 0.8 + 3.3 * num_rows), path) as figure:
        grid = figure.subplots(num_rows, 2, sharex=True, sharey=True, squeeze=False).ravel()
        yield dict(zip(names, grid, strict=False))
        for axes, name in zip(grid, names, strict=False):
            axes.margins(x=0.01)
            place = dict(loc="lower left", bbox_to_anchor=(0, 1), alignment="left", ncols=2)
            axes.legend(title=name, title_fontsize=11, fontsize=8, **place)
        for axes in grid[len(names) :]:
            axes.set_axis_off()
        figure.suptitle(title)
        figure.supxlabel(xlabel)
        figure.supylabel(ylabel)


def intervals(path: Path, estimates: "pd.DataFrame", xlabel: str) -> None:
    """Write a PNG with a panel for each `statistic` of rows: for each `label` its `value`, from `low` to `high`."""
    by_name = estimates.groupby("statistic", sort=False)
    with new_figure((9, 1.2 + 0.35 * by_name.size().max()), path) as figure:
        for axes, (name, own) in zip(figure.subplots(1, len(by_name), sharey=True), by_name, strict=True):
            for row, one in enumerate(own.itertuples()):
                colour = COLOURS[row % len(COLOURS)]
                ends = [[one.value - one.low], [one.high - one.value]]
                axes.errorbar(one.value, row, xerr=ends, fmt="o", color=colour, ecolor=(colour, 0.4), elinewidth=5)
            axes.set(title=name, yticks=range(len(own)), yticklabels=own.label, xlabel=xlabel)
            axes.grid(axis="y", visible=False)
        figure.axes[0].invert_yaxis()


def bars(path: Path, scores: "pd.DataFrame", parts: "pd.DataFrame") -> None:
    """Write a PNG with a bar for the score of each sweep (a column) in each experiment (a row), from top to bottom.

    `parts`, of the same form, say what a score lacks to be bsuite's, or "": then its bar is pale, and says so; nan
    stands for what was not run.
    """
    from matplotlib.container import BarContainer

    with new_figure((8.5, 1.6 + max(0.24 * scores.shape[1], 0.3) * len(scores)), path) as figure:
        axes = figure.subplots()
        scores.plot.barh(ax=axes, width=0.8, color=COLOURS, legend=False)
        for bars_, name in zip(axes.containers, scores, strict=True):
            assert isinstance(bars_, BarContainer)
            texts = []
            for patch, score, part in zip(bars_, scores[name], parts[name], strict=True):
                patch.set_alpha(0.45 if part else 1)
                text = f"{score:.2f}" if np.isfinite(score) else "no score"
                texts.append(f"{text}   {part}" if isinstance(part, str) else "")
            axes.bar_label(bars_, texts, padding=3, fontsize=8)
        axes.set(xlim=(0, 1.45), xticks=np.linspace(0, 1, 5), xlabel="score", ylabel="")
        axes.set_title("bsuite: score by experiment (pale: not over all ids and episodes)")
        axes.grid(axis="y", visible=False)
        axes.invert_yaxis()
        figure.legend(loc="outside lower center", ncols=3)


@contextlib.contextmanager
def new_figure(size: tuple[float, float], path: Path | str) -> Iterator["Figure"]:
    """Give a figure, and write what was drawn into it as a PNG, whole or not at all."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(STYLE):
        figure = Figure(figsize=size, layout="constrained")
        yield figure
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=150)
    write(Path(path), buffer.getvalue())
