"""Compare what an agent gains from hand-made objectives, from one that it discovers online, and from discovered ones.

    python -m experiments.compare --discover
    python -m experiments.compare --scalar_rule=FILE --disco_rule=FILE
    python -m experiments.compare --envs=toy/catch,toy/grid_world/46 --budget=1e6 --seeds=0-4 --processes=2

FILE is a rule that `discover` found, in other environments than those of the comparison; --discover makes both rules
first, in half an hour of two cores.

Every method (the rows of METHODS) lives for --budget environment steps in every environment, with every seed: a cell is
a method in an environment, a run folder <out>/cells/<env>/<method>/, as `online` writes it, made by a process of its
own, whose messages are in log.txt. --resume goes on with the cells that are not finished. Writes report/: index.html,
which needs nothing else, the same figures as PNG, and scores.csv, statistics.csv and costs.csv.
"""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from absl import flags

from experiments import command_line, compare_report, discover, files, statistics, training
from experiments.command_line import RunOptions
from experiments.comparison import DISCOVERIES, METHODS, Comparison, cell_folder, check, failure, refuse_seen
from experiments.files import UsageError
from experiments.logs import note
from experiments.runs import has_checkpoint


def run_cell(comparison: Comparison, out: Path, env: str, method: str) -> None:
    """Run one cell in this process, going on where it stopped."""
    folder = cell_folder(out, env, method)
    can_go_on = has_checkpoint(folder)
    options = RunOptions(comparison.seeds, comparison.budget, str(folder), resume=can_go_on, overwrite=not can_go_on)
    training.train(comparison.configure(env, method), options, experiment="compare", name=method)


class Options(NamedTuple):
    """How a comparison is run."""

    out: Path
    num_processes: int
    is_discovering: bool
    allow_seen: bool
    resume: bool
    overwrite: bool


class Job(NamedTuple):
    """What a process of its own does, until <folder>/summary.json is there; its messages are in <folder>/log.txt."""

    name: str
    folder: Path
    module: str
    arguments: tuple[str, ...]

    @property
    def is_finished(self) -> bool:
        return (self.folder / "summary.json").exists()


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


def run_all(jobs: Sequence[Job], num_processes: int, out: Path) -> None:
    """Run the jobs that are not finished, so many at a time, each on its share of the cores."""
    waiting = [job for job in jobs if not job.is_finished]
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    running: dict[int, tuple[subprocess.Popen, Job, float]] = {}
    start, num_done, total = time.monotonic(), 0, len(waiting)
    note(f"{len(jobs)} runs, {len(jobs) - total} of them finished")
    try:
        while waiting or running:
            for place in range(num_processes):
                if place not in running and waiting:
                    job = waiting.pop(0)
                    running[place] = _start(job, cores[place::num_processes]), job, time.monotonic()
            time.sleep(0.2)
            for place, (process, job, begun) in list(running.items()):
                if process.poll() is None:
                    continue
                del running[place]
                num_done += 1
                now = time.monotonic()
                left = (now - start) / num_done * (total - num_done)
                how = "done" if process.returncode == 0 else f"failed: {failure(job.folder)}"
                note(f"{num_done} of {total}  {job.name}: {how} in {now - begun:.0f} s; about {left / 60:.0f} min left")
    except KeyboardInterrupt:
        for process, *_ in running.values():  # Ctrl-C reached them too: they save and stop
            process.wait()
        note(f"stopped: go on with the same settings and --resume --out={out}")
        raise
    finally:
        for process, *_ in running.values():
            if process.poll() is None:
                process.terminate()


def _start(job: Job, cores: Sequence[int]) -> subprocess.Popen:
    with files.writing(job.folder):
        job.folder.mkdir(parents=True, exist_ok=True)
        log = (job.folder / "log.txt").open("w")
    everything = os.sched_getaffinity(0) if cores else set()
    if cores:
        os.sched_setaffinity(0, cores)  # which the process inherits
    try:
        with log:
            command = [sys.executable, "-m", job.module, *job.arguments]
            return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    finally:
        if cores:
            os.sched_setaffinity(0, everything)


def open_folder(comparison: Comparison, out: Path, *, resume: bool, overwrite: bool) -> None:
    """Write comparison.json, or check that a comparison that goes on is the same.

    Raises:
      UsageError: if the folder holds a comparison and it was not said what is to become of it, or it is another one.
    """
    path = out / "comparison.json"
    record = json.loads(json.dumps(dataclasses.asdict(comparison)))
    if not path.exists() or overwrite:
        if resume:
            raise UsageError(f"--resume: {out} holds no comparison")
        if overwrite:
            for path_of_run in (*out.glob("cells/*/*"), *out.glob("rules/*")):
                shutil.rmtree(path_of_run)
        files.write_json(path, record)
        return
    if not resume:
        raise UsageError(f"{out} holds a comparison: --resume goes on with it, --overwrite replaces it")
    earlier = json.loads(path.read_bytes())
    for key, now in record.items():
        if earlier.get(key) != now:
            raise UsageError(f"--resume: {key} was {earlier.get(key)} in {out} and is {now} now")


def run(comparison: Comparison, options: Options, arguments: Sequence[str]) -> str:
    """Run what is not finished, and write the report; returns a table of the aggregate scores.

    Args:
      comparison, options: what, and how.
      arguments: the command line that says the same to the process of a cell.
    """
    statistics.require()
    if options.is_discovering:
        for found in DISCOVERIES.values():
            refuse_seen(comparison, found.rule, discover.parse_envs(found.envs), options.allow_seen)
    else:
        seen = check(comparison, options.allow_seen)
    open_folder(comparison, options.out, resume=options.resume, overwrite=options.overwrite)
    if options.is_discovering:
        run_all(discovery_jobs(options.out), options.num_processes, options.out)
        seen = check(comparison, options.allow_seen)
    run_all(cell_jobs(comparison, options.out, arguments), options.num_processes, options.out)
    return compare_report.write(comparison, options.out, seen)


def main(argv: list[str]) -> None:
    FLAGS = flags.FLAGS
    command_line.no_arguments(argv)
    methods = tuple(FLAGS.methods.split(","))
    for name in methods:
        if name not in METHODS:
            hint = command_line.did_you_mean(name, list(METHODS)) or f": give some of {', '.join(METHODS)}"
            raise UsageError(f"--methods={FLAGS.methods}: {name!r} is no method{hint}")
    out = Path(FLAGS.out)
    rule_files = {name: str(FLAGS[name].value) for name in DISCOVERIES}
    if FLAGS.discover:
        if given := [name for name, path in rule_files.items() if path]:
            raise UsageError(f"--discover makes the file of --{given[0]}: give one of the two")
        rule_files = {name: str(out / "rules" / found.rule / "rule.npz") for name, found in DISCOVERIES.items()}
    seeds = command_line.parse_seeds(FLAGS.seeds)
    budget = command_line.parse_steps(FLAGS.budget)
    comparison = Comparison(discover.parse_envs(FLAGS.envs), budget, seeds, methods, rule_files)
    if FLAGS.only:
        run_cell(comparison, out, *FLAGS.only.split(":"))
        return
    options = Options(out, FLAGS.processes, FLAGS.discover, FLAGS.allow_seen, FLAGS.resume, FLAGS.overwrite)
    print(run(comparison, options, [x for x in sys.argv[1:] if x not in ("--resume", "--overwrite")]))


if __name__ == "__main__":
    flags.DEFINE_string("envs", "toy/catch,toy/grid_world/46,envpool/CartPole-v1", "Environments to evaluate in.")
    flags.DEFINE_string("budget", "200e3", "Environment steps of each agent.")
    flags.DEFINE_string("seeds", "0,1", "Seeds, such as 3 or 0,1,2 or 0-9.")
    flags.DEFINE_string("methods", ",".join(METHODS), "What to compare.")
    flags.DEFINE_string("scalar_rule", "", "File of a scalar rule that `discover` found.")
    flags.DEFINE_string("disco_rule", "", "File of a rule with DiscoRL's targets that `discover` found.")
    flags.DEFINE_boolean("discover", False, "Discover the two rules first, in environments of their own.")
    flags.DEFINE_boolean("allow_seen", False, "Evaluate rules also where they were discovered; the report marks it.")
    flags.DEFINE_integer("processes", os.cpu_count() or 1, "Cells at a time.", lower_bound=1)
    flags.DEFINE_string("only", "", "Run only the cell ENV:METHOD, in this process, and write no report.")
    flags.DEFINE_string("out", "results/compare", "Results folder.")
    flags.DEFINE_boolean("resume", False, "Go on with the cells that are not finished.")
    flags.DEFINE_boolean("overwrite", False, "Replace the comparison in the results folder.")
    command_line.start(main)
