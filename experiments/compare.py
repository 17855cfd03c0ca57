"""Compare what an agent gains from hand-made objectives, from one that it discovers online, and from discovered ones.

    python -m experiments.compare --discover
    python -m experiments.compare --scalar_rule=catch_and_grids --disco_rule=catch_disco
    python -m experiments.compare --scalar_rule=RULE --disco_rule=RULE --budget=1e5 --seeds=0-4 \\
        --envs=toy/catch,toy/catch/8x8,toy/grid_world/46,toy/grid_world/48,toy/grid_world/50,bsuite/catch/0,envpool/CartPole-v1

RULE is a discovered rule by its name, or the file of one that `discover` found, in other environments than those of the
comparison; --discover makes both rules first. The first two take less than an hour of two cores each, the third two
hours.

Every method (the rows of METHODS) lives for --budget environment steps in every environment, with every seed: a cell is
a method in an environment, a run folder <out>/cells/<env>/<method>/, as `online` writes it, made by a process of its
own, whose messages are in log.txt. --resume goes on with the cells that are not finished. Writes report/: index.html,
which needs nothing else, the same figures as PNG, and scores.csv, statistics.csv and costs.csv.
"""

import dataclasses
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from absl import flags

from agents.validation import did_you_mean
from experiments.comparison import report
from experiments.comparison.methods import (
    DISCOVERIES,
    METHODS,
    Comparison,
    cell_folder,
    check,
    check_names,
    refuse_seen,
)
from experiments.results import statistics
from experiments.runs import command_line, settings, training
from experiments.runs.errors import RunError, UsageError
from experiments.runs.folders import has_checkpoint
from experiments.runs.jobs import Job, failure, open_folder, own_arguments, run_all
from experiments.runs.options import RunOptions
from frodo.rule_files import PUBLISHED, SHIPPED, shipped_rules


def run_cell(comparison: Comparison, out: Path, env: str, method: str) -> None:
    """Run one cell in this process, going on where it stopped."""
    folder = cell_folder(out, env, method)
    can_go_on = has_checkpoint(folder)
    options = RunOptions(comparison.seeds, comparison.budget, str(folder), resume=can_go_on, overwrite=not can_go_on)
    config = comparison.configure(env, method)
    meta_params = settings.initial_meta_params(config)
    training.train(config, options, experiment="compare", name=method, meta_params=meta_params)


def path_of(rule: str) -> Path:
    """Return the file of a rule by its name or path."""
    return SHIPPED / f"{rule}.npz" if rule in shipped_rules() else Path(rule)


class Options(NamedTuple):
    """How a comparison is run."""

    out: Path
    num_processes: int
    is_discovering: bool
    allow_seen: bool
    resume: bool
    overwrite: bool


def cell_jobs(comparison: Comparison, out: Path, arguments: Sequence[str]) -> list[Job]:
    """Return a job for each cell: this program with --only."""
    return [
        Job(
            f"{method} on {env}",
            cell_folder(out, env, method),
            "experiments.compare",
            (*arguments, f"--out={out}", f"--only={env}:{method}"),
        )
        for env, method in comparison.cells()
    ]


def discovery_jobs(out: Path) -> list[Job]:
    """Return a job for each rule that --discover makes; one that was stopped goes on."""
    jobs = []
    for discovery in DISCOVERIES.values():
        folder = out / "rules" / discovery.rule
        arguments = (
            f"--rule={discovery.rule}",
            f"--envs={discovery.envs}",
            f"--steps={discovery.meta_steps}",
            f"--out={folder}",
            "--resume" if has_checkpoint(folder) else "--overwrite",
        )
        jobs.append(Job(f"discovery of {discovery.rule}", folder, "experiments.discover", arguments))
    return jobs


def run(comparison: Comparison, options: Options, arguments: Sequence[str]) -> str:
    """Run what is not finished, and write the report; returns a table of the aggregate scores.

    Args:
      comparison, options: what, and how.
      arguments: the command line that says the same to the process of a cell.
    """
    statistics.require()
    check_names(comparison)
    if options.is_discovering:
        for found in DISCOVERIES.values():
            refuse_seen(comparison, found.rule, settings.parse_envs(found.envs), options.allow_seen)
        no_files = dict.fromkeys(comparison.files, "")
        check(dataclasses.replace(comparison, files=no_files), options.allow_seen)
        given = []
    else:
        seen = check(comparison, options.allow_seen)
        given = [rule for rule in comparison.files.values() if rule not in ("", PUBLISHED)]
    digests = {rule: hashlib.sha256(path_of(rule).read_bytes()).hexdigest() for rule in given}
    record = dataclasses.asdict(comparison) | {"sha256": digests}
    runs = ("cells/*/*", "rules/*", "report/*")
    open_folder(options.out, "comparison", record, runs, resume=options.resume, overwrite=options.overwrite)
    if options.is_discovering:
        discoveries = discovery_jobs(options.out)
        run_all(discoveries, options.num_processes, options.out)
        for job in discoveries:
            if why := failure(job.folder):
                raise RunError(f"{job.name} failed: {why}")
        seen = check(comparison, options.allow_seen)
    cells = cell_jobs(comparison, options.out, arguments)
    run_all(cells, options.num_processes, options.out)
    text = report.write(comparison, options.out, seen)
    if failed := [job.name for job in cells if not job.is_finished]:
        print(text)
        raise RunError(
            f"{len(failed)} of {len(cells)} cells failed, {failed[0]} first; why is in {text.splitlines()[-1]}"
        )
    return text


def main(argv: list[str]) -> None:
    FLAGS = flags.FLAGS
    command_line.no_arguments(argv)
    methods = tuple(FLAGS.methods.split(","))
    for name in methods:
        if name not in METHODS:
            hint = did_you_mean(name, METHODS) or f": give some of {', '.join(METHODS)}"
            raise UsageError(f"--methods={FLAGS.methods}: {name!r} is no method{hint}")
    out = Path(FLAGS.out)
    rule_files = {name: str(FLAGS[name].value) for name in DISCOVERIES}
    if FLAGS.discover:
        if given := [name for name, path in rule_files.items() if path]:
            raise UsageError(f"--discover makes the file of --{given[0]}: give one of the two")
        rule_files = {name: str(out / "rules" / found.rule / "rule.npz") for name, found in DISCOVERIES.items()}
    seeds = command_line.parse_seeds(FLAGS.seeds)
    budget = command_line.parse_steps(FLAGS.budget)
    comparison = Comparison(settings.parse_envs(FLAGS.envs), budget, seeds, methods, rule_files)
    if FLAGS.only:
        cells = {f"{env}:{method}": (env, method) for env, method in comparison.cells()}
        if FLAGS.only not in cells:
            raise UsageError(f"--only={FLAGS.only} is no cell{did_you_mean(FLAGS.only, cells)}")
        run_cell(comparison, out, *cells[FLAGS.only])
        return
    options = Options(out, FLAGS.processes, FLAGS.discover, FLAGS.allow_seen, FLAGS.resume, FLAGS.overwrite)
    print(run(comparison, options, own_arguments()))


if __name__ == "__main__":
    flags.DEFINE_string("envs", "toy/catch,toy/grid_world/46,envpool/CartPole-v1", "Environments to evaluate in.")
    flags.DEFINE_string("budget", "200e3", "Environment steps of each agent.")
    flags.DEFINE_string("seeds", "0,1", "Seeds, such as 3 or 0,1,2 or 0-9.")
    flags.DEFINE_string("methods", ",".join(METHODS), "What to compare.")
    flags.DEFINE_string("scalar_rule", "", f"Discovered scalar rule: {settings.DISCOVERED}.")
    flags.DEFINE_string("disco_rule", "", f"Discovered rule with DiscoRL's targets: {settings.DISCOVERED}.")
    flags.DEFINE_boolean("discover", False, "Discover the two rules first, in environments of their own.")
    flags.DEFINE_boolean("allow_seen", False, "Evaluate rules also where they were discovered; the report marks it.")
    flags.DEFINE_integer("processes", os.cpu_count() or 1, "Cells at a time.", lower_bound=1)
    flags.DEFINE_string("only", "", "Run only the cell ENV:METHOD, in this process, and write no report.")
    flags.DEFINE_string("out", "results/compare", "Results folder.")
    flags.DEFINE_boolean("resume", False, "Go on with the cells that are not finished.")
    flags.DEFINE_boolean("overwrite", False, "Replace the comparison in the results folder.")
    command_line.start(main)
