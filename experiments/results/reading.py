"""Runs read back from their folders: the columns of metrics.csv, curves over environment steps, final values."""

import csv
import os.path
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from experiments.results.plots import Series, mean_and_interval
from frodo.files import read_json
from frodo.runs.errors import UsageError

FINAL_FRACTION, SMOOTHED = 0.2, 0.05  # of a run
X = "env_steps"
DIFFERENCE = "target_difference"  # always positive, with rare values far above the others


class Results(NamedTuple):
    """What a results folder holds."""

    folder: Path
    config: dict
    columns: dict[str, np.ndarray]  # for each column [num_rows] float64, NaN where nothing is written


def read(folder: Path) -> Results:
    """Read config.json and metrics.csv of a run.

    Raises:
      UsageError: if the folder holds no run, or no rows yet, or files that cannot be read.
    """
    try:
        config = read_json(folder / "config.json")
        with (folder / "metrics.csv").open(newline="", encoding="utf-8") as file:
            header, *rows = list(csv.reader(file))
        if missing := {"seed", X} - set(header):
            raise ValueError(f"metrics.csv has no {' and no '.join(sorted(missing))}")
        values = np.array([[float(cell or "nan") for cell in row] for row in rows]).T
        columns = dict(zip(header, values, strict=True)) if rows else {}
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UsageError(f"{folder} holds no run with metrics: there is no {error.filename}") from None
    except (OSError, ValueError, csv.Error) as error:
        raise UsageError(f"{folder} holds a run whose files cannot be read: {error}") from None
    if not rows:
        raise UsageError(f"{folder} holds a run without metrics")
    return Results(folder, config, columns)


def pool(everything: Sequence[Results]) -> list[Results]:
    """Return the runs; those that differ in seeds alone become one, named by what their folders' names share."""
    groups: list[list[Results]] = []
    for results in everything:
        for group in groups:
            others = {seed for one in group for seed in one.columns["seed"]}
            if _setup(results) == _setup(group[0]) and others.isdisjoint(results.columns["seed"]):
                group.append(results)
                break
        else:
            groups.append([results])
    return [_joined(group) if len(group) > 1 else group[0] for group in groups]


def _setup(results: Results) -> list:
    return [results.config.get(name) for name in ("experiment", "steps", "config")]


def _joined(group: Sequence[Results]) -> Results:
    prefix = os.path.commonprefix([str(one.folder) for one in group])
    names = [name for name in group[0].columns if all(name in one.columns for one in group)]
    columns = {name: np.concatenate([one.columns[name] for one in group]) for name in names}
    return Results(Path(re.sub(r"[\W_\d]+$", "", prefix)), group[0].config, columns)


def curve(results: Results, metric: str) -> Series:
    """Return a metric over environment steps, interpolated over gaps and to the log points of the first seed."""
    seed, steps, values = (results.columns[name] for name in ("seed", X, metric))
    x = steps[seed == seed[0]]
    y = []
    for number in dict.fromkeys(seed):
        has_value = (seed == number) & ~np.isnan(values)
        known = steps[has_value], values[has_value]
        y.append(np.interp(x, *known, left=np.nan, right=np.nan) if has_value.any() else np.full(len(x), np.nan))
    return Series(results.folder.name, x, np.array(y))


def median(series: Sequence[Series], label: str) -> Series:
    """Return the median of several curves' means over seeds, as far as all of them have come."""
    x = np.linspace(max(one.x[0] for one in series), min(one.x[-1] for one in series), 200)
    values = [np.interp(x, one.x, np.nanmean(one.y, axis=0)) for one in series]
    return Series(label, x, np.nanmedian(values, axis=0)[None])


def final_values(results: Results, metric: str) -> np.ndarray:
    """Return the mean over the rows of a run's last fifth for each of `lives`; NaN where there is no value."""
    steps, values = results.columns[X], results.columns[metric]
    is_final = (steps > (1 - FINAL_FRACTION) * steps.max()) & ~np.isnan(values)
    finals = [values[is_final & is_own] for is_own in lives(results)]
    return np.array([final.mean() if final.size else np.nan for final in finals])


def steps_to(results: Results, metric: str, least: float) -> np.ndarray:
    """Return after how many steps the mean over SMOOTHED of the run is first so large, of each of `lives`, or NaN."""
    steps, values = results.columns[X], results.columns[metric]
    width, found = SMOOTHED * steps.max(), []
    for is_own in lives(results):
        x, y = (column[is_own & ~np.isnan(values)] for column in (steps, values))
        means = np.array([y[(x > end - width) & (x <= end)].mean() if end >= width else -np.inf for end in x])
        found.append(x[np.argmax(means >= least)] if (means >= least).any() else np.nan)
    return np.array(found)


def reached(results: Results, first: Results, metric: str, least: float) -> dict:
    """Return how soon the seeds of a run reach a value, and by how much later than those of the first run."""
    seeds = lambda one: [one.columns["seed"][is_own][0] for is_own in lives(one)]
    steps, others = (steps_to(one, metric, least) for one in (results, first))
    end = lambda one: one.columns[X].max()
    counted, before = (np.where(np.isnan(x), end(one), x) for x, one in ((steps, results), (others, first)))
    row = {f"steps to {least:g}": float(np.mean(counted)), "reached by": f"{np.sum(~np.isnan(steps))} of {len(steps)}"}
    is_never = np.isnan(steps).all() and np.isnan(others).all()
    if results is first or is_never or sorted(seeds(results)) != sorted(seeds(first)):
        return row | {"difference": ""}
    order, of_first = (np.argsort(seeds(one), kind="stable") for one in (results, first))
    mean, half_width = mean_and_interval((counted[order] - before[of_first])[:, None])
    return row | {"difference": f"{mean[0]:.3g} ± {half_width[0]:.2g}"}


def steps_per_cpu_second(results: Results) -> float:
    """Return the speed of a run, compilation left out; nan if it has a single row."""
    return read_json(results.folder / "summary.json").get("steps_per_cpu_second") or float("nan")


def lives(results: Results) -> list[np.ndarray]:
    """Return for each seed, with each learning rate where there are several, which rows are its own."""
    seed = results.columns["seed"]
    rate = results.columns.get("learning_rate", np.zeros_like(seed))
    return [(seed == one) & (rate == with_) for with_, one in dict.fromkeys(zip(rate, seed, strict=True))]


def with_rate(results: Results, learning_rate: float) -> Results:
    """Return the rows of one learning rate, of a run with several."""
    is_own = results.columns["learning_rate"] == learning_rate
    return results._replace(columns={name: values[is_own] for name, values in results.columns.items()})
