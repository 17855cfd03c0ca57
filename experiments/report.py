"""Compare runs: frodo report RUN... [--metric=return] [--median] [--out=report.png]

Draws one metric of every run over its environment steps, with confidence bands over seeds, and prints a table of final
numbers: for each seed the mean over the last fifth of the run, then mean and standard deviation (n - 1) over seeds.
Runs that differ in nothing but their seeds are one curve: a population has one seed, so several have a folder each.
With --median it is the median over runs that is drawn, and stands below them. A run is named by its folder, or by a
file in it, such as results/atari57/frodo/*/summary.json, of those that are finished. With --reach=LEAST the table has
the steps after which the metric, as the mean over a twentieth of the run, is first so large. Seeds that never come so
far count with the run's end. Where runs have the same seeds, the difference from the first run stands next to it, with
the half-width of its 95 % Student-t interval.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from absl import flags

from agents.validation import did_you_mean
from experiments.results import plots
from experiments.results.reading import DIFFERENCE, X, curve, final_values, median, pool, reached, read
from experiments.runs.command_line import start
from frodo.logs import note, table
from frodo.runs.errors import UsageError
from frodo.runs.folders import check_out

NO_METRICS = ("seed", "update", X, "env_frames")  # columns that are not asked for


def run(paths: Sequence[str], metric: str, out: str, is_median: bool = False, reach: float | None = None) -> list[dict]:
    """Draw and return the rows of the table.

    Raises:
      UsageError: if a folder holds no run, or no run has the metric: the nearest one is named.
    """
    if not paths:
        raise UsageError("name the results folders to compare: frodo report RUN...")
    plots.require()
    folders = [path.parent if path.is_file() else path for path in map(Path, paths)]
    everything = pool([read(folder) for folder in folders])
    having = [results for results in everything if metric in results.columns]
    if not having:
        known = sorted({name for results in everything for name in results.columns} - set(NO_METRICS))
        raise UsageError(f"--metric={metric} is in no run{did_you_mean(metric, known)}; there are {', '.join(known)}")
    for results in everything:
        if metric not in results.columns:
            note(f"{results.folder} has no {metric}: left out")
    series = [curve(results, metric) for results in having]
    if len({one.label for one in series}) < len(series):
        series = [one._replace(label=str(results.folder)) for one, results in zip(series, having, strict=True)]
    title = ", ".join(sorted({str(results.config.get("experiment", "")) for results in having}))
    log = metric == DIFFERENCE
    if is_median:
        series = [median(series, f"median of {len(series)} runs")]
    plots.curves(out, series, title=f"{title}: {metric}", xlabel="environment steps", ylabel=metric, log=log)
    rows = []
    for results in having:
        finals = final_values(results, metric)
        std = float(np.std(finals, ddof=1)) if len(finals) > 1 else float("nan")
        row = {"run": str(results.folder), "seeds": len(finals), X: int(results.columns[X].max())}
        row |= {metric: float(np.mean(finals)), "std": std}
        rows.append(row | ({} if reach is None else reached(results, having[0], metric, reach)))
    if is_median:
        rows.append({"run": "median"} | {name: float(np.median([row[name] for row in rows])) for name in (X, metric)})
    return rows


def main(argv: list[str]) -> None:
    check_out(Path(flags.FLAGS.out), is_file=True)
    FLAGS = flags.FLAGS
    print(table(run(argv[1:], FLAGS.metric, FLAGS.out, FLAGS.median, FLAGS.reach)))
    note(f"curves: {FLAGS.out}")


if __name__ == "__main__":
    flags.DEFINE_string("metric", "return", "Column of metrics.csv.")
    flags.DEFINE_boolean("median", False, "Draw the median over the runs, not each.")
    flags.DEFINE_float("reach", None, "Show after how many steps the metric is first so large.")
    flags.DEFINE_string("out", "report.png", "The figure.")
    start(main)
