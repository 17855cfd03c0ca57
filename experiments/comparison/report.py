"""The report of a comparison: its numbers as CSV, figures as PNG, and index.html, a plain page with its tables.

The page is in the folder of the figures that it shows, and says what is missing.
"""

import html
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from experiments.comparison import cells
from experiments.comparison.comparison import Comparison
from experiments.comparison.findings import AGGREGATES, Findings, by_method, find, interval, pivot, signed
from experiments.comparison.methods import row_of
from experiments.comparison.protocol import ALL, family, groups_of
from experiments.results import plots, reading
from experiments.runs.jobs import failure
from frodo import files
from frodo.logs import quantity, table
from frodo.regimes.scores import reference_scores

if TYPE_CHECKING:
    import pandas as pd

STYLE = "body { font-family: sans-serif } img { max-width: 100% } td, th { padding: 0 .6em; text-align: right }"
SETTINGS = {"tuned": "each at its best settings", "one": "each at its one setting for all environments"}


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
    files.write(folder / "index.html", _page(comparison, out, found, figures).encode())
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
        speeds = {m: reading.steps_per_cpu_second(found.runs[env, m]) for m in looks if (env, m) in found.runs}
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


def _page(comparison: Comparison, out: Path, found: Findings, figures: Mapping[str, str]) -> str:
    """Return the document; `figures` are file name in <out>/report/ -> caption."""
    import pandas as pd

    parts = ["<h1>Comparison of objectives</h1>", f"<p>{html.escape(_about(comparison))}</p>"]
    with pd.option_context("display.max_colwidth", None):
        for title, text, frame in _tables(comparison, found):
            shown = frame.rename_axis(index=None, columns=None).to_html(border=0, na_rep="–")
            parts.append(f"<h2>{html.escape(title)}</h2><p>{html.escape(text)}</p>{shown}")
    for name, caption in figures.items():
        parts.append(f'<figure><img src="{name}" alt=""><figcaption>{html.escape(caption)}</figcaption></figure>')
    missing = "".join(f"<li>{html.escape(line)}</li>" for line in _missing(comparison, out, found))
    parts.append(f"<h2>What is missing</h2><ul>{missing or '<li>nothing</li>'}</ul>")
    head = f'<!doctype html><meta charset="utf-8"><title>Comparison</title><style>{STYLE}</style>'
    return "\n".join([head, *parts, ""])


def _about(comparison: Comparison) -> str:
    budgets = {family(env): quantity(comparison.budget(env)) for env in comparison.envs}
    given = {"γ": comparison.discount, "λ": comparison.lambda_}
    kept, drawn = comparison.replay or (0, 0)
    others = " and ".join(f"{symbol} = {value:g}" for symbol, value in given.items() if value is not None)
    return (
        f"{len(comparison.envs)} environments, {len(comparison.seeds)} seeds; environment steps of each agent: "
        f"{', '.join(f'{steps} ({name})' for name, steps in budgets.items())}. Scores are means over the last fifth "
        "of a lifetime: 0 is random play, and that of an agent whose parameters were not finite; 1 the best, or a "
        "published result. Intervals are of the seeds alone: 95 %, by stratified bootstraps, of differences "
        f"Student-t. Settings were chosen by the seeds {', '.join(map(str, comparison.tuning_seeds))}, those of a "
        "discovered rule in other environments."
        + f" All rules but discovered ones have {others}; outer objectives keep theirs." * bool(others)
        + f" An update learns from {drawn} of the last {kept} trajectories, or of all, if fewer." * bool(kept)
        + f" One θ acts {comparison.stale} trajectories before it is updated on them." * bool(comparison.stale)
    )


def _tables(comparison: Comparison, found: Findings) -> Iterator[tuple[str, str, "pd.DataFrame"]]:
    """Give the tables, each with its title and what it shows."""
    import pandas as pd

    groups = [*groups_of(comparison.envs)]
    for which, how in SETTINGS.items():
        wide = pivot(found, "environments", groups, interval, statistic="IQM", settings=which)
        kinds = {found.labels[m]: (row_of(m).targets, row_of(m).regime) for m in comparison.methods}
        own = pd.DataFrame([kinds[label] for label in wide.index], wide.index, ["targets", "regime"])
        yield f"Scores, {how}", "Interquartile means of the normalised scores.", own.join(wide)
    text_of = lambda x: f"{x.value:.3g} [{x.low:.3g}, {x.high:.3g}]"
    wide = pivot(found, "environments", comparison.envs, text_of, statistic="mean return")
    yield "Returns", "Mean over seeds, at the best settings.", wide
    for over in [name for name in found.statistics.statistic.unique() if name.startswith("difference to ")]:
        label, places = found.labels[over.removeprefix("difference to ")], [*comparison.envs, *groups]
        for which, how in SETTINGS.items():
            text = "Of normalised scores, seed by seed; ▲ or ▼ where an interval excludes 0: of twenty equals one does."
            wide = pivot(found, "environments", places, signed, statistic=over, settings=which)
            yield f"Differences to {label}, {how}", text, wide
    if names := [x for x in found.statistics.statistic.unique() if x.startswith("probability of improvement")]:
        own = pivot(found, "statistic", names, interval)
        own.columns = [f"over {found.labels[name.split()[-1]]}" for name in names]
        yield "Probability of improvement", "That a run has a higher score than one of the other rule.", own
    grid = comparison.grid
    text = (
        f"Learning rates {', '.join(f'{x:g}' for x in grid.learning_rates)}; costs of entropy "
        f"{', '.join(f'{x:g}' for x in grid.entropy_costs)}; environments × steps of a trajectory "
        f"{', '.join('{} × {}'.format(*x) for x in grid.batches)}. ! marks what is at the edge of three or more."
    )
    yield "What was tuned", text, _choices(comparison, found)
    text = "To discover η before, and to train a seed, means over environments; compilation is once for all seeds."
    yield "Cost", text, _mean_costs(found)


def _choices(comparison: Comparison, found: Findings) -> "pd.DataFrame":
    import pandas as pd

    rows = {}
    for method in dict.fromkeys(method for _, method in found.choices):
        grid = comparison.grid_of(comparison.configure(comparison.envs[0], method))
        text = lambda point, grid=grid: f"{point}{' !' * bool(grid.edges(point))}"
        own = {env: found.choices[env, method] for env in comparison.envs}
        one = own[comparison.envs[0]].one
        rows[found.labels[method]] = {"one for all": text(one)} | {env: text(x.tuned) for env, x in own.items()}
    return pd.DataFrame.from_dict(rows, orient="index")


def _mean_costs(found: Findings) -> "pd.DataFrame":
    """Return texts of the mean over environments of every cost, "unknown" where one is, by method."""
    if found.costs.empty:
        return found.costs
    text = lambda value: "unknown" if math.isnan(value) else quantity(value)
    mean = lambda x: x.iloc[-1] if x.name == "note" else text(x.astype(float).mean(skipna=False))
    means = found.costs.drop(columns="environment").groupby("method", sort=False).agg(mean)
    return means.rename(index=found.labels, columns={"note": ""})


def _missing(comparison: Comparison, out: Path, found: Findings) -> list[str]:
    failed = cells.untuned(comparison, out)
    reasons = {m: f"no --{row_of(m).rule}" for m in comparison.methods if comparison.rule(m) is None} | failed
    lines = [f"{row_of(method).label}: {reason}" for method, reason in reasons.items()]
    for env, method in comparison.cells():
        where = f"{row_of(method).label} on {env}: "
        if run := found.runs.get((env, method)):
            returns = cells.returns_of(run)
            if np.isnan(returns).any():
                lines.append(f"{where}no episode ended in the last fifth")
            if number := int(np.isneginf(returns).sum()):
                of = f"{where}parameters of {number} of {len(returns)} seeds"
                lines.append(f"{of} were not finite at the end, which counts as random play")
            skipped = run.columns.get("skipped", np.zeros_like(run.columns["seed"]))
            if number := int(sum(skipped[own][-1] for own in reading.lives(run))):
                lines.append(f"{where}{number} meta-gradients were not finite, and moved no η")
        elif method not in failed:
            lines.append(where + failure(cells.folder_of(out, cells.CELLS, env, method)))
    seen = found.seen.items()
    return lines + [f"* {row_of(method).label}: its rule was discovered in {', '.join(envs)}" for method, envs in seen]
