"""Time the programs: what they take to start and to compile, how fast they are then, and their memory.

    taskset -c 0 frodo benchmark
    taskset -c 0 frodo benchmark --only=catch,pong_frodo --against=HEAD~3
    taskset -c 0 frodo benchmark --only=dqn,ppo,disco103 --peers=../peers --repeats=5
    taskset -c 0 frodo benchmark --only=growth --repeats=1 --out=results/growth.json
    JAX_NUM_CPU_DEVICES=8 frodo benchmark --only=one_device,eight_devices

A benchmark (a row of BENCHMARKS) is a program with its arguments, run in processes of its own on the cores of this one:
once *cold*, where nothing is compiled yet, then --repeats times *cached*, with what the cold one compiled. With
--against, each is run in turns with the same at another revision of the repository, which all machines of a --scheduler
must see: TMPDIR names a folder that they share. With --peers, some are run in turns with another package's program that
does the same at the same settings (`experiments.benchmarks.peers`). `growth` stands for programs of several sizes, of
which it draws what a step costs, as a PNG next to --out. What cannot be run is left out.

Prints the medians as a table, and one of ratios, this revision's numbers over those of others. --out has every sample,
the machine, and the revisions. Times are CPU seconds on CPUs, and wall seconds on an accelerator.
"""

from concurrent.futures import Future
from pathlib import Path
from typing import Any

from absl import flags

from agents.validation import did_you_mean
from experiments.benchmarks.growth import GROWTH, draw
from experiments.benchmarks.timing import BENCHMARKS, revisions, run, tables
from experiments.results import plots
from experiments.runs import command_line
from frodo import files
from frodo.logs import note
from frodo.runs import workers
from frodo.runs.errors import RunError, UsageError
from frodo.runs.folders import check_out


def main(argv: list[str]) -> None:
    FLAGS = flags.FLAGS
    command_line.no_arguments(argv)
    known, out = BENCHMARKS | GROWTH, Path(FLAGS.out)
    chosen = [x for name in FLAGS.only or BENCHMARKS for x in (GROWTH if name == "growth" else [name])]
    for name in (name for name in chosen if name not in known):
        expected = f"expected growth or one of {', '.join(BENCHMARKS)}{did_you_mean(name, known)}"
        if not known.keys() & set(chosen):
            raise UsageError(f"--only={','.join(FLAGS.only)}: {expected}")
        note(f"--only={','.join(FLAGS.only)}: {name} is left out: {expected}")
    check_out(out, is_file=True)
    if GROWTH.keys() & set(chosen):
        plots.require()
    results: dict[str, Any] = {"samples": {}}

    def on_done(name: str, future: Future) -> None:
        try:
            found = workers.result_of(future)
        except Exception as error:
            if not isinstance(error, RunError | UsageError) and not workers.is_lost(error):
                raise
            note(f"{name} is left out: {error}")
            return
        results["samples"][name] = found.pop("samples")
        results.update(found)
        files.write_json(out, results)

    with command_line.job_executor() as executor, revisions(FLAGS.against) as packages:
        with files.writing(out):
            out.parent.mkdir(parents=True, exist_ok=True)
        jobs = {name: (known[name], packages, FLAGS.repeats, FLAGS.peers) for name in chosen if name in known}
        workers.run_all(executor, run, jobs, on_done)
    if results["samples"]:
        print(tables(results, known))
        note(f"every sample is in {out}")
    figure = out.with_suffix(".png")
    if draw(figure, {name: next(iter(of.values())) for name, of in results["samples"].items()}):
        note(f"what a step costs, by size, is in {figure}")
    if failed := [name for name in chosen if name not in results["samples"]]:
        raise RunError(f"{len(failed)} of {len(chosen)} benchmarks could not be run: {', '.join(failed)}")


if __name__ == "__main__":
    flags.DEFINE_list("only", [], f"Only these, of {', '.join(BENCHMARKS)}; or growth.")
    flags.DEFINE_string("against", "", "A revision of the repository to compare with, such as HEAD~3.")
    flags.DEFINE_string("peers", "", "Folder with other packages' checkouts, to run their programs, too.")
    flags.DEFINE_integer("repeats", 3, "Cached processes of each benchmark.", lower_bound=1)
    command_line.define_job_flags("Benchmarks", processes=1)
    flags.DEFINE_string("out", "results/benchmark.json", "File of the results.")
    command_line.start(main)
