"""Time the programs: what they take to start and to compile, how fast they are then, and their memory.

    taskset -c 0 python -m experiments.benchmark
    taskset -c 0 python -m experiments.benchmark --only=catch,pong_frodo --against=../other_revision
    JAX_NUM_CPU_DEVICES=8 python -m experiments.benchmark --only=one_device,eight_devices

A benchmark (a row of BENCHMARKS) is a program with its arguments, run in processes of its own on the cores of this one:
once *cold*, where nothing is compiled yet, then --repeats times *cached*, with what the cold one compiled. With
--against, each is run in turns with the same of another checkout, as `git worktree add` makes one. What cannot be run
is left out.

Prints the medians as a table, and with --against one of ratios, this revision's numbers over the other's. --out has
every sample, the machine, and the revisions. Times are CPU seconds on CPUs, and wall seconds on an accelerator.
"""

from pathlib import Path
from typing import Any

from absl import flags

from agents.validation import check_choice
from experiments.benchmarks.timing import BENCHMARKS, ROOT, machine, revision_of, run, tables
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
        check_choice(f"--only={','.join(chosen)}: a benchmark", name, BENCHMARKS)
    check_out(out, is_file=True)
    packages = {revision_of(ROOT): ROOT}
    if FLAGS.against:
        other = Path(FLAGS.against).resolve()
        if not (other / "experiments" / "online.py").exists():
            raise UsageError(f"--against={FLAGS.against}: there is no experiments/online.py: name another checkout")
        packages[f"{revision_of(other)} of {other.name}"] = other
    with files.writing(out):
        out.parent.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = {"samples": {}}
    for name in chosen:
        try:
            found = run(BENCHMARKS[name], packages, FLAGS.repeats)
        except (RunError, UsageError) as error:
            note(f"{name} is left out: {error}")
            continue
        results["samples"][name] = found.pop("samples")
        results |= found | machine()
        files.write_json(out, results)
    if results["samples"]:
        print(tables(results, list(packages)))
        note(f"every sample is in {out}")
    if failed := [name for name in chosen if name not in results["samples"]]:
        raise RunError(f"{len(failed)} of {len(chosen)} benchmarks could not be run: {', '.join(failed)}")


if __name__ == "__main__":
    flags.DEFINE_list("only", [], f"Only these benchmarks, of {', '.join(BENCHMARKS)}.")
    flags.DEFINE_string("against", "", "The folder of another checkout to compare with.")
    flags.DEFINE_integer("repeats", 3, "Cached processes of each benchmark.", lower_bound=1)
    flags.DEFINE_string("out", "results/benchmark.json", "File of the results.")
    command_line.start(main)
