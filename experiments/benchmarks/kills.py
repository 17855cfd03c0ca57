"""A run of two processes, killed at random moments, beside one that is not: python -m experiments.benchmarks.kills

FRODO on a small Catch with checkpoints twice a second. One of the processes is killed, in turns, at a random moment
after both were started; then both go on with --resume. Prints of each kill how far the run was, how long the other
process lived on, and how it ended; and whether the end is that of the run that was not killed, bit for bit.
"""

import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from absl import app, flags

from experiments.results import reading
from experiments.runs.checkpoints import Checkpoints
from experiments.runs.folders import has_checkpoint
from frodo.logs import table

ITERATION = 8 * 2 * 4  # environment steps
SETTINGS = ("batch_size=8", "unroll=4", "num_updates=1", "validation_unroll=4", "rule.lstm=3", "network.hidden=4")
SAVING_OFTEN = (
    "import runpy, experiments.runs.run as run; run.SAVE_SECONDS = 0.5; "
    "runpy.run_module('experiments.online', run_name='__main__', alter_sys=True)"
)
CLOCKS = ("seconds", "cpu_seconds", "peak_memory_mb")


class Kill(NamedTuple):
    """What came of one.

    Attributes:
      victim: the process that was killed.
      steps: environment steps of the run's last row before.
      seconds: how long the other process lived on.
      end: how it ended.
    """

    victim: int
    steps: int
    seconds: float
    end: str


def pair(folder: Path, num_iterations: int, *others: str) -> list[subprocess.Popen]:
    """Start both processes of a run."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        coordinator = f"--coordinator=127.0.0.1:{free.getsockname()[1]}"
    arguments = ["--env=toy/catch/4x3", "--rule=frodo", f"--steps={num_iterations * ITERATION}", f"--out={folder}"]
    arguments += [*(f"--config.{x}" for x in SETTINGS), coordinator, "--num_processes=2", "--timeout=20", *others]
    start = lambda i: subprocess.Popen(
        [sys.executable, "-c", SAVING_OFTEN, *arguments, f"--process_id={i}"],
        env=os.environ | {"JAX_NUM_CPU_DEVICES": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    return [start(0), start(1)]


def finish(processes: Sequence[subprocess.Popen]) -> None:
    """Wait for the end of a run; RuntimeError if it fails."""
    for process in processes:
        said = process.communicate()[1]
        if process.returncode:
            raise RuntimeError(said)


def kill(processes: Sequence[subprocess.Popen], victim: int, folder: Path) -> Kill:
    """Kill one process, and see how the other ends; RuntimeError if it does not, within a minute."""
    steps = last_step(folder)
    processes[victim].kill()
    begun, other = time.monotonic(), processes[1 - victim]
    try:
        said = other.communicate(timeout=60)[1].splitlines()
    except subprocess.TimeoutExpired:
        other.kill()
        raise RuntimeError(f"process {1 - victim} did not end") from None
    seconds = time.monotonic() - begun
    processes[victim].communicate()
    if other.returncode == 0:
        raise RuntimeError("the run was over before the kill; give more --iterations")
    if other.returncode == -signal.SIGABRT:
        return Kill(victim, steps, seconds, "aborted by JAX")
    errors = [line for line in said if line.startswith("error: ")]
    return Kill(victim, steps, seconds, "one line" if len(errors) == 1 else f"{len(errors)} lines of errors")


def last_step(folder: Path) -> int:
    """Return how many environment steps are in metrics.csv."""
    try:
        return int(reading.read(folder).columns["env_steps"].max())
    except (OSError, ValueError, KeyError):
        return 0


def end_of(folder: Path, num_iterations: int) -> tuple[list[str], bytes]:
    """Return the rows of a run without clocks, and its last state."""
    lines = [line.split(",") for line in (folder / "metrics.csv").read_text().splitlines()]
    kept = [i for i, name in enumerate(lines[0]) if name not in CLOCKS]
    rows = [",".join(line[i] for i in kept) for line in lines]
    return rows, Checkpoints(folder / "checkpoints", is_reader=True)._read(num_iterations * ITERATION)[0]


def run(folder: Path, num_iterations: int, waits: Sequence[Callable[[Path], None]]) -> tuple[list[Kill], bool]:
    """Make both runs, and kill one of them after each wait; returns what came of it, and whether both end as one.

    Args:
      folder: for both.
      num_iterations: of a run.
      waits: called after a start with the folder of the run that is to be killed.
    """
    finish(pair(folder / "whole", num_iterations))
    killed, kills = folder / "killed", list[Kill]()
    for number, wait in enumerate(waits):
        processes = pair(killed, num_iterations, "--resume" if has_checkpoint(killed) else "--overwrite")
        wait(killed)
        kills.append(kill(processes, number % 2, killed))
    finish(pair(killed, num_iterations, "--resume"))
    return kills, end_of(killed, num_iterations) == end_of(folder / "whole", num_iterations)


def main(argv: list[str]) -> None:
    del argv
    given = flags.FLAGS
    rng = random.Random(given.seed)
    with tempfile.TemporaryDirectory() as folder:
        delays = [rng.uniform(0, given.longest) for _ in range(given.kills)]
        waits = [lambda _, delay=delay: time.sleep(delay) for delay in delays]
        kills, is_same = run(Path(folder), given.iterations, waits)
    rows = [
        {"killed after, s": f"{delay:.1f}", "process": one.victim, "steps in metrics.csv": one.steps}
        | {"the other lived on, s": f"{one.seconds:.1f}", "and ended by": one.end}
        for delay, one in zip(delays, kills, strict=True)
    ]
    print(f"{table(rows)}\nthe end is that of a run that was not killed, bit for bit: {'yes' if is_same else 'NO'}")


if __name__ == "__main__":
    flags.DEFINE_integer("kills", 10, "How often it is killed.")
    flags.DEFINE_integer("seed", 0, "Of the random moments.")
    flags.DEFINE_integer("iterations", 5_000, "Of the run.")
    flags.DEFINE_float("longest", 30.0, "Seconds after the start at which a process is killed at the latest.")
    app.run(main)
