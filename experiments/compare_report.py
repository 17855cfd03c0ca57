"""The report of a comparison: index.html, which holds all it shows, its figures as PNG and its numbers as CSV."""

import base64
import html
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments import files, pages, plots, report, statistics
from experiments.comparison import METHODS, Comparison, cell_folder
from experiments.files import UsageError
from experiments.jobs import failure
from experiments.logs import quantity, table
from experiments.rules import origin
from experiments.scores import normalised, reference_scores
from frodo.rule import LEARNED_RULES

THRESHOLDS = np.linspace(-0.2, 1.1, 66)


def write(comparison: Comparison, out: Path, seen: Mapping[str, Sequence[str]]) -> str:
    """Write <out>/report/ from the cells that are finished; returns a table of the aggregate scores.

    Args:
      seen: method -> environments that its rule was discovered in.
    Raises:
      UsageError: if a cell is of another environment or budget, or misses seeds.
    """
    folder = out / "report"
    cells = {cell: read_cell(comparison, out, *cell) for cell in _finished(comparison, out)}
    finals = {cell: report.final_values(results, "return") for cell, results in cells.items()}
    scores = {
        method: np.stack([normalised(env, finals[env, method]) for env in comparison.envs], axis=1)
        for method in comparison.methods
        if all((env, method) in finals and np.isfinite(finals[env, method]).all() for env in comparison.envs)
    }
    aggregates = statistics.aggregates(scores)
    figures = _draw(comparison, folder, cells, scores, aggregates)
    improvements = statistics.improvements(scores, next(iter(scores))) if len(scores) > 1 else {}
    costs = _costs(comparison, cells)
    files.write_csv(folder / "scores.csv", _score_rows(comparison, finals))
    files.write_csv(folder / "statistics.csv", _statistics_rows(aggregates, improvements))
    files.write_csv(folder / "costs.csv", costs)
    page = _page(comparison, out, finals, aggregates, improvements, costs, figures, seen)
    files.write(folder / "index.html", page.encode())
    rows = [
        {"method": METHODS[method].label, **{name: _interval(estimate) for name, estimate in own.items()}}
        for method, own in aggregates.items()
    ]
    return f"{table(rows)}\n{folder / 'index.html'}"


def read_cell(comparison: Comparison, out: Path, env: str, method: str) -> report.Results:
    """Read a finished cell, and check that it is of this comparison."""
    results = report.read(cell_folder(out, env, method))
    expected = {"environment": env, "budget": comparison.budget, "seeds": list(comparison.seeds)}
    found = {
        "environment": results.config["config"]["env"],
        "budget": results.config["steps"],
        "seeds": sorted({int(seed) for seed in results.columns["seed"]}),
    }
    for name, value in expected.items():
        if found[name] != value:
            raise UsageError(
                f"{results.folder}: its {name} is {found[name]}, expected {value}: runs of one comparison must agree"
            )
    return results


def _finished(comparison: Comparison, out: Path) -> list[tuple[str, str]]:
    return [cell for cell in comparison.cells() if not failure(cell_folder(out, *cell))]


def _score_rows(comparison: Comparison, finals: Mapping[tuple[str, str], np.ndarray]) -> list[dict[str, Any]]:
    return [
        {"environment": env, "method": method, "seed": seed, "return": value, "score": float(normalised(env, value))}
        for (env, method), values in finals.items()
        for seed, value in zip(comparison.seeds, values.tolist(), strict=True)
    ]


def _statistics_rows(aggregates: Mapping, improvements: Mapping) -> list[dict[str, Any]]:
    named = [(method, name, estimate) for method, own in aggregates.items() for name, estimate in own.items()]
    over = next(iter(aggregates), "")
    named += [(method, f"probability of improvement over {over}", x) for method, x in improvements.items()]
    return [{"method": method, "statistic": name, **estimate._asdict()} for method, name, estimate in named]


def _costs(comparison: Comparison, cells: Mapping[tuple[str, str], report.Results]) -> list[dict[str, Any]]:
    """For each cell, what η cost before the lifetime and what the lifetime cost, a seed."""
    rows = []
    for (env, method), results in cells.items():
        config, rule = results.config["config"], comparison.rule(method)
        where = origin(rule) if rule else None
        is_meta = config["rule"]["name"] in LEARNED_RULES and not config["is_frozen"]
        fresh = (config["stride"] or config["num_updates"]) * config["unroll"]
        share = config["validation_unroll"] / (fresh + config["validation_unroll"]) if is_meta else 0.0
        env_steps = float(results.columns["env_steps"].max())
        rows.append(
            {
                "environment": env,
                "method": method,
                "env steps before": where.env_steps if where else 0,
                "CPU s before": where.cpu_seconds if where else 0,
                "note": where.note if where else "",
                "env steps": env_steps,
                "of them for η": share * env_steps,
                "CPU s": report.cpu_seconds(results) / len(comparison.seeds),
            }
        )
    return rows


def _draw(
    comparison: Comparison, folder: Path, cells: Mapping, scores: Mapping[str, np.ndarray], aggregates: Mapping
) -> dict[str, str]:
    """Draw what there is; returns file name -> what it shows."""
    figures = {}
    num_seeds = len(comparison.seeds)
    for env in comparison.envs:
        series = {
            method: report.curve(cells[env, method], "return")._replace(label=METHODS[method].label)
            for method in comparison.methods
            if (env, method) in cells
        }
        if series:
            random, best = reference_scores(env)
            name = f"curves_{env.replace('/', '_')}.png"
            plots.panels(
                folder / name,
                _by_targets(series),
                title=env,
                xlabel="environment steps",
                ylabel="mean return",
                hlines={"random play": random, ("human" if env.startswith("atari/") else "best"): best},
            )
            band = "thin lines: each seed" if num_seeds < 3 else "band: 95 % Student-t interval of the mean"
            figures[name] = f"Return in {env}, mean of {num_seeds} seeds without smoothing; {band}."
    if scores:
        names = next(iter(aggregates.values()))
        estimates = {name: {METHODS[method].label: own[name] for method, own in aggregates.items()} for name in names}
        plots.estimates(folder / "aggregates.png", estimates)
        figures["aggregates.png"] = "Normalised scores over all environments. Line: 95 % stratified bootstrap interval."
        found = statistics.profiles(scores, THRESHOLDS)
        by_panel = {
            targets: {METHODS[method].label: found[method] for method in own}
            for targets, own in _by_targets({method: method for method in found}).items()
        }
        plots.profiles(folder / "profiles.png", THRESHOLDS, by_panel)
        figures["profiles.png"] = "Fraction of runs with a score above τ. Band: 95 % stratified bootstrap interval."
    return figures


def _by_targets(by_method: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Sort what belongs to methods by the kind of their targets: a panel each."""
    panels: dict[str, list[Any]] = {}
    for method, own in by_method.items():
        panels.setdefault(METHODS[method].targets, []).append(own)
    return panels


def _page(
    comparison: Comparison,
    out: Path,
    finals: Mapping[tuple[str, str], np.ndarray],
    aggregates: Mapping,
    improvements: Mapping,
    costs: Sequence[Mapping[str, Any]],
    figures: Mapping[str, str],
    seen: Mapping[str, Sequence[str]],
) -> str:
    mark = lambda method: METHODS[method].label + (" *" if method in seen else "")
    parts = [
        "<h1>Online against population</h1>",
        f"<p>{len(comparison.envs)} environments, {quantity(comparison.budget)} environment steps for each agent, "
        f"{len(comparison.seeds)} seeds. A normalised score of 0 is random play; 1 is the best that can be done, on "
        "Atari human play. Scores are means over the last fifth of a lifetime. Intervals are 95 %, of stratified "
        "bootstraps over seeds: with few seeds they are too narrow.</p>",
        "<h2>Targets and regimes</h2><p>Interquartile mean of the normalised scores.</p>",
        _matrix(comparison, aggregates, mark),
        "<h2>Returns</h2><p>Mean over seeds, smallest to largest.</p>",
        pages.table(
            ["method", *comparison.envs], [_return_row(comparison, finals, m, mark) for m in comparison.methods]
        ),
    ]
    if improvements:
        over = next(iter(aggregates))
        parts += [
            "<h2>Probability of improvement</h2>",
            pages.table(["method", f"over {mark(over)}"], [[mark(x), _interval(y)] for x, y in improvements.items()]),
        ]
    parts += ["<h2>Cost</h2><p>Before the lifetime to discover η, and a lifetime, mean over environments.</p>"]
    parts.append(_cost_table(comparison, costs, mark))
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


def _matrix(comparison: Comparison, aggregates: Mapping, mark) -> str:
    chosen = {name: method for name, method in METHODS.items() if name in comparison.methods}
    regimes = list(dict.fromkeys(method.regime for method in chosen.values()))
    rows = []
    for targets in dict.fromkeys(method.targets for method in chosen.values()):
        cells = []
        for regime in regimes:
            here = [name for name, method in chosen.items() if (method.targets, method.regime) == (targets, regime)]
            score = lambda name: _interval(aggregates[name]["IQM"]) if name in aggregates else "missing"
            cells.append("; ".join(f"{mark(name)}: {score(name)}" for name in here) or "–")
        rows.append([targets, *cells])
    return pages.table(["targets", *regimes], rows, "wide matrix")


def _return_row(comparison: Comparison, finals: Mapping, method: str, mark) -> list[str]:
    cells = [mark(method)]
    for env in comparison.envs:
        values = finals.get((env, method))
        cells.append("–" if values is None else f"{values.mean():.3g} ({values.min():.3g} to {values.max():.3g})")
    return cells


def _cost_table(comparison: Comparison, costs: Sequence[Mapping[str, Any]], mark) -> str:
    columns = ["env steps before", "CPU s before", "env steps", "of them for η", "CPU s"]
    rows = []
    for method in comparison.methods:
        own = [row for row in costs if row["method"] == method]
        if own:
            values = [
                "unknown" if own[0][name] is None else quantity(np.mean([row[name] for row in own])) for name in columns
            ]
            rows.append([mark(method), *values, own[0]["note"]])
    return pages.table(["method", *columns, ""], rows)


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


def _interval(estimate: statistics.Estimate) -> str:
    return f"{estimate.value:.2f} [{estimate.low:.2f}, {estimate.high:.2f}]"
