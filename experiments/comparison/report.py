"""The report of a comparison: index.html, its figures as PNG and its numbers as CSV."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from experiments.comparison.comparison import Comparison
from experiments.comparison.findings import AGGREGATES, Findings, by_method, find, interval, pivot, steps_per_cpu_second
from experiments.comparison.methods import row_of
from experiments.comparison.page import page
from experiments.comparison.protocol import ALL
from experiments.results import plots, reading
from frodo import files
from frodo.logs import table
from frodo.regimes.scores import reference_scores


def write(comparison: Comparison, out: Path, seen: Mapping[str, Sequence[str]]) -> str:
    """Write <out>/report/ from the cells that are finished; returns a table of the aggregate scores.

    Args:
      seen: method -> environments that its rule was discovered in.
    Raises:
      UsageError: if a run is of another environment or budget, or misses seeds.
    """
    folder, found = out / "report", find(comparison, out, seen)
    figures = _draw(comparison, folder, found)
    for name in ("scores", "statistics", "costs", "grid"):
        files.write_csv(folder / f"{name}.csv", getattr(found, name).to_dict("records"))
    files.write(folder / "index.html", page(comparison, out, found, figures).encode())
    shown = pivot(found, "statistic", AGGREGATES, interval, environments=ALL, settings="tuned")
    return f"{table(shown.reset_index(names='method').to_dict('records'))}\n{folder / 'index.html'}"


def _draw(comparison: Comparison, folder: Path, found: Findings) -> dict[str, str]:
    """Draw what there is; returns file name -> what it shows."""
    figures = {}
    looks = {m: plots.look(number, label=label) for number, (m, label) in enumerate(found.labels.items())}
    targets_of = lambda methods: dict.fromkeys(row_of(method).targets for method in methods)
    num_seeds = len(comparison.seeds)
    band = "thin lines: each seed" if num_seeds < 3 else "band: 95 % Student-t interval of the mean"
    for env in comparison.envs:
        speeds = {m: steps_per_cpu_second(found.runs[env, m]) for m in looks if (env, m) in found.runs}
        timed = {method: speed for method, speed in speeds.items() if speed > 0}
        levels = dict(zip(("random play", "reference (score 1)"), reference_scores(env), strict=True))
        for name, units, over in (
            ("curves", dict.fromkeys(speeds, 1), "environment steps"),
            ("cpu", timed, "CPU seconds of a seed"),
        ):
            if not units:
                continue
            file = f"{name}_{env.replace('/', '_')}.png"
            with plots.panels(folder / file, targets_of(units), env, over, "mean return") as axes:
                for method, unit in units.items():
                    one = reading.curve(found.runs[env, method], "return")
                    plots.curve(axes[row_of(method).targets], one.x / unit, one.y, **looks[method])
                for own in axes.values():
                    plots.levels(own, levels)
            figures[file] = f"Return in {env} over {over}, mean of {num_seeds} seeds without smoothing; {band}."
    tuned = found.scores[found.scores.settings == "tuned"]
    if by_method(tuned, comparison.methods, comparison.envs, "score"):
        rows = found.statistics.query("settings == 'tuned' and environments == @ALL and statistic in @AGGREGATES")
        names = {"optimality gap": "optimality gap\n(less is better)"}
        rows = rows.assign(label=rows.method.map(found.labels), statistic=rows.statistic.replace(names))
        plots.intervals(folder / "aggregates.png", rows, "normalised score")
        figures["aggregates.png"] = "Normalised scores over all environments. Line: 95 % stratified bootstrap interval."
    return figures
