"""Time the programs: what they take to start and to compile, how fast they are then, and their memory.

    python -m experiments.benchmark
    python -m experiments.benchmark --only=catch,pong_frodo --against=HEAD~3

A benchmark (a row of BENCHMARKS) is a program with its arguments, run in processes of its own on --num_cores cores:
once *cold*, where nothing is compiled yet, then --repeats times *cached*, with what the cold one compiled. With
--against, each is run in turns with the same at another revision of the repository.

Prints the medians as a table, and with --against one of ratios, this revision's numbers over the other's. --out has
both and every sample, the machine, the revisions, and in `failed` what could not be run and why. On an accelerator the
tables show wall seconds: CPU seconds say little there.
"""

import contextlib
import os
import platform
import re
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import flags

from experiments.benchmarks import revisions
from experiments.benchmarks.cases import BENCHMARKS, Benchmark, choose
from experiments.benchmarks.processes import Sample, choose_cores, run_once
from experiments.benchmarks.tables import OTHER, THIS, result, tables
from experiments.results import reading
from experiments.runs import command_line
from frodo import files
from frodo.logs import note
from frodo.runs.errors import RunError, UsageError
from frodo.runs.folders import check_out


def run(
    benchmarks: Mapping[str, Benchmark], packages: Mapping[str, Path], repeats: int, cores: Sequence[int]
) -> dict[str, Any]:
    """Run benchmarks; what cannot be run is said in a line, and left out.

    Args:
      benchmarks: by name.
      packages: the folder that they are imported from, for THIS revision and maybe the OTHER.
      repeats: cached processes of each.
      cores: that a process runs on; [] for all.
    Returns:
      `benchmarks`, a `result` for each name; `failed`, for each name why, by revision; and, as the runs say them, the
      `device` and the `versions` of packages.
    """
    results: dict[str, Any] = {"benchmarks": {}, "failed": {}}
    total, num_done, start = len(benchmarks) * len(packages) * (1 + repeats), 0, time.monotonic()
    for name, benchmark in benchmarks.items():
        samples: dict[str, list[Sample]] = {revision: [] for revision in packages}
        failed: dict[str, str] = {}
        with tempfile.TemporaryDirectory(prefix="frodo_benchmark_") as folder:
            for turn in range(1 + repeats):
                for revision in packages:
                    num_done += 1
                    if revision in failed:
                        continue
                    which = f"{name} ({revision})" if len(packages) > 1 else name
                    compiled, out = Path(folder, revision, "compiled"), Path(folder, revision, str(turn))
                    try:
                        sample = run_once(benchmark, packages[revision], compiled, out, cores)
                    except (RunError, UsageError) as error:
                        failed[revision] = str(error)
                        note(f"{which} is left out: {error}")
                        continue
                    samples[revision].append(sample)
                    config = reading.read(out).config
                    results |= {key: config[key] for key in ("device", "versions")}
                    left = (time.monotonic() - start) / num_done * (total - num_done)
                    took = f"{'cached' if turn else 'cold'}, {sample['wall_s']:.0f} s"
                    note(f"{num_done} of {total}  {which}: {took}; {left // 60:.0f}:{left % 60:02.0f} left")
        if failed:
            results["failed"][name] = failed
        if whole := {revision: taken for revision, taken in samples.items() if revision not in failed}:
            results["benchmarks"][name] = result(benchmark, whole)
    return results


def processor() -> str:
    """Return the name of this machine's processor."""
    with contextlib.suppress(OSError):
        if found := re.search(
            r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE
        ):
            return found[1]
    return platform.processor() or platform.machine()


def main(argv: list[str]) -> None:
    FLAGS = flags.FLAGS
    command_line.no_arguments(argv)
    benchmarks, cores, out = choose(FLAGS.only), choose_cores(FLAGS.num_cores), Path(FLAGS.out)
    check_out(out, is_file=True)
    commits, packages = {THIS: revisions.describe()}, {THIS: revisions.ROOT}
    with tempfile.TemporaryDirectory(prefix="frodo_revision_") as folder:
        if FLAGS.against:
            packages[OTHER] = Path(folder)
            commits[OTHER] = revisions.check_out(FLAGS.against, packages[OTHER])
        with files.writing(out):
            out.parent.mkdir(parents=True, exist_ok=True)
        results = run(benchmarks, packages, FLAGS.repeats, cores)
    if results["benchmarks"]:
        machine = {"processor": processor(), "num_cores": len(cores) or os.cpu_count(), "revisions": commits}
        results = machine | results
        print(tables(results))
        files.write_json(out, results)
        note(f"every sample is in {out}")
    if failed := results["failed"]:
        raise RunError(f"{len(failed)} of {len(benchmarks)} benchmarks could not be run: {', '.join(failed)}")


if __name__ == "__main__":
    flags.DEFINE_string("only", "", f"Only these benchmarks, of {', '.join(BENCHMARKS)}.")
    flags.DEFINE_string("against", "", "A revision of the repository to compare with, such as HEAD~3.")
    flags.DEFINE_integer("repeats", 3, "Cached processes of each benchmark.", lower_bound=1)
    flags.DEFINE_integer("num_cores", 1, "Cores of a process; 0 for all.", lower_bound=0)
    flags.DEFINE_string("out", "results/benchmark.json", "File of the results.")
    command_line.start(main)
