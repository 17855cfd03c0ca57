"""A benchmark as a process of its own, on some cores, and the numbers of it."""

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

from experiments.benchmarks.cases import Benchmark, Unit
from experiments.results import reading
from experiments.runs import jobs
from frodo.runs.errors import RunError, UsageError

MIN_COMPILE_SECONDS = 0.2  # of what is kept: as runs/compiled_programs.py has it, for revisions before it, too

Sample = Mapping[str, float]  # the numbers of one process by their names


def choose_cores(num_cores: int) -> list[int]:
    """Return the first cores that this process may use; [] for all, by 0 or where processes cannot be pinned."""
    if not resource:
        raise UsageError("this platform does not say how many CPU seconds a process took, which benchmarks are about")
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if cores and num_cores > len(cores):
        raise UsageError(f"--num_cores={num_cores}: this process may use {len(cores)}")
    return cores[:num_cores]


def run_once(benchmark: Benchmark, packages: Path, compiled: Path, out: Path, cores: Sequence[int]) -> Sample:
    """Run a benchmark once.

    Args:
      packages: the folder that the packages are imported from.
      compiled: the folder of compiled programs, empty or from an earlier process.
      out: the folder of the run, which is not there yet.
      cores: that the process runs on; [] for all.
    Raises:
      RunError: if the program fails, saying why.
      UsageError: if it wrote no metrics.
    """
    env = os.environ | {
        "PYTHONPATH": str(packages),
        "JAX_COMPILATION_CACHE_DIR": str(compiled),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": str(MIN_COMPILE_SECONDS),
        **jobs.ENVIRONMENT,
    }
    command = [sys.executable, "-m", f"experiments.{benchmark.program}"]
    command += [*shlex.split(benchmark.arguments), f"--out={out}"]
    out.mkdir(parents=True)
    cpu, wall = _cpu_seconds_of_children(), time.monotonic()
    with (
        (out / "log.txt").open("w", encoding="utf-8") as log,
        subprocess.Popen(
            command,
            cwd=out.parent,
            env=env,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            preexec_fn=(lambda: os.sched_setaffinity(0, cores)) if cores else None,
        ) as process,
    ):
        try:
            process.wait()
        except BaseException:
            process.kill()
            raise
    seconds = {"cpu": _cpu_seconds_of_children() - cpu, "wall": time.monotonic() - wall}
    if process.returncode < 0:
        raise RunError(f"it was ended by {signal.Signals(-process.returncode).name}")
    if process.returncode:
        raise RunError(jobs.failure(out) or f"it ended with exit code {process.returncode}")
    return read_sample(out, benchmark.unit, seconds)


def _cpu_seconds_of_children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def read_sample(out: Path, unit: Unit, seconds: Mapping[str, float]) -> Sample:
    """Return the numbers of a run.

    Up to the first row of its metrics a run mostly compiles; the time per unit is the median over pairs of neighbouring
    rows; start and end are what the process does before the run (imports) and after its last row.

    Args:
      out: the run's folder.
      unit: what its speed is counted in, that of all seeds together.
      seconds: of the whole process, by the clocks "cpu" and "wall".
    """
    columns = reading.read(out).columns
    if missing := {unit.column, "cpu_seconds", "seconds", "peak_memory_mb"} - set(columns):
        raise RunError(f"its metrics have no {' and no '.join(sorted(missing))}")
    seeds = columns["seed"]
    of_first = seeds == seeds[0]
    if of_first.sum() < 2:
        raise RunError("it wrote one row of metrics, expected at least two")
    units = np.diff(columns[unit.column][of_first]) * len(set(seeds)) / unit.size
    sample = {"peak_memory_mb": float(columns["peak_memory_mb"].max())}
    for clock, column in (("cpu", "cpu_seconds"), ("wall", "seconds")):
        at = columns[column][of_first]
        sample[f"{clock}_ms_per_unit"] = 1000 * float(np.median(np.diff(at) / units))
        sample[f"{clock}_s_to_first_row"] = float(at[0])
        sample[f"{clock}_s_of_start_and_end"] = seconds[clock] - float(at[-1])
        sample[f"{clock}_s"] = seconds[clock]
    return sample
