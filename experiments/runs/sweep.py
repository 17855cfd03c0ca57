"""Several configurations side by side in one experiment: a run folder for each, a table and a summary above them."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.results import plots, reading
from experiments.runs import settings, training
from frodo import files, logs
from frodo.regimes.lifetimes import check_split
from frodo.runs.errors import UsageError
from frodo.runs.folders import RunOptions, clear, folder_of, has_checkpoint, locked
from frodo.settings.config import OnlineConfig
from frodo.settings.registry import starts


def run_all(
    configs: Mapping[str, OnlineConfig],
    options: RunOptions,
    *,
    experiment: str,
    metrics: Sequence[str],
    known: Mapping[str, float] | None = None,
    row_steps: float = math.inf,
    seeds: Mapping[str, tuple[int, ...]] | None = None,
) -> tuple[Path, dict[str, Any]]:
    """Run every configuration in <out>/<its name> and summarise the metrics in a file of <out>.

    `known` are numbers to compare with, by name: the summary has them too. `row_steps` is that of `training.train`.
    Runs in `seeds` have these seeds, others those of options. With options.resume, runs that are complete are left as
    they are, and those without a checkpoint are begun.

    Returns:
      the folder, and for each configuration the mean, std and extremes over seeds of each metric, its values for each
      seed, the same of the first metric's mean over the whole run as <metric>_over_run, and steps_per_cpu_second.
    Raises:
      UsageError: before anything is run, if the folder holds runs and options do not say what is to become of them,
        or if there is nothing to resume.
      ValueError: likewise, naming a setting that is bad, or that devices do not divide.
    """
    folder = folder_of(options, experiment)
    begun = [name for name in configs if (folder / name / "config.json").exists()]
    if begun and not (options.resume or options.overwrite):
        raise UsageError(
            f"{folder} holds runs ({', '.join(begun)}): --resume goes on with them, --overwrite replaces them, "
            "--out names another folder"
        )
    if options.resume and not begun:
        raise UsageError(f"--resume: {folder} holds no run")
    for config in configs.values():
        config.validate()
        check_split(config, options.num_devices)
        if config.init_meta_params not in starts(is_fitted=True):  # else it is made when all else is right
            settings.initial_meta_params(config)
    if options.overwrite:  # all of them now: where this is stopped, none of the old runs is taken for a new one
        for name in begun:
            with locked(folder / name):
                clear(folder / name)
        (folder / "summary.json").unlink(missing_ok=True)
    summary: dict[str, Any] = {}
    for name, config in configs.items():
        can_go_on = has_checkpoint(folder / name)
        own = dataclasses.replace(
            options,
            out=str(folder / name),
            seeds=(seeds or {}).get(name, options.seeds),
            resume=options.resume and can_go_on,
            overwrite=options.overwrite or (options.resume and not can_go_on),
            resume_out=str(folder),
        )
        logs.note(f"{experiment}: {name}")
        result = training.train(config, own, experiment=experiment, name=name, row_steps=row_steps)
        summary[name] = {key: result[key] for key in ("env_steps", "steps_per_cpu_second")}
        of_seeds = {metric: result[metric] for metric in metrics if metric in result}  # constants have no η
        for metric in metrics[:1]:
            whole = reading.curve(reading.read(folder / name), metric).y
            of_seeds[f"{metric}_over_run"] = np.nanmean(whole, axis=1).tolist()
        for metric, values in of_seeds.items():
            found = {"mean": np.mean(values), "std": _deviation(values), "min": np.min(values), "max": np.max(values)}
            summary[name] |= {f"{metric}_{x}": value for x, value in found.items()} | {metric: values}
    summary |= known or {}
    files.write_json(folder / "summary.json", summary)
    return folder, summary


def _deviation(values: Sequence[float]) -> float | None:
    return float(np.std(values, ddof=1)) if len(values) > 1 else None


def draw(folder: Path, labels: Mapping[str, str], metric: str, **how: Any) -> None:
    """Draw a metric of runs in a folder over each other, and write the figure; `how` is for `plots.curves`.

    Args:
      labels: what the figure calls each run.
    """
    if not plots.can_draw():
        return
    series = [reading.curve(reading.read(folder / name), metric)._replace(label=x) for name, x in labels.items()]
    plots.curves(series=series, xlabel="environment steps", **how)


def print_table(summary: Mapping[str, Any], metrics: Sequence[str]) -> None:
    """Print the known numbers, then for each method mean and standard deviation of metrics over seeds, and its speed.

    Where there are several methods, also the mean difference from the first one, seed by seed, with the half-width of
    its 95 % Student-t interval.
    """
    methods = {name: entry for name, entry in summary.items() if isinstance(entry, Mapping)}
    for name, value in summary.items():
        if name not in methods:
            print(f"{name.replace('_', ' ')}  {value:.4f}")
    first, rows = next(iter(methods)), []
    for name, entry in methods.items():
        row = {"method": name}
        for metric in [metric for metric in metrics if metric in entry]:
            std = entry[f"{metric}_std"]
            row[metric] = f"{entry[f'{metric}_mean']:.4f}" + (f" ± {std:.4f}" if std is not None else "")
            if len(methods) > 1 and std is not None and metric in methods[first]:
                difference = np.subtract(entry[metric], methods[first][metric])[:, None]
                mean, half_width = (float(x[0]) for x in plots.mean_and_interval(difference))
                row[f"{metric} − {first}"] = f"{mean:.4f} ± {half_width:.4f}" if name != first else ""
        rows.append(row | {"steps/CPU s": logs.quantity(entry["steps_per_cpu_second"])})
    print(logs.table(rows))
