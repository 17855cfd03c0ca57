"""Compare what an agent gains from hand-made objectives, from one that it discovers online, and from discovered ones.

    python -m experiments.compare --scalar_rule=FILE --disco_rule=FILE
    python -m experiments.compare --envs=toy/catch,toy/grid_world/46 --budget=1e6 --seeds=0-4 --processes=2

with files of rules that `discover` found, in other environments than those.

Every method (the rows of METHODS) lives for --budget environment steps in every environment, with every seed: a cell is
a method in an environment, a run folder <out>/cells/<env>/<method>/, as `online` writes it, made by a process of its
own, whose messages are in log.txt. --resume goes on with the cells that are not finished. Writes report/: index.html,
which needs nothing else, the same figures as PNG, and scores.csv, statistics.csv and costs.csv.
"""

import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from absl import flags

from experiments import command_line, compare_report, discover, files, training
from experiments.command_line import RunOptions
from experiments.comparison import METHODS, Comparison, cell_folder, check, failure
from experiments.files import UsageError
from experiments.logs import note


def run_cell(comparison: Comparison, out: Path, env: str, method: str) -> None:
    """Run one cell in this process, going on where it stopped."""
    folder = cell_folder(out, env, method)
    has_checkpoint = any((folder / "checkpoints").glob("[0-9]*"))
    options = RunOptions(
        comparison.seeds, comparison.budget, str(folder), resume=has_checkpoint, overwrite=not has_checkpoint
    )
    training.train(comparison.configure(env, method), options, experiment="compare", name=method)


def run_all(comparison: Comparison, out: Path, num_processes: int, arguments: Sequence[str]) -> None:
    """Run the cells that are not finished, so many at a time, each on its share of the cores."""
    cells = comparison.cells()
    waiting = [cell for cell in cells if not (cell_folder(out, *cell) / "summary.json").exists()]
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    running: dict[int, tuple[subprocess.Popen, tuple[str, str], float]] = {}
    start, num_done, total = time.monotonic(), 0, len(waiting)
    note(f"{len(cells)} cells, {len(cells) - total} of them finished")
    try:
        while waiting or running:
            for place in range(num_processes):
                if place not in running and waiting:
                    cell = waiting.pop(0)
                    process = _start(out, cell, arguments, cores[place::num_processes])
                    running[place] = process, cell, time.monotonic()
            time.sleep(0.2)
            for place, (process, cell, begun) in list(running.items()):
                if process.poll() is None:
                    continue
                del running[place]
                num_done += 1
                now = time.monotonic()
                left = (now - start) / num_done * (total - num_done)
                how = "done" if process.returncode == 0 else f"failed: {failure(cell_folder(out, *cell))}"
                note(
                    f"{num_done} of {total}  {cell[1]} on {cell[0]}: {how} in {now - begun:.0f} s; "
                    f"about {left / 60:.0f} min left"
                )
    except KeyboardInterrupt:
        for process, *_ in running.values():  # Ctrl-C reached them too: they save and stop
            process.wait()
        note(f"stopped: go on with the same settings and --resume --out={out}")
        raise
    finally:
        for process, *_ in running.values():
            if process.poll() is None:
                process.terminate()


def _start(out: Path, cell: tuple[str, str], arguments: Sequence[str], cores: Sequence[int]) -> subprocess.Popen:
    folder = cell_folder(out, *cell)
    with files.writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        log = (folder / "log.txt").open("w")
    command = [sys.executable, "-m", "experiments.compare", *arguments, f"--out={out}", f"--only={cell[0]}:{cell[1]}"]
    everything = os.sched_getaffinity(0) if cores else set()
    if cores:
        os.sched_setaffinity(0, cores)  # which the process inherits
    try:
        with log:
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
            for cell in comparison.cells():
                (cell_folder(out, *cell) / "summary.json").unlink(missing_ok=True)
        files.write_json(path, record)
        return
    if not resume:
        raise UsageError(f"{out} holds a comparison: --resume goes on with it, --overwrite replaces it")
    earlier = json.loads(path.read_bytes())
    for key, now in record.items():
        if earlier.get(key) != now:
            raise UsageError(f"--resume: {key} was {earlier.get(key)} in {out} and is {now} now")


def main(argv: list[str]) -> None:
    FLAGS = flags.FLAGS
    if len(argv) > 1:
        raise UsageError(f"argument {argv[1]!r} is not understood: settings are given as --name=value")
    methods = tuple(FLAGS.methods.split(","))
    for name in methods:
        if name not in METHODS:
            hint = command_line.did_you_mean(name, list(METHODS)) or f": give some of {', '.join(METHODS)}"
            raise UsageError(f"--methods={FLAGS.methods}: {name!r} is no method{hint}")
    comparison = Comparison(
        discover.parse_envs(FLAGS.envs),
        command_line.parse_steps(FLAGS.budget),
        command_line.parse_seeds(FLAGS.seeds),
        methods,
        {"scalar_rule": FLAGS.scalar_rule, "disco_rule": FLAGS.disco_rule},
    )
    out = Path(FLAGS.out)
    if FLAGS.only:
        run_cell(comparison, out, *FLAGS.only.split(":"))
        return
    seen = check(comparison, FLAGS.allow_seen)
    open_folder(comparison, out, resume=FLAGS.resume, overwrite=FLAGS.overwrite)
    arguments = [argument for argument in sys.argv[1:] if argument not in ("--resume", "--overwrite")]
    run_all(comparison, out, FLAGS.processes, arguments)
    print(compare_report.write(comparison, out, seen))


if __name__ == "__main__":
    flags.DEFINE_string("envs", "toy/catch,toy/grid_world/46,envpool/CartPole-v1", "Environments to evaluate in.")
    flags.DEFINE_string("budget", "200e3", "Environment steps of each agent.")
    flags.DEFINE_string("seeds", "0,1", "Seeds, such as 3 or 0,1,2 or 0-9.")
    flags.DEFINE_string("methods", ",".join(METHODS), "What to compare.")
    flags.DEFINE_string("scalar_rule", "", "File of a scalar rule that `discover` found.")
    flags.DEFINE_string("disco_rule", "", "File of a rule with DiscoRL's targets that `discover` found.")
    flags.DEFINE_boolean("allow_seen", False, "Evaluate rules also where they were discovered; the report marks it.")
    flags.DEFINE_integer("processes", os.cpu_count() or 1, "Cells at a time.", lower_bound=1)
    flags.DEFINE_string("only", "", "Run only the cell ENV:METHOD, in this process, and write no report.")
    flags.DEFINE_string("out", "results/compare", "Results folder.")
    flags.DEFINE_boolean("resume", False, "Go on with the cells that are not finished.")
    flags.DEFINE_boolean("overwrite", False, "Replace the comparison in the results folder.")
    command_line.start(main)
