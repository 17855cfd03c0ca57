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
from frodo.logs import table
from frodo.runs.checkpoints import Checkpoints
from frodo.runs.folders import has_checkpoint

ITERATION = 8 * 2 * 4  # environment steps
TINY = (
    "--env=toy/catch/4x3",
    "--rule=frodo",
    "--config.batch_size=8",
    "--config.unroll=4",
    "--config.num_updates=1",
    "--config.validation_unroll=4",
    "--config.rule.lstm=3",
    "--config.network.hidden=4",
)
SAVING_OFTEN = (
    "import runpy, frodo.runs.run as run; run.SAVE_SECONDS = 0.5; "
    "runpy.run_module('experiments.online', run_name='__main__', alter_sys=True)"
)
ENDS = ("another process of the run is gone", "not all of 2 processes came up")
CLOCKS = ("seconds", "cpu_seconds", "peak_memory_mb")
PATIENCE = 600.0  # seconds for a whole run


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


def coordinator() -> str:
    """Return a flag with a port that is free here."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"--coordinator=127.0.0.1:{free.getsockname()[1]}"


def pair(folder: Path, num_iterations: int) -> list[subprocess.Popen]:
    """Start both processes of a run, which goes on from its last checkpoint, if it has one."""
    arguments = [*TINY, f"--steps={num_iterations * ITERATION}", f"--out={folder}", coordinator()]
    arguments += ["--num_processes=2", "--timeout=20", "--resume" if has_checkpoint(folder) else "--overwrite"]
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
    try:
        for process in processes:
            said = process.communicate(timeout=PATIENCE)[1]
            if process.returncode:
                raise RuntimeError(said)
    finally:
        for process in processes:
            process.kill()


def kill(processes: Sequence[subprocess.Popen], victim: int, folder: Path) -> Kill:
    """Kill one process, and see how the other ends; RuntimeError if both had ended, or if it does not in a minute."""
    steps = last_step(folder)
    if any(process.poll() is not None for process in processes):
        raise RuntimeError("the run was over before the kill; give more --iterations")
    processes[victim].kill()
    begun, other = time.monotonic(), processes[1 - victim]
    try:
        said = other.communicate(timeout=60)[1].splitlines()
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"process {1 - victim} did not end") from None
    finally:
        for process in processes:
            process.kill()
            process.wait()
    seconds = time.monotonic() - begun
    if other.returncode == 0:
        raise RuntimeError("the run was over before the kill; give more --iterations")
    if other.returncode == -signal.SIGABRT:
        return Kill(victim, steps, seconds, "aborted by JAX")
    errors = [line for line in said if line.startswith("error: ")]
    found = [end for end in ENDS if len(errors) == 1 and end in errors[0]]
    return Kill(victim, steps, seconds, f"a line: {found[0]}" if found else "\n".join(said))


def last_step(folder: Path) -> int:
    """Return how many environment steps are in metrics.csv."""
    try:
        return int(reading.read(folder).columns["env_steps"].max())
    except (OSError, ValueError, KeyError):
        return 0


def end_of(folder: Path, num_iterations: int) -> tuple[list[str], bytes]:
    """Return the rows of a run without clocks, and its last state."""
    lines = [line.split(",") for line in (folder / "metrics.csv").read_text(encoding="utf-8").splitlines()]
    kept = [i for i, name in enumerate(lines[0]) if name not in CLOCKS]
    rows = [",".join(line[i] for i in kept) for line in lines]
    return rows, Checkpoints(folder / "checkpoints", is_reader=True).read(num_iterations * ITERATION)[0]


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
        processes = pair(killed, num_iterations)
        wait(killed)
        kills.append(kill(processes, number % 2, killed))
    finish(pair(killed, num_iterations))
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
    flags.DEFINE_integer("iterations", 20_000, "Of the run.")
    flags.DEFINE_float("longest", 40.0, "Seconds after the start at which a process is killed at the latest.")
    app.run(main)
