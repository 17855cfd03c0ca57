"""Time the programs: what they take to start and to compile, how fast they are then, and their memory.

    python -m experiments.benchmark
    python -m experiments.benchmark --only=catch,pong_frodo --against=HEAD~3
    JAX_NUM_CPU_DEVICES=8 python -m experiments.benchmark --only=one_device,eight_devices

A benchmark (a row of BENCHMARKS) is a program with its arguments, run in processes of its own on --num_cores cores:
once *cold*, where nothing is compiled yet, then --repeats times *cached*, with what the cold one compiled. With
--against, each is run in turns with the same at another revision of the repository, which all machines of a --scheduler
must see: TMPDIR names a folder that they share. What cannot be run is left out.

Prints the medians as a table, and with --against one of ratios, this revision's numbers over the other's. --out has
every sample, the machine, and the revisions. Times are CPU seconds on CPUs, and wall seconds on an accelerator.
"""

import contextlib
import os
import subprocess
import tempfile
from pathlib import Path

from absl import flags

from agents.validation import did_you_mean
from experiments.benchmarks.timing import BENCHMARKS, ROOT, check_out_revision, git, run, tables
from experiments.runs import command_line
from frodo import files
from frodo.logs import note
from frodo.runs.errors import RunError, UsageError
from frodo.runs.folders import check_out


def main(argv: list[str]) -> None:
    FLAGS = flags.FLAGS
    command_line.no_arguments(argv)
    chosen, out = FLAGS.only or list(BENCHMARKS), Path(FLAGS.out)
    for name in chosen:
        if name not in BENCHMARKS:
            hint = did_you_mean(name, BENCHMARKS) or f": give some of {', '.join(BENCHMARKS)}"
            raise UsageError(f"--only={','.join(chosen)}: {name!r} is no benchmark{hint}")
    num_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
    if num_cores and not FLAGS.scheduler and FLAGS.num_cores > num_cores:
        raise UsageError(f"--num_cores={FLAGS.num_cores}: this process may use {num_cores}")
    check_out(out, is_file=True)
    packages = {"this": ROOT}
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        packages = {git("describe", "--always", "--dirty", "--exclude=*").decode().strip(): ROOT}
    with tempfile.TemporaryDirectory(prefix="frodo_revision_") as folder:
        if FLAGS.against:
            packages[check_out_revision(FLAGS.against, Path(folder))] = Path(folder)
        with files.writing(out):
            out.parent.mkdir(parents=True, exist_ok=True)
        own = {name: BENCHMARKS[name] for name in chosen}
        with command_line.job_executor() as executor:
            results = run(own, packages, FLAGS.repeats, FLAGS.num_cores, executor)
    if results["samples"]:
        print(tables(results, list(packages)))
        files.write_json(out, results)
        note(f"every sample is in {out}")
    if failed := [name for name in chosen if name not in results["samples"]]:
        raise RunError(f"{len(failed)} of {len(chosen)} benchmarks could not be run: {', '.join(failed)}")


if __name__ == "__main__":
    flags.DEFINE_list("only", [], f"Only these benchmarks, of {', '.join(BENCHMARKS)}.")
    flags.DEFINE_string("against", "", "A revision of the repository to compare with, such as HEAD~3.")
    flags.DEFINE_integer("repeats", 3, "Cached processes of each benchmark.", lower_bound=1)
    flags.DEFINE_integer("num_cores", 1, "Cores of a process; 0 for all.", lower_bound=0)
    command_line.define_job_flags("Benchmarks", processes=1)
    flags.DEFINE_string("out", "results/benchmark.json", "File of the results.")
    command_line.start(main)
