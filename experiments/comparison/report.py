"""The report of a comparison: index.html, which holds all it shows, its figures as PNG and its numbers as CSV."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.comparison.methods import METHODS, Comparison, cell_folder
from experiments.comparison.page import interval, page
from experiments.results import plots, reading, statistics
from experiments.results.scores import normalised, reference_scores
from experiments.runs.errors import UsageError
from experiments.runs.jobs import failure
from frodo import files
from frodo.logs import table
from frodo.rule_files import load_origin
from frodo.rules import RULES

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
    finals = {cell: reading.final_values(results, "return") for cell, results in cells.items()}
    scores = {
        method: np.stack([normalised(env, finals[env, method]) for env in comparison.envs], axis=1)
        for method in comparison.methods
        if all((env, method) in finals and np.isfinite(finals[env, method]).all() for env in comparison.envs)
    }
    labels = {method: METHODS[method].label + " *" * (method in seen) for method in comparison.methods}
    aggregates = statistics.aggregates(scores)
    figures = _draw(comparison, folder, cells, scores, aggregates, labels)
    improvements = statistics.improvements(scores, next(iter(scores))) if len(scores) > 1 else {}
    costs = _costs(comparison, cells)
    files.write_csv(folder / "scores.csv", _score_rows(comparison, finals, seen))
    files.write_csv(folder / "statistics.csv", _statistics_rows(aggregates, improvements, seen))
    files.write_csv(folder / "costs.csv", costs)
    text = page(comparison, out, finals, aggregates, improvements, costs, figures, seen, labels)
    files.write(folder / "index.html", text.encode())
    rows = [
        {"method": labels[method], **{name: interval(estimate) for name, estimate in own.items()}}
        for method, own in aggregates.items()
    ]
    return f"{table(rows)}\n{folder / 'index.html'}"


def read_cell(comparison: Comparison, out: Path, env: str, method: str) -> reading.Results:
    """Read a finished cell, and check that it is of this comparison."""
    results = reading.read(cell_folder(out, env, method))
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


def _score_rows(comparison: Comparison, finals: Mapping[tuple[str, str], np.ndarray], seen) -> list[dict[str, Any]]:
    return [
        {
            "environment": env,
            "method": method,
            "seed": seed,
            "return": value,
            "score": float(normalised(env, value)),
            "is_seen": env in seen.get(method, ()),
        }
        for (env, method), values in finals.items()
        for seed, value in zip(comparison.seeds, values.tolist(), strict=True)
    ]


def _statistics_rows(aggregates: Mapping, improvements: Mapping, seen) -> list[dict[str, Any]]:
    named = [(method, name, estimate) for method, own in aggregates.items() for name, estimate in own.items()]
    over = next(iter(aggregates), "")
    named += [(method, f"probability of improvement over {over}", x) for method, x in improvements.items()]
    return [
        {"method": method, "statistic": name, **estimate._asdict(), "is_seen": method in seen}
        for method, name, estimate in named
    ]


def _costs(comparison: Comparison, cells: Mapping[tuple[str, str], reading.Results]) -> list[dict[str, Any]]:
    """Return for each cell the cost of η before the lifetime, and that of a seed's lifetime without compilation.

    Of a lifetime's CPU time, that for η is what its other steps leave, each at the cost of a step of the method that
    has the same agent and does not learn η; nan without such a cell, or if a run has a single row.
    """
    same_agent = ("network", "batch_size", "unroll", "replay")
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for (env, method), results in cells.items():
        config, rule = results.config["config"], comparison.rule(method)
        where = load_origin(rule) if rule else None
        is_meta = RULES[config["rule"]["name"]].is_learned and not config["is_frozen"]
        fresh = (config["stride"] or config["num_updates"]) * config["unroll"]
        share = config["validation_unroll"] / (fresh + config["validation_unroll"]) if is_meta else 0.0
        env_steps = float(results.columns["env_steps"].max())
        summary = json.loads((results.folder / "summary.json").read_bytes())
        seconds = env_steps / (summary["steps_per_cpu_second"] or math.nan)
        rows[env, method] = {
            "environment": env,
            "method": method,
            "env steps before": where.env_steps if where else 0,
            "CPU s before": where.cpu_seconds if where else 0,
            "note": where.note if where else "",
            "env steps": env_steps,
            "env steps for η": share * env_steps,
            "CPU s": seconds,
            "CPU s for η": math.nan if is_meta else 0.0,
            "CPU s to compile, all seeds": float(results.columns["cpu_seconds"][-1]) - seconds * len(comparison.seeds),
        }
    for (env, method), row in rows.items():
        other = env, METHODS[method].frozen
        if math.isnan(row["CPU s for η"]) and other in rows:
            one, two = (cells[cell].config["config"] for cell in ((env, method), other))
            if all(one[name] == two[name] for name in same_agent):
                per_step = rows[other]["CPU s"] / rows[other]["env steps"]
                own = row["CPU s"] - (row["env steps"] - row["env steps for η"]) * per_step
                row["CPU s for η"] = float(np.maximum(0.0, own))
    return list(rows.values())


def _draw(
    comparison: Comparison, folder: Path, cells: Mapping, scores: Mapping[str, np.ndarray], aggregates: Mapping, labels
) -> dict[str, str]:
    """Draw what there is; returns file name -> what it shows."""
    figures = {}
    num_seeds = len(comparison.seeds)
    for env in comparison.envs:
        series = {
            method: reading.curve(cells[env, method], "return")._replace(label=labels[method])
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
        estimates = {name: {labels[method]: own[name] for method, own in aggregates.items()} for name in names}
        plots.estimates(folder / "aggregates.png", estimates)
        figures["aggregates.png"] = "Normalised scores over all environments. Line: 95 % stratified bootstrap interval."
        found = statistics.profiles(scores, THRESHOLDS)
        by_panel = {
            targets: {labels[method]: found[method] for method in own}
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
