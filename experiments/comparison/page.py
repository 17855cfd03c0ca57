"""The page of a comparison: the matrix of targets and regimes, tables, figures, what is missing, configurations."""

import base64
import html
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.comparison.methods import ADAPTED, FROZEN, METHODS, RANDOM, Comparison, cell_folder
from experiments.results import pages, statistics
from experiments.runs.jobs import failure
from frodo.logs import quantity
from frodo.rule_files import load_origin


def page(
    comparison: Comparison,
    out: Path,
    finals: Mapping[tuple[str, str], np.ndarray],
    aggregates: Mapping,
    improvements: Mapping,
    costs: Sequence[Mapping[str, Any]],
    figures: Mapping[str, str],
    seen: Mapping[str, Sequence[str]],
    labels: Mapping[str, str],
) -> str:
    """Return the document.

    Args:
      finals: cell -> return of each seed.
      aggregates, improvements: method -> estimates.
      costs: of each cell, as in costs.csv.
      figures: file name in <out>/report/ -> caption.
      seen: method -> environments that its rule was discovered in.
      labels: method -> its name, marked where its rule has seen an environment.
    """
    means = _mean_costs(comparison, costs)
    parts = [
        "<h1>Online against population</h1>",
        f"<p>{len(comparison.envs)} environments, {quantity(comparison.budget)} environment steps for each agent, "
        f"to within an iteration, {len(comparison.seeds)} seeds. A normalised score of 0 is random play; 1 is the best "
        "that can be done, on Atari human play. Scores are means over the last fifth of a lifetime. Intervals: 95 %, "
        "of stratified bootstraps over seeds: with few seeds they are too narrow.</p>",
        "<h2>Targets and regimes</h2><p>Interquartile mean of the normalised scores; what η cost before the lifetime, "
        "and what of a lifetime, mean over environments.</p>",
        _matrix(comparison, aggregates, means, labels),
        "<h2>Returns</h2><p>Mean over seeds and its interval; ← is the highest mean.</p>",
        pages.table(["method", *comparison.envs], _return_rows(comparison, finals, labels)),
    ]
    if improvements:
        over = labels[next(iter(aggregates))]
        parts += [
            "<h2>Probability of improvement</h2>",
            pages.table(["method", f"over {over}"], [[labels[x], interval(y)] for x, y in improvements.items()]),
        ]
    parts += [
        "<h2>Cost</h2><p>Before the lifetime to discover η, and a seed's lifetime, mean over environments. CPU time "
        "for η is what is more than the other steps take with the same agent and η frozen (for FRODO, with IMPALA). "
        "Compilation, once for all seeds of a cell, comes on top.</p>",
        _cost_table(means, {row["method"]: row["note"] for row in costs}, labels),
        "<h2>Rules</h2>",
        pages.table(["rule", "discovered in", ""], _rule_rows(comparison), "wide matrix"),
    ]
    for name, caption in figures.items():
        data = base64.b64encode((out / "report" / name).read_bytes()).decode()
        parts.append(f'<figure><div class="wide"><img alt="{html.escape(caption)}" src="data:image/png;base64,{data}">')
        parts.append(f"</div><figcaption>{html.escape(caption)}</figcaption></figure>")
    parts += _missing(comparison, out, finals, seen)
    parts.append("<h2>Configurations</h2>")
    for env, method in finals:
        record = json.loads((cell_folder(out, env, method) / "config.json").read_bytes())
        text = html.escape(json.dumps(record, indent=1, ensure_ascii=False))
        parts.append(
            f"<details><summary>{html.escape(f'{METHODS[method].label} on {env}')}</summary><pre>{text}</pre></details>"
        )
    return pages.page("Online against population", parts)


def _matrix(comparison: Comparison, aggregates: Mapping, costs: Mapping, labels: Mapping[str, str]) -> str:
    chosen = {name: method for name, method in METHODS.items() if name in comparison.methods}
    regimes = list(dict.fromkeys(method.regime for method in chosen.values()))

    def entry(name: str) -> str:
        if name not in aggregates:
            return f"{labels[name]}: missing"
        text = f"{labels[name]}: {interval(aggregates[name]['IQM'])}"
        values = {key: _quantity(value) for key, value in costs[name].items()}
        if METHODS[name].regime in (FROZEN, ADAPTED):
            note = load_origin(comparison.rule(name) or "").note
            text += "; before: " + (note or f"{values['env steps before']} steps, {values['CPU s before']} CPU s")
        if METHODS[name].regime in (RANDOM, ADAPTED):
            text += f"; during: {values['env steps for η']} steps, {values['CPU s for η']} CPU s"
        return text

    rows = []
    for targets in dict.fromkeys(method.targets for method in chosen.values()):
        own = {name: method.regime for name, method in chosen.items() if method.targets == targets}
        cells = [[name for name, regime in own.items() if regime == one] for one in regimes]
        rows.append([targets, *("; ".join(map(entry, here)) or "–" for here in cells)])
    return pages.table(["targets", *regimes], rows, "wide matrix")


def _return_rows(comparison: Comparison, finals: Mapping, labels: Mapping[str, str]) -> list[list[str]]:
    columns = [list(labels.values())]
    for env in comparison.envs:
        known = {m: finals[env, m][:, None] for m in comparison.methods if (env, m) in finals}
        known = {method: values for method, values in known.items() if np.isfinite(values).all()}
        found = statistics.means(known)
        best = max((x.value for x in found.values()), default=None)
        text = lambda x, best: f"{x.value:.3g} [{x.low:.3g}, {x.high:.3g}]" + " ←" * bool(x.value == best)
        columns.append([text(found[m], best) if m in found else "–" for m in comparison.methods])
    return [list(row) for row in zip(*columns, strict=True)]


def _mean_costs(comparison: Comparison, costs: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float | None]]:
    """Of each method with a cell, the mean over environments of every column that is a cost."""
    columns = [name for name in (costs[0] if costs else {}) if name not in ("environment", "method", "note")]
    found = {}
    for method in comparison.methods:
        if own := [row for row in costs if row["method"] == method]:
            has = {name: all(row[name] is not None for row in own) for name in columns}
            found[method] = {n: float(np.mean([row[n] for row in own])) if has[n] else None for n in columns}
    return found


def _cost_table(means: Mapping, notes: Mapping[str, str], labels: Mapping[str, str]) -> str:
    rows = [[labels[method], *map(_quantity, own.values()), notes[method]] for method, own in means.items()]
    return pages.table(["method", *next(iter(means.values()), {}), ""], rows)


def _rule_rows(comparison: Comparison) -> list[list[str]]:
    rules = dict.fromkeys(rule for method in comparison.methods if (rule := comparison.rule(method)))
    return [[rule, ", ".join(dict.fromkeys(load_origin(rule).envs)), load_origin(rule).note] for rule in rules]


def _missing(comparison: Comparison, out: Path, finals: Mapping, seen: Mapping[str, Sequence[str]]) -> list[str]:
    lines = [
        f"{METHODS[method].label}: {reason}" for method in comparison.methods if (reason := comparison.missing(method))
    ]
    lines += [
        f"{METHODS[method].label} on {env}: {failure(cell_folder(out, env, method))}"
        for env, method in comparison.cells()
        if (env, method) not in finals
    ]
    lines += [
        f"{METHODS[method].label} on {env}: no episode ended in the last fifth"
        for (env, method), values in finals.items()
        if not np.isfinite(values).all()
    ]
    lines += [
        f"* {METHODS[method].label}: its rule was discovered in {', '.join(envs)}" for method, envs in seen.items()
    ]
    items = "".join(f"<li>{html.escape(line)}</li>" for line in lines)
    return ["<h2>What is missing</h2>", f"<ul>{items}</ul>" if items else "<p>Nothing.</p>"]


def interval(estimate: statistics.Estimate) -> str:
    """Return the text of an estimate."""
    return f"{estimate.value:.2f} [{estimate.low:.2f}, {estimate.high:.2f}]"


def _quantity(value: float | None) -> str:
    return "unknown" if value is None or math.isnan(value) else quantity(value)
