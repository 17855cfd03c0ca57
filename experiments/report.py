"""Compare runs: python -m experiments.report DIR... [--metric=return] [--out=report.png]

Draws one metric of every run over its environment steps, with confidence bands over seeds, and prints a table of final
numbers: for each seed the mean over the last fifth of the run, then mean and standard deviation (n - 1) over seeds.
Runs that differ in nothing but their seeds are one curve: a population has one seed, so several have a folder each.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from absl import flags

from agents.validation import did_you_mean
from experiments.results.plots import curves
from experiments.results.reading import DIFFERENCE, X, curve, final_values, pool, read
from experiments.runs.command_line import start
from frodo.logs import note, table
from frodo.runs.errors import UsageError
from frodo.runs.folders import check_out

NO_METRICS = ("seed", "update", X, "env_frames")  # columns that are not asked for


def run(folders: Sequence[str], metric: str, out: str) -> list[dict]:
    """Draw and return the rows of the table.

    Raises:
      UsageError: if a folder holds no run, or no run has the metric: the nearest one is named.
    """
    if not folders:
        raise UsageError("name the results folders to compare: python -m experiments.report DIR...")
    everything = pool([read(Path(folder)) for folder in folders])
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
    curves(out, series, title=f"{title}: {metric}", xlabel="environment steps", ylabel=metric, log=log)
    rows = []
    for results in having:
        finals = final_values(results, metric)
        std = float(np.std(finals, ddof=1)) if len(finals) > 1 else float("nan")
        row = {"run": str(results.folder), "seeds": len(finals), X: int(results.columns[X].max())}
        rows.append(row | {metric: float(np.mean(finals)), "std": std})
    return rows


def main(argv: list[str]) -> None:
    check_out(Path(flags.FLAGS.out), is_file=True)
    print(table(run(argv[1:], flags.FLAGS.metric, flags.FLAGS.out)))
    note(f"curves: {flags.FLAGS.out}")


if __name__ == "__main__":
    flags.DEFINE_string("metric", "return", "Column of metrics.csv.")
    flags.DEFINE_string("out", "report.png", "The figure.")
    start(main)
