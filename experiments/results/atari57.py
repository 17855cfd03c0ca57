"""The runs of the games of Atari that are finished: a table of their scores, and a figure of the median."""

from pathlib import Path

import numpy as np

from experiments.results import plots, reading
from frodo.runs.errors import UsageError
from frodo.settings import presets

SCORE = "human_normalised"


def report(folder: Path) -> list[dict[str, str | float]]:
    """Draw the median over the games that are finished; return the rows of the table.

    Raises:
      UsageError: if none is finished.
    """
    runs = [reading.read(path.parent) for path in sorted(folder.glob("*/summary.json"))]
    if not runs:
        raise UsageError(f"--report: no run in {folder} is finished")
    median = reading.median([reading.curve(run, SCORE) for run in runs], f"median of {len(runs)} games")
    title = f"Atari, {len(runs)} of {len(presets.frodo_atari57())} games"
    path = folder / "median.png"
    plots.curves(path, [median], title=title, xlabel="environment steps", ylabel="human-normalised score")
    rows: list[dict[str, str | float]] = [
        {"game": run.folder.name}
        | {reading.X: run.columns[reading.X].max()}
        | {name: float(np.mean(reading.final_values(run, name))) for name in ("return", SCORE)}
        for run in runs
    ]
    medians = {name: float(np.median([row[name] for row in rows])) for name in (reading.X, "return", SCORE)}
    return [*rows, {"game": "median"} | medians]
