"""The page of a comparison: the matrix of targets and regimes, tables, figures, what is missing, configurations.

It is in HTML that a phone, a screen and a printer show, and needs no other file.
"""

import base64
import html
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments.comparison import cells
from experiments.comparison.comparison import Comparison
from experiments.comparison.findings import Findings, interval, pivot, signed
from experiments.comparison.methods import all_methods, row_of
from experiments.comparison.protocol import ALL, Point, family, groups_of
from experiments.results import reading
from experiments.runs.jobs import failure
from frodo import files
from frodo.logs import quantity
from frodo.rules.files import load_origin

TITLE = "Online against population"
STYLE = """
:root { color-scheme: light dark }
body { font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 60rem; padding: 1rem }
figure { margin: 1.5rem 0 }
img { background: #fff; width: 100%; min-width: 38rem; height: auto }
.wide { overflow-x: auto }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { border-bottom: 1px solid #8886; padding: .3rem .6rem; text-align: right; white-space: nowrap }
th:first-child { text-align: left }
tbody th { font-weight: normal }
.matrix th, .matrix td { text-align: left; vertical-align: top; white-space: normal; min-width: 9rem }
@media (max-width: 600px) {
  th, td { font-size: .85rem; padding: .2rem .4rem }
  tbody th { white-space: normal; min-width: 7rem }
}
pre { overflow-x: auto; font-size: .8rem }
@media print {
  body { max-width: none; font-size: 10px }
  img { min-width: 0; max-height: 22cm; object-fit: contain }
  th, td { padding: .1rem .3rem; white-space: normal }
  .matrix th, .matrix td { min-width: 0 }
  .wide { overflow: visible }
  details { display: none }
  h2:last-of-type::after { content: ": on the screen" }
  figure, tr { break-inside: avoid }
}
"""


def page(
    comparison: Comparison,
    out: Path,
    found: Findings,
    figures: Mapping[str, str],
    in_rooms: Sequence[Mapping[str, Any]] = (),
) -> str:
    """Return the document; `figures` are file name in <out>/report/ -> caption, `in_rooms` as of `in_context.rows`."""
    budgets = {family(env): quantity(comparison.budget(env)) for env in comparison.envs}
    seeds = ", ".join(map(str, comparison.tuning_seeds))
    costs = _mean_costs(found.costs)
    places = [*comparison.envs, *groups_of(comparison.envs)]
    by_family = {
        which: pivot(found, "environments", [*groups_of(comparison.envs)], interval, statistic="IQM", settings=which)
        for which in ("tuned", "one")
    }
    number = lambda row: row.value
    gain = pivot(found, "settings", ["tuned", "one"], number, statistic="IQM", environments=ALL).astype(float)
    by_family["one"]["tuned − one"] = (gain.tuned - gain.one).dropna().map("{:+.2f}".format)
    parts = [
        f"<h1>{TITLE}</h1>",
        f"<p>{len(comparison.envs)} environments, {len(comparison.seeds)} seeds; environment steps of each agent, to "
        f"within an iteration: {', '.join(f'{steps} ({name})' for name, steps in budgets.items())}. A normalised score "
        "of 0 is random play, and of an agent whose parameters were not finite; 1 is the best that can be done, on "
        "Atari human play, and where neither is known a published result (docs/protocol.md). Scores are means over the "
        "last fifth of a lifetime. Intervals: 95 %, of stratified bootstraps over seeds, but for differences: with few "
        "seeds they are too narrow. They are of the seeds alone: settings were chosen by few tuning seeds.</p>",
        f"<p>All methods have one agent. Each is shown at its best of one grid, by the tuning seeds {seeds}: a "
        "hand-made rule and one that begins with a random or a fitted η at the best in that environment, a discovered "
        "rule at the best over the <em>other</em> environments of the family, or over all others where there are none. "
        "This favours the former.</p>",
        *_other_returns(comparison),
        "<h2>Targets and regimes</h2><p>Interquartile mean of the normalised scores; what η cost before the lifetime, "
        "and what of a lifetime, mean over environments.</p>",
        _table(_matrix(comparison, found, costs), "targets", "wide matrix"),
        "<h2>Returns</h2><p>Mean over seeds and its interval; ← is the highest mean.</p>",
        _table(_returns(comparison, found)),
        "<h2>Scores by family</h2><p>Interquartile means of the normalised scores.</p>",
        _table(by_family["tuned"]),
        "<h2>One setting for all</h2><p>The same, with the one setting of each method that is best over all "
        "environments by the tuning runs, the shown one included; the last column is how much higher the tuned one is."
        "</p>",
        _table(by_family["one"]),
    ]
    for over in [name for name in found.statistics.statistic.unique() if name.startswith("difference to ")]:
        label = html.escape(found.labels[over.removeprefix("difference to ")])
        parts.append(
            f"<h2>Differences to {label}</h2><p>Mean difference of the normalised scores, seed by seed, with Student-t "
            "intervals; ▲ or ▼ where one excludes 0: of twenty comparisons of equals one does.</p>"
        )
        for which, title in (("tuned", "at their best"), ("one", "each at its one setting for all")):
            parts.append(_table(pivot(found, "environments", places, signed, statistic=over, settings=which), title))
    if improvements := [x for x in found.statistics.statistic.unique() if x.startswith("probability of improvement")]:
        own = pivot(found, "statistic", improvements, interval)
        own.columns = [f"over {found.labels[name.split()[-1]]}" for name in improvements]
        parts += [
            "<h2>Probability of improvement</h2><p>That a run of the method has a higher score than one of the other, "
            "mean over environments.</p>",
            _table(own),
        ]
    if in_rooms:
        parts += [
            "<h2>In one room</h2><p>Learned from scratch or adapted in context, with θ as it is: mean normalised score "
            "over rooms after so many environment steps in a room, mean over seeds and half of its 95 % Student-t "
            "interval; and what an agent or η cost before.</p>",
            _table(pd.DataFrame(map(_in_room, in_rooms)).set_index("rooms"), "rooms"),
        ]
    parts += [
        "<h2>What was tuned</h2><p>Grid: learning rates "
        f"{', '.join(f'{x:g}' for x in comparison.grid.learning_rates)}; costs of entropy "
        f"{', '.join(f'{x:g}' for x in comparison.grid.entropy_costs)}; environments × steps of a trajectory "
        f"{', '.join('{} × {}'.format(*x) for x in comparison.grid.batches)}. ! marks a learning rate or a cost at the "
        "edge of its three or more.</p>",
        _table(_choices(comparison, found)),
        "<h2>Cost</h2><p>Before the lifetime to discover η, and a seed's lifetime, mean over environments. CPU time "
        "for η is what is more than the other steps take with the same agent and η frozen (for FRODO, with IMPALA). "
        "Compilation, once for all seeds of a cell, comes on top, as does tuning.</p>",
        _table(costs.rename(index=found.labels)),
        "<h2>Rules</h2>",
        _table(_rules(comparison), "rule", "wide matrix"),
    ]
    for name, caption in figures.items():
        data = base64.b64encode((out / "report" / name).read_bytes()).decode()
        parts.append(f'<figure><div class="wide"><img alt="{html.escape(caption)}" src="data:image/png;base64,{data}">')
        parts.append(f"</div><figcaption>{html.escape(caption)}</figcaption></figure>")
    missing = "".join(f"<li>{html.escape(line)}</li>" for line in _missing(comparison, out, found))
    parts += ["<h2>What is missing</h2>", f"<ul>{missing}</ul>" if missing else "<p>Nothing.</p>"]
    parts.append("<h2>Configurations</h2>")
    for (env, method), run in found.runs.items():
        record = json.dumps(files.read_json(run.folder / "config.json"), indent=1, ensure_ascii=False)
        title = html.escape(f"{row_of(method).label} on {env}")
        parts.append(f"<details><summary>{title}</summary><pre>{html.escape(record)}</pre></details>")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{TITLE}</title><style>{STYLE}</style></head>\n<body>\n" + "\n".join(parts) + "\n</body></html>\n"
    )


def _table(frame: pd.DataFrame, corner: str = "method", kind: str = "wide") -> str:
    """Return a table of texts in HTML; `corner` is over the first column, `kind` the classes of what it scrolls in."""
    with pd.option_context("display.max_colwidth", None):
        own = frame.rename_axis(index=None, columns=corner)
        return f'<div class="{kind}">{own.to_html(border=0, na_rep="–")}</div>'


def _other_returns(comparison: Comparison) -> list[str]:
    """Say, if so, that rules have another γ or λ than they should, or trajectories of an older θ."""
    given = {"γ": comparison.discount, "λ": comparison.lambda_}
    text = " and ".join(f"{symbol} = {value:g}" for symbol, value in given.items() if value is not None)
    said = [f"<p>All rules but discovered ones have {text}; outer objectives keep theirs.</p>"] if text else []
    if comparison.stale:
        said.append(f"<p>One θ acts {comparison.stale} trajectories before it is updated on them in turn.</p>")
    return said


def _matrix(comparison: Comparison, found: Findings, costs: pd.DataFrame) -> pd.DataFrame:
    scores = pivot(found, "statistic", ["IQM"], interval, environments=ALL, settings="tuned").IQM
    rows = []
    for name, method in all_methods().items():
        if name not in comparison.methods:
            continue
        label = found.labels[name]
        text = f"{label}: {scores.get(label, 'missing')}"
        if label in scores and (origin := comparison.origin(name)):
            steps, seconds = costs.loc[name, ["env steps before", "CPU s before"]]
            text += f"; before: {origin.note or f'{steps} steps, {seconds} CPU s'}"
        if label in scores and method.frozen:
            text += "; during: {} steps, {} CPU s".format(*costs.loc[name, ["env steps for η", "CPU s for η"]])
        rows.append((method.targets, method.regime, text))
    frame = pd.DataFrame(rows, columns=["targets", "regime", "text"])
    wide = frame.groupby(["targets", "regime"]).text.agg("; ".join).unstack()
    return wide.reindex(frame.targets.unique(), columns=frame.regime.unique())


def _returns(comparison: Comparison, found: Findings) -> pd.DataFrame:
    own = found.statistics[found.statistics.statistic == "mean return"]
    best = own.groupby("environments").value.max()
    mark = lambda x: " ←" if x.value == best[x.environments] else ""
    text = lambda x: f"{x.value:.3g} [{x.low:.3g}, {x.high:.3g}]{mark(x)}"
    return pivot(found, "environments", comparison.envs, text, statistic="mean return")


def _choices(comparison: Comparison, found: Findings) -> pd.DataFrame:
    rows = {}
    for method in dict.fromkeys(method for _, method in found.choices):
        grid = comparison.grid_of(comparison.configure(comparison.envs[0], method))
        text = lambda point, grid=grid: f"{point}{' !' * bool(grid.edges(point))}" if point else "its own"
        own = {env: found.choices[env, method] for env in comparison.envs}
        one: Point | None = own[comparison.envs[0]].one
        rows[found.labels[method]] = {"one for all": text(one)} | {env: text(x.tuned) for env, x in own.items()}
    return pd.DataFrame.from_dict(rows, orient="index")


def _mean_costs(costs: pd.DataFrame) -> pd.DataFrame:
    """Return texts of the mean over environments of every cost, "unknown" where one is, by method."""
    if costs.empty:
        return costs
    by_method = costs.drop(columns="environment").groupby("method", sort=False)
    mean = lambda x: _quantity(x.astype(float).mean(skipna=False))
    means = by_method.agg(lambda x: x.iloc[-1] if x.name == "note" else mean(x))
    return means[[name for name in means if name != "note"] + ["note"]].rename(columns={"note": ""})


def _rules(comparison: Comparison) -> pd.DataFrame:
    rules = dict.fromkeys(rule for method in comparison.methods if (rule := comparison.rule(method)))
    origins = {rule: load_origin(rule) for rule in rules}
    rows = {rule: [", ".join(dict.fromkeys(own.envs)), own.note] for rule, own in origins.items()}
    return pd.DataFrame.from_dict(rows, orient="index", columns=["discovered in", ""])


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


def _in_room(row: Mapping[str, Any]) -> dict[str, str]:
    """Return the texts of a row of `in_context.rows`, each score with its interval."""
    texts = {}
    for name, value in row.items():
        if isinstance(value, str):
            texts[name] = value
        elif f"± {name}" in row:
            texts[name] = f"{value:.2f} ± {row[f'± {name}']:.2f}" if math.isfinite(value) else "–"
        elif not name.startswith("± "):
            texts[name] = _quantity(value)
    return texts


def _quantity(value: float) -> str:
    return "unknown" if math.isnan(value) else quantity(value)
