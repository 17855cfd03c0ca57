"""The runs of a comparison: those that settings are chosen by, and those that are shown.

<out>/tuning/<env>/<method>/<program>/ holds the tuning seeds with all learning rates of the grid,
<out>/cells/<env>/<method>/<point>/ the seeds with one point; each is a run folder as `online` writes it. The folder of
a method in an environment has a summary.json when all its runs are done.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from experiments.comparison.comparison import Comparison
from experiments.comparison.protocol import Point, Program, choose, choose_one
from experiments.results import reading
from experiments.runs import training
from experiments.runs.jobs import failure
from frodo import files
from frodo.logs import note
from frodo.regimes.scores import normalised, reference_scores
from frodo.runs.errors import UsageError
from frodo.runs.folders import RunOptions, has_checkpoint
from frodo.settings.config import OnlineConfig
from frodo.settings.value_bins import with_bins_of

Cell = tuple[str, str]  # environment, method
TUNING, CELLS = "tuning", "cells"


class Choice(NamedTuple):
    """What a method is shown with in an environment.

    Attributes:
      tuned: the best, as the tuning runs have it (`protocol.choose`).
      one: the one setting for all environments.
    """

    tuned: Point
    one: Point


class Run(NamedTuple):
    """A run of a comparison: where it lies, the agent's settings, seeds and learning rates."""

    folder: Path
    config: OnlineConfig
    seeds: tuple[int, ...]
    learning_rates: tuple[float, ...]


def folder_of(out: Path, phase: str, env: str, method: str) -> Path:
    return out / phase / env.replace("/", "_") / method


def run_name(point: Point) -> str:
    return f"rate_{point.learning_rate:g}_{point.program.folder}"


def tuning_run(comparison: Comparison, out: Path, env: str, method: str, program: Program) -> Run:
    config = comparison.configure(env, method, program)
    folder = folder_of(out, TUNING, env, method) / program.folder
    return Run(folder, config, comparison.tuning_seeds, comparison.grid_of(config).learning_rates)


def shown_run(comparison: Comparison, out: Path, env: str, method: str, point: Point) -> Run:
    config = comparison.configure(env, method, point.program)
    folder = folder_of(out, CELLS, env, method) / run_name(point)
    return Run(folder, config, comparison.seeds, (point.learning_rate,))


def run(comparison: Comparison, out: Path, phase: str, env: str, method: str) -> None:
    """Do the runs of one phase of a method in an environment, in this process, going on where it stopped."""
    if phase == TUNING:
        runs = [tuning_run(comparison, out, env, method, x) for x in comparison.programs(env, method)]
    else:
        if why := untuned(comparison, out).get(method):
            raise UsageError(f"{method} has no settings yet: {why}")
        points = dict.fromkeys(choices(comparison, out)[env, method])
        runs = [shown_run(comparison, out, env, method, point) for point in points]
    for one in runs:
        if failure(one.folder):
            note(f"{method} on {env}: {one.folder.name}")
            can_go_on = has_checkpoint(one.folder)
            options = RunOptions(
                one.seeds,
                comparison.budget(env),
                str(one.folder),
                resume=can_go_on,
                overwrite=not can_go_on,
                learning_rates=one.learning_rates,
            )
            training.train(one.config, options, experiment="compare", name=method)
    files.write_json(folder_of(out, phase, env, method) / "summary.json", {"runs": [one.folder.name for one in runs]})


def read(comparison: Comparison, out: Path, env: str, method: str, point: Point) -> reading.Results:
    """Read a finished run that is shown."""
    return _read(shown_run(comparison, out, env, method, point), comparison.budget(env))


def _read(run: Run, budget: int) -> reading.Results:
    """Read a run, and check that it is of this comparison and was made with these settings."""
    results = reading.read(run.folder)
    config = dataclasses.asdict(with_bins_of(run.config, results.config.get("config", {})))
    try:
        record = results.config | {"config": files.with_new_settings(OnlineConfig, results.config["config"])}
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{run.folder} has a setting that this version does not know: {error}") from None
    written = files.flat(record)
    expected = {"steps": budget, "seeds": run.seeds, "learning_rates": run.learning_rates, "config": config}
    for name, value in files.flat(files.as_written(expected)).items():
        if (found := written.get(name)) != value:
            raise UsageError(
                f"{run.folder}: its {name} is {found}, expected {value}: runs of one comparison must agree"
            )
    return results._replace(config=record)


def is_shown(out: Path, env: str, method: str, choice: Choice) -> bool:
    """Say whether the runs of a choice are finished."""
    folder = folder_of(out, CELLS, env, method)
    return not any(failure(folder / run_name(point)) for point in choice)


def returns_of(results: reading.Results) -> np.ndarray:
    """Return the return of each seed; that of one whose parameters were not finite at the end is -inf."""
    finals = reading.final_values(results, "return")
    if "is_finite" not in results.columns:
        return finals
    is_finite = [results.columns["is_finite"][own][-1] for own in reading.lives(results)]
    return np.where(is_finite, finals, -np.inf)


def finals(env: str, returns: np.ndarray) -> np.ndarray:
    """Return what counts of `returns_of`: that of random play where parameters were not finite at the end."""
    return np.where(np.isneginf(returns), reference_scores(env)[0], returns)


def untuned(comparison: Comparison, out: Path) -> dict[str, str]:
    """Return why methods have no settings: method -> the first environment where its tuning failed, and why."""
    found: dict[str, str] = {}
    for env, method in comparison.cells():
        if why := failure(folder_of(out, TUNING, env, method)):
            found.setdefault(method, f"its tuning on {env}: {why}")
    return found


def tuning_returns(comparison: Comparison, out: Path, env: str, method: str) -> dict[Point, np.ndarray]:
    """Return for each point of a method's grid the return of each tuning seed, as `returns_of`."""
    found = {}
    for program in comparison.programs(env, method):
        run = tuning_run(comparison, out, env, method, program)
        results = _read(run, comparison.budget(env))
        for rate in run.learning_rates:
            found[Point(rate, *program)] = returns_of(reading.with_rate(results, rate))
    return found


def tuning_scores(comparison: Comparison, out: Path, method: str) -> dict[tuple[str, Point], float]:
    """Return the mean normalised score over the tuning seeds, by environment and point."""
    return {
        (env, point): float(np.mean(normalised(env, finals(env, returns))))
        for env in comparison.envs
        for point, returns in tuning_returns(comparison, out, env, method).items()
    }


def choices(comparison: Comparison, out: Path) -> Mapping[tuple[str, str], Choice]:
    """Return what every method is shown with; methods whose tuning is not finished are left out."""
    failed, methods = untuned(comparison, out), dict.fromkeys(method for _, method in comparison.cells())
    own = {method: tuning_scores(comparison, out, method) for method in methods if method not in failed}
    return {
        (env, method): Choice(
            choose(own[method], env, is_discovered=bool(comparison.rule(method))), choose_one(own[method])
        )
        for env, method in comparison.cells()
        if method in own
    }
