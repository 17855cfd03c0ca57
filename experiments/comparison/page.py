"""The page of a comparison: tables, figures and what is missing, in plain HTML beside the figures."""

import html
import math
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from experiments.comparison import cells
from experiments.comparison.comparison import Comparison
from experiments.comparison.findings import Findings, interval, pivot, signed
from experiments.comparison.methods import row_of
from experiments.comparison.protocol import family, groups_of
from experiments.results import reading
from experiments.runs.jobs import failure
from frodo.logs import quantity

STYLE = "body { font-family: sans-serif } img { max-width: 100% } td, th { padding: 0 .6em; text-align: right }"
SETTINGS = {"tuned": "each at its best settings", "one": "each at its one setting for all environments"}


def page(comparison: Comparison, out: Path, found: Findings, figures: Mapping[str, str]) -> str:
    """Return the document; `figures` are file name in <out>/report/ -> caption."""
    parts = ["<h1>Comparison of objectives</h1>", f"<p>{html.escape(_about(comparison))}</p>"]
    with pd.option_context("display.max_colwidth", None):
        for title, text, frame in _tables(comparison, found):
            table = frame.rename_axis(index=None, columns=None).to_html(border=0, na_rep="–")
            parts.append(f"<h2>{html.escape(title)}</h2><p>{html.escape(text)}</p>{table}")
    for name, caption in figures.items():
        parts.append(f'<figure><img src="{name}" alt=""><figcaption>{html.escape(caption)}</figcaption></figure>')
    missing = "".join(f"<li>{html.escape(line)}</li>" for line in _missing(comparison, out, found))
    parts.append(f"<h2>What is missing</h2><ul>{missing or '<li>nothing</li>'}</ul>")
    head = f'<!doctype html><meta charset="utf-8"><title>Comparison</title><style>{STYLE}</style>'
    return "\n".join([head, *parts, ""])


def _about(comparison: Comparison) -> str:
    budgets = {family(env): quantity(comparison.budget(env)) for env in comparison.envs}
    given = {"γ": comparison.discount, "λ": comparison.lambda_}
    others = " and ".join(f"{symbol} = {value:g}" for symbol, value in given.items() if value is not None)
    return (
        f"{len(comparison.envs)} environments, {len(comparison.seeds)} seeds; environment steps of each agent: "
        f"{', '.join(f'{steps} ({name})' for name, steps in budgets.items())}. Scores are means over the last fifth of "
        "a life: 0 is random play, and that of an agent whose parameters were not finite; 1 the best, or a published "
        "result (docs/protocol.md). Intervals are of the seeds alone: 95 %, by stratified bootstraps, of differences "
        f"Student-t. Settings were chosen by the seeds {', '.join(map(str, comparison.tuning_seeds))}, those of a "
        "discovered rule in other environments."
        + f" All rules but discovered ones have {others}; outer objectives keep theirs." * bool(others)
        + f" One θ acts {comparison.stale} trajectories before it is updated on them." * bool(comparison.stale)
    )


def _tables(comparison: Comparison, found: Findings) -> Iterator[tuple[str, str, pd.DataFrame]]:
    """Give the tables, each with its title and what it shows."""
    groups = [*groups_of(comparison.envs)]
    for which, how in SETTINGS.items():
        wide = pivot(found, "environments", groups, interval, statistic="IQM", settings=which)
        places = {found.labels[m]: (row_of(m).targets, row_of(m).regime) for m in comparison.methods}
        own = pd.DataFrame([places[label] for label in wide.index], wide.index, ["targets", "regime"])
        yield f"Scores, {how}", "Interquartile means of the normalised scores.", own.join(wide)
    yield "Returns", "Mean over seeds, at the best settings.", _returns(comparison, found)
    for over in [name for name in found.statistics.statistic.unique() if name.startswith("difference to ")]:
        label, places_ = found.labels[over.removeprefix("difference to ")], [*comparison.envs, *groups]
        for which, how in SETTINGS.items():
            text = "Of normalised scores, seed by seed; ▲ or ▼ where an interval excludes 0: of twenty equals one does."
            wide = pivot(found, "environments", places_, signed, statistic=over, settings=which)
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
    text = "To discover η before, and a seed's life, means over environments; compilation is once for all seeds."
    yield "Cost", text, _mean_costs(found)


def _returns(comparison: Comparison, found: Findings) -> pd.DataFrame:
    text = lambda x: f"{x.value:.3g} [{x.low:.3g}, {x.high:.3g}]"
    return pivot(found, "environments", comparison.envs, text, statistic="mean return")


def _choices(comparison: Comparison, found: Findings) -> pd.DataFrame:
    rows = {}
    for method in dict.fromkeys(method for _, method in found.choices):
        grid = comparison.grid_of(comparison.configure(comparison.envs[0], method))
        text = lambda point, grid=grid: f"{point}{' !' * bool(grid.edges(point))}"
        own = {env: found.choices[env, method] for env in comparison.envs}
        one = own[comparison.envs[0]].one
        rows[found.labels[method]] = {"one for all": text(one)} | {env: text(x.tuned) for env, x in own.items()}
    return pd.DataFrame.from_dict(rows, orient="index")


def _mean_costs(found: Findings) -> pd.DataFrame:
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
