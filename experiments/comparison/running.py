"""A comparison from its start to its report: every method in every environment is a process of its own."""

import dataclasses
import hashlib
from collections.abc import Iterable, Sequence
from concurrent.futures import Executor
from pathlib import Path

from experiments.comparison import cells, report
from experiments.comparison.comparison import Comparison, check, check_names
from experiments.results import plots, statistics
from experiments.runs.jobs import Job, open_folder, run_all
from frodo.rules.files import path_of
from frodo.runs.errors import RunError
from frodo.settings.registry import starts


def jobs_of(phase: str, those: Iterable[cells.Cell], out: Path, arguments: Sequence[str]) -> list[Job]:
    """Return a job for each environment and method of a phase: the program with --only."""
    return [
        Job(
            f"{phase}: {method} on {env}",
            cells.folder_of(out, phase, env, method),
            "experiments.compare",
            (*arguments, f"--out={out}", f"--only={phase}:{env}:{method}"),
        )
        for env, method in those
    ]


def run(
    comparison: Comparison,
    out: Path,
    arguments: Sequence[str],
    executor: Executor,
    *,
    allow_seen: bool = False,
    resume: bool = False,
    overwrite: bool = False,
) -> str:
    """Run what is not finished, and write the report; returns a table of the aggregate scores.

    Args:
      comparison: what is compared.
      out: the folder.
      arguments: the command line that says the same to the process of a cell.
      executor: that the runs are handed to (`frodo.runs.workers`).
      allow_seen: whether rules are evaluated also where they were discovered.
      resume, overwrite: what becomes of a comparison that is in the folder.
    """
    statistics.require()
    plots.require()
    check_names(comparison)
    seen = check(comparison, allow_seen)
    given = [rule for rule in comparison.files.values() if rule and rule not in starts(is_fitted=False)]
    digests = {rule: hashlib.sha256(path_of(rule).read_bytes()).hexdigest() for rule in given}
    record = dataclasses.asdict(comparison) | {"sha256": digests}
    runs, growing = ("tuning/*/*", "cells/*/*", "report/*"), ("envs", "methods", "budgets")
    open_folder(out, "comparison", record, runs, resume=resume, overwrite=overwrite, growing=growing)
    jobs = jobs_of(cells.TUNING, comparison.cells(), out, arguments)
    run_all(jobs, executor, out)
    shown = cells.choices(comparison, out)
    jobs += (of_cells := jobs_of(cells.CELLS, shown, out, arguments))
    for job, (cell, choice) in zip(of_cells, shown.items(), strict=True):
        if not cells.is_shown(out, *cell, choice=choice):
            (job.folder / "summary.json").unlink(missing_ok=True)  # of another choice
    run_all(of_cells, executor, out)
    text = report.write(comparison, out, seen)
    if failed := [job.name for job in jobs if not job.is_finished]:
        print(text)
        raise RunError(
            f"{len(failed)} of {len(jobs)} jobs failed, {failed[0]} first; why is in {text.splitlines()[-1]}"
        )
    return text
