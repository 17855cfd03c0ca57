"""The page of a comparison: the matrix of targets and regimes, tables, figures, what is missing, configurations."""

import base64
import html
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.comparison import cells
from experiments.comparison.comparison import Comparison
from experiments.comparison.methods import all_methods, row_of
from experiments.comparison.protocol import ALL, Point, family, groups_of
from experiments.results import pages, statistics
from experiments.runs.jobs import failure
from frodo import files
from frodo.logs import quantity
from frodo.rules.files import load_origin

if TYPE_CHECKING:
    from experiments.comparison.report import Findings


def page(
    comparison: Comparison,
    out: Path,
    found: "Findings",
    figures: Mapping[str, str],
    in_rooms: Sequence[Mapping[str, Any]] = (),
) -> str:
    """Return the document; `figures` are file name in <out>/report/ -> caption, `in_rooms` as of `in_context.rows`."""
    labels, finals = found.labels, found.finals["tuned"]
    means = _mean_costs(comparison, found.costs)
    budgets = {family(env): quantity(comparison.budget(env)) for env in comparison.envs}
    seeds = ", ".join(map(str, comparison.tuning_seeds))
    parts = [
        "<h1>Online against population</h1>",
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
        _matrix(comparison, found, means),
        "<h2>Returns</h2><p>Mean over seeds and its interval; ← is the highest mean.</p>",
        pages.table(["method", *comparison.envs], _return_rows(comparison, finals, labels)),
        "<h2>Scores by family</h2><p>Interquartile means of the normalised scores.</p>",
        _family_table(comparison, found, "tuned"),
        "<h2>One setting for all</h2><p>The same, with the one setting of each method that is best over all "
        "environments by the tuning runs, the shown one included; the last column is how much higher the tuned one is."
        "</p>",
        _family_table(comparison, found, "one"),
    ]
    places = [*comparison.envs, *groups_of(comparison.envs)]
    for over in found.differences["tuned"]:
        parts.append(
            f"<h2>Differences to {html.escape(labels[over])}</h2><p>Mean difference of the normalised scores, seed by "
            "seed, with Student-t intervals; ▲ or ▼ where one excludes 0: of twenty comparisons of equals one does.</p>"
        )
        for which, title in (("tuned", "at their best"), ("one", "each at its one setting for all")):
            own = found.differences[which].get(over, {})
            rows = [[labels[m], *(signed(of[x]) if x in of else "–" for x in places)] for m, of in own.items()]
            parts.append(pages.table([title, *places], rows))
    if found.improvements:
        baselines = list(found.improvements)
        rows = [
            [labels[m], *(interval(found.improvements[x][m]) if m in found.improvements[x] else "–" for x in baselines)]
            for m in found.scores
        ]
        parts += [
            "<h2>Probability of improvement</h2><p>That a run of the method has a higher score than one of the other, "
            "mean over environments.</p>",
            pages.table(["method", *(f"over {labels[x]}" for x in baselines)], rows),
        ]
    if in_rooms:
        columns = [name for name in in_rooms[0] if not name.startswith("± ")]
        parts += [
            "<h2>In one room</h2><p>Learned from scratch or adapted in context, with θ as it is: mean normalised score "
            "over rooms after so many environment steps in a room, mean over seeds and half of its 95 % Student-t "
            "interval; and what an agent or η cost before.</p>",
            pages.table(columns, [[_in_room(row, name) for name in columns] for row in in_rooms]),
        ]
    parts += [
        "<h2>What was tuned</h2><p>Grid: learning rates "
        f"{', '.join(f'{x:g}' for x in comparison.grid.learning_rates)}; costs of entropy "
        f"{', '.join(f'{x:g}' for x in comparison.grid.entropy_costs)}; environments × steps of a trajectory "
        f"{', '.join('{} × {}'.format(*x) for x in comparison.grid.batches)}. ! marks a learning rate or a cost at the "
        "edge of its three or more.</p>",
        pages.table(["method", "one for all", *comparison.envs], _choice_rows(comparison, found)),
        "<h2>Cost</h2><p>Before the lifetime to discover η, and a seed's lifetime, mean over environments. CPU time "
        "for η is what is more than the other steps take with the same agent and η frozen (for FRODO, with IMPALA). "
        "Compilation, once for all seeds of a cell, comes on top, as does tuning.</p>",
        _cost_table(means, {row["method"]: row["note"] for row in found.costs}, labels),
        "<h2>Rules</h2>",
        pages.table(["rule", "discovered in", ""], _rule_rows(comparison), "wide matrix"),
    ]
    for name, caption in figures.items():
        data = base64.b64encode((out / "report" / name).read_bytes()).decode()
        parts.append(f'<figure><div class="wide"><img alt="{html.escape(caption)}" src="data:image/png;base64,{data}">')
        parts.append(f"</div><figcaption>{html.escape(caption)}</figcaption></figure>")
    parts += _missing(comparison, out, found)
    parts.append("<h2>Configurations</h2>")
    for env, method in finals:
        run = cells.folder_of(out, cells.CELLS, env, method) / cells.run_name(found.choices[env, method].tuned)
        record = files.read_json(run / "config.json")
        text = html.escape(json.dumps(record, indent=1, ensure_ascii=False))
        parts.append(
            f"<details><summary>{html.escape(f'{row_of(method).label} on {env}')}</summary><pre>{text}</pre></details>"
        )
    return pages.page("Online against population", parts)


def _other_returns(comparison: Comparison) -> list[str]:
    """Say, if so, that rules have another γ or λ than they should, or trajectories of an older θ."""
    given = {"γ": comparison.discount, "λ": comparison.lambda_}
    text = " and ".join(f"{symbol} = {value:g}" for symbol, value in given.items() if value is not None)
    said = [f"<p>All rules but discovered ones have {text}; outer objectives keep theirs.</p>"] if text else []
    if comparison.stale:
        said.append(f"<p>One θ acts {comparison.stale} trajectories before it is updated on them in turn.</p>")
    return said


def _matrix(comparison: Comparison, found: "Findings", costs: Mapping) -> str:
    chosen = {name: method for name, method in all_methods().items() if name in comparison.methods}
    regimes = list(dict.fromkeys(method.regime for method in chosen.values()))

    def entry(name: str) -> str:
        if name not in found.aggregates:
            return f"{found.labels[name]}: missing"
        text = f"{found.labels[name]}: {interval(found.aggregates[name]['IQM'])}"
        values = {key: _quantity(value) for key, value in costs[name].items()}
        if origin := comparison.origin(name):
            text += "; before: " + (
                origin.note or f"{values['env steps before']} steps, {values['CPU s before']} CPU s"
            )
        if row_of(name).frozen:
            text += f"; during: {values['env steps for η']} steps, {values['CPU s for η']} CPU s"
        return text

    rows = []
    for targets in dict.fromkeys(method.targets for method in chosen.values()):
        own = {name: method.regime for name, method in chosen.items() if method.targets == targets}
        entries = [[name for name, regime in own.items() if regime == one] for one in regimes]
        rows.append([targets, *("; ".join(map(entry, here)) or "–" for here in entries)])
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


def _family_table(comparison: Comparison, found: "Findings", which: str) -> str:
    groups, own = groups_of(comparison.envs), found.by_family[which]
    rows = [[found.labels[m], *(interval(of[x]) if x in of else "–" for x in groups)] for m, of in own.items()]
    if which == "tuned":
        return pages.table(["method", *groups], rows)
    for row, (m, of) in zip(rows, own.items(), strict=True):
        tuned = found.by_family["tuned"].get(m, {})
        row.append(f"{tuned[ALL].value - of[ALL].value:+.2f}" if ALL in tuned and ALL in of else "–")
    return pages.table(["method", *groups, "tuned − one"], rows)


def _choice_rows(comparison: Comparison, found: "Findings") -> list[list[str]]:
    def text(point: Point | None) -> str:
        return f"{point}{' !' * bool(grid.edges(point))}" if point else "its own"

    rows = []
    for method in dict.fromkeys(method for _, method in found.choices):
        grid = comparison.grid_of(comparison.configure(comparison.envs[0], method))
        own = [found.choices[env, method] for env in comparison.envs]
        rows.append([found.labels[method], text(own[0].one), *(text(choice.tuned) for choice in own)])
    return rows


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


def _missing(comparison: Comparison, out: Path, found: "Findings") -> list[str]:
    finals, failed = found.finals["tuned"], cells.untuned(comparison, out)
    lines = [
        f"{row_of(method).label}: {reason}" for method in comparison.methods if (reason := comparison.missing(method))
    ]
    lines += [f"{row_of(method).label}: {reason}" for method, reason in failed.items()]
    lines += [
        f"{row_of(method).label} on {env}: {failure(cells.folder_of(out, cells.CELLS, env, method))}"
        for env, method in comparison.cells()
        if (env, method) not in finals and method not in failed
    ]
    lines += [
        f"{row_of(method).label} on {env}: no episode ended in the last fifth"
        for (env, method), values in finals.items()
        if not np.isfinite(values).all()
    ]
    lines += [
        f"{row_of(method).label} on {env}: parameters of {number} of {len(comparison.seeds)} seeds were not finite at "
        "the end, which counts as random play"
        for (env, method), number in found.diverged.items()
        if number
    ]
    lines += [
        f"{row_of(method).label} on {env}: {number} meta-gradients were not finite, and moved no η"
        for (env, method), number in found.skipped.items()
        if number
    ]
    lines += [
        f"* {row_of(method).label}: its rule was discovered in {', '.join(envs)}" for method, envs in found.seen.items()
    ]
    items = "".join(f"<li>{html.escape(line)}</li>" for line in lines)
    return ["<h2>What is missing</h2>", f"<ul>{items}</ul>" if items else "<p>Nothing.</p>"]


def _in_room(row: Mapping[str, Any], name: str) -> str:
    value = row[name]
    if isinstance(value, str):
        return value
    if f"± {name}" not in row:
        return _quantity(value)
    return f"{value:.2f} ± {row[f'± {name}']:.2f}" if math.isfinite(value) else "–"


def interval(estimate: statistics.Estimate) -> str:
    """Return the text of an estimate."""
    return f"{estimate.value:.2f} [{estimate.low:.2f}, {estimate.high:.2f}]"


def signed(estimate: statistics.Estimate) -> str:
    """Return the text of a difference, marked where its interval excludes 0."""
    text = f"{estimate.value:+.2f} [{estimate.low:+.2f}, {estimate.high:+.2f}]"
    return text + (" ▲" if estimate.low > 0 else " ▼" if estimate.high < 0 else "")


def _quantity(value: float | None) -> str:
    return "unknown" if value is None or math.isnan(value) else quantity(value)
