"""The report of a comparison: index.html, which holds all it shows, its figures as PNG and its numbers as CSV."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments.comparison import cells, in_context
from experiments.comparison.cells import Cell, Choice
from experiments.comparison.comparison import Comparison
from experiments.comparison.methods import BASELINES, row_of
from experiments.comparison.page import Findings, interval, page, pivot
from experiments.comparison.protocol import ALL, Program, family, groups_of
from experiments.results import plots, reading, statistics
from frodo import files
from frodo.logs import table
from frodo.regimes.scores import normalised, reference_scores
from frodo.settings.registry import RULES

THRESHOLDS = np.linspace(-0.2, 1.1, 66)
AGGREGATES = ["IQM", "median", "optimality gap"]
ESTIMATES = ("settings", "environments", "method", "statistic", *statistics.Estimate._fields, "is_seen")

Finals = Mapping[str, Mapping[Cell, np.ndarray]]  # "tuned" or "one" -> cell -> return of each seed, as `cells.finals`


def write(
    comparison: Comparison, out: Path, seen: Mapping[str, Sequence[str]], adapted_agents: Sequence[str] = ()
) -> str:
    """Write <out>/report/ from the cells that are finished; returns a table of the aggregate scores.

    Args:
      seen: method -> environments that its rule was discovered in.
      adapted_agents: folders of `experiments.adapt`, whose agents play the rule rooms among the environments.
    Raises:
      UsageError: if a run is of another environment or budget, or misses seeds.
    """
    folder, choices = out / "report", cells.choices(comparison, out)
    runs = {
        which: {
            cell: cells.read(comparison, out, *cell, point=getattr(choice, which))
            for cell, choice in choices.items()
            if cells.is_shown(out, *cell, choice=choice)
        }
        for which in Choice._fields
    }
    finals = {which: {cell: cells.finals(cell[0], run) for cell, run in own.items()} for which, own in runs.items()}
    grid = _grid(comparison, out, choices)
    found = Findings(
        choices,
        runs["tuned"],
        pd.DataFrame(_statistics(comparison, finals, seen), columns=ESTIMATES),
        _costs(comparison, runs["tuned"]),
        seen,
        {method: row_of(method).label + " *" * (method in seen) for method in comparison.methods},
    )
    lines = in_context.lines(comparison.envs, found, adapted_agents)
    in_rooms = in_context.rows(lines)
    figures = _draw(comparison, folder, found, _scores(comparison, finals["tuned"], comparison.envs))
    figures |= _draw_grid(comparison, folder, found, grid) | in_context.draw(folder, lines, comparison.envs)
    files.write_csv(folder / "scores.csv", _score_rows(comparison, finals, seen))
    files.write_csv(folder / "statistics.csv", found.statistics.to_dict("records"))
    files.write_csv(folder / "costs.csv", found.costs)
    files.write_csv(folder / "grid.csv", grid)
    if in_rooms:
        files.write_csv(folder / "rooms.csv", in_rooms)
    files.write(folder / "index.html", page(comparison, out, found, figures, in_rooms).encode())
    shown = pivot(found, "statistic", AGGREGATES, interval, environments=ALL, settings="tuned")
    return f"{table(shown.reset_index(names='method').to_dict('records'))}\n{folder / 'index.html'}"


def _score_rows(comparison: Comparison, finals: Finals, seen: Mapping) -> list[dict[str, Any]]:
    return [
        {
            "environment": env,
            "family": family(env),
            "method": method,
            "settings": which,
            "seed": seed,
            "return": value,
            "score": float(normalised(env, value)),
            "is_seen": env in seen.get(method, ()),
        }
        for which, own in finals.items()
        for (env, method), values in own.items()
        for seed, value in zip(comparison.seeds, values.tolist(), strict=True)
    ]


def _statistics(comparison: Comparison, finals: Finals, seen: Mapping) -> Iterable[tuple]:
    """Return the rows of `ESTIMATES`: of returns by environment, of scores by family and over all, of differences."""
    groups = {name: [comparison.envs[i] for i in own] for name, own in groups_of(comparison.envs).items()}
    for which, own in finals.items():
        for place, envs in ({env: [env] for env in comparison.envs} | groups).items():
            scores = _scores(comparison, own, envs)
            found: dict[str, Mapping[str, statistics.Estimate]] = {}
            if place in groups:
                found["IQM"] = statistics.iqms(scores)
            elif which == "tuned":
                found["mean return"] = statistics.means({m: own[place, m][:, None] for m in scores})
            if (which, place) == ("tuned", ALL):
                of_methods = statistics.aggregates(scores)
                found |= {name: {m: x[name] for m, x in of_methods.items()} for name in AGGREGATES}
                for over in (over for over in BASELINES if over in scores and len(scores) > 1):
                    found[f"probability of improvement over {over}"] = statistics.improvements(scores, over)
            for over, pairs in _pairs(scores).items():
                differences = {m: statistics.mean_difference(scores[m] - scores[over]) for m in pairs}
                found[f"difference to {over}"] = differences
            for name, by_method in found.items():
                for method, estimate in by_method.items():
                    yield which, place, method, name, *map(float, estimate), method in seen


def _pairs(methods: Collection[str]) -> dict[str, list[str]]:
    """Return whose difference to what is shown: all methods' to the baselines, and of those that learn η to frozen."""
    pairs = {
        over: [m for m in methods if m != over and (over in BASELINES or row_of(m).frozen == over)]
        for over in dict.fromkeys((*BASELINES, *(row_of(method).frozen for method in methods)))
        if over in methods
    }
    return {over: own for over, own in pairs.items() if own}


def _scores(comparison: Comparison, finals: Mapping[Cell, np.ndarray], envs: Sequence[str]) -> dict[str, np.ndarray]:
    """Return normalised scores [num_seeds, len(envs)] of the methods that have all cells of these environments."""
    return {
        method: np.stack([normalised(env, finals[env, method]) for env in envs], axis=1)
        for method in comparison.methods
        if all((env, method) in finals and np.isfinite(finals[env, method]).all() for env in envs)
    }


def _grid(comparison: Comparison, out: Path, choices: Mapping[Cell, Choice]) -> list[dict[str, Any]]:
    """Return a row for each run that settings were chosen by."""
    return [
        {
            "environment": env,
            "method": method,
            "learning_rate": point.learning_rate,
            "entropy_cost": point.entropy_cost,
            "environments": point.batch[0],
            "steps": point.batch[1],
            "seed": seed,
            "return": value,
            "score": float(cells.scores_of(env, np.array(value))),
            "is_tuned": point == choice.tuned,
            "is_one": point == choice.one,
        }
        for (env, method), choice in choices.items()
        if choice.tuned
        for point, values in cells.tuning_returns(comparison, out, env, method).items()
        for seed, value in zip(comparison.tuning_seeds, values.tolist(), strict=True)
    ]


def _costs(comparison: Comparison, runs: Mapping[Cell, reading.Results]) -> list[dict[str, Any]]:
    """Return for each cell the cost of η before the lifetime, and that of a seed's lifetime without compilation.

    Of a lifetime's CPU time, that for η is what its other steps leave, each at the cost of a step of the method that
    has the same agent and does not learn η; nan without such a cell, or if a run has a single row.
    """
    rows: dict[Cell, dict[str, Any]] = {}
    for (env, method), results in runs.items():
        config, where = results.config["config"], comparison.origin(method)
        is_meta = RULES[config["rule"]["name"]].is_learned and not config["is_frozen"]
        fresh = (config["stride"] or config["num_updates"]) * config["unroll"]
        is_extra = is_meta and not config["is_validation_kept"]
        share = config["validation_unroll"] / (fresh + config["validation_unroll"]) if is_extra else 0.0
        env_steps = float(results.columns["env_steps"].max())
        seconds = env_steps / steps_per_cpu_second(results)
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
            "CPU s to compile, all seeds": max(
                0.0, float(results.columns["cpu_seconds"][-1]) - seconds * len(comparison.seeds)
            ),
        }
    for (env, method), row in rows.items():
        other = env, row_of(method).frozen
        if math.isnan(row["CPU s for η"]) and other in rows:
            one, two = (runs[cell].config["config"] for cell in ((env, method), other))
            if all(one[name] == two[name] for name in ("network", "batch_size", "unroll", "replay")):
                per_step = rows[other]["CPU s"] / rows[other]["env steps"]
                own = row["CPU s"] - (row["env steps"] - row["env steps for η"]) * per_step
                row["CPU s for η"] = float(np.maximum(0.0, own))
    return list(rows.values())


def steps_per_cpu_second(results: reading.Results) -> float:
    """Return the speed of a run, compilation left out; nan if it has a single row."""
    return files.read_json(results.folder / "summary.json").get("steps_per_cpu_second") or math.nan


def _draw(comparison: Comparison, folder: Path, found: Findings, scores: Mapping[str, np.ndarray]) -> dict[str, str]:
    """Draw curves, and the scores of methods that have all cells; returns file name -> what it shows."""
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
            if not speeds:
                continue
            file = f"{name}_{env.replace('/', '_')}.png"
            with plots.panels(folder / file, targets_of(units), env, over, "mean return") as axes:
                for method, unit in units.items():
                    one = reading.curve(found.runs[env, method], "return")
                    plots.curve(axes[row_of(method).targets], one.x / unit, one.y, **looks[method])
                for own in axes.values():
                    plots.levels(own, levels)
            figures[file] = f"Return in {env} over {over}, mean of {num_seeds} seeds without smoothing; {band}."
    if scores:
        rows = found.statistics.query("settings == 'tuned' and environments == @ALL and statistic in @AGGREGATES")
        names = {"optimality gap": "optimality gap\n(less is better)"}
        rows = rows.assign(label=rows.method.map(found.labels), statistic=rows.statistic.replace(names))
        plots.intervals(folder / "aggregates.png", rows, "normalised score")
        figures["aggregates.png"] = "Normalised scores over all environments. Line: 95 % stratified bootstrap interval."
        texts = ("Performance profiles", "normalised score τ", "fraction of runs with score > τ")
        with plots.panels(folder / "profiles.png", targets_of(scores), *texts) as axes:
            for method, estimate in statistics.profiles(scores, THRESHOLDS).items():
                plots.band(axes[row_of(method).targets], THRESHOLDS, *estimate, **looks[method])
        figures["profiles.png"] = "Fraction of runs with a score above τ. Band: 95 % stratified bootstrap interval."
    return figures


def _draw_grid(
    comparison: Comparison, folder: Path, found: Findings, grid: Sequence[Mapping[str, Any]]
) -> dict[str, str]:
    """Draw the scores of all settings; returns file name -> what it shows."""
    if not grid:
        return {}
    program = lambda row: str(Program(row["entropy_cost"], (row["environments"], row["steps"])))
    rows = pd.DataFrame([dict(row) | {"method": found.labels[row["method"]], "program": program(row)} for row in grid])
    by_family = {
        name: rows[rows.environment.isin([comparison.envs[i] for i in columns])]
        .groupby(["method", "program", "learning_rate"], sort=False)
        .score.agg(lambda scores: scores.mean(skipna=False))
        for name, columns in groups_of(comparison.envs).items()
    }
    plots.sensitivity(folder / "sensitivity.png", pd.concat(by_family, names=["family"]).reset_index())
    text = (
        f"The whole grid: mean normalised score of the {len(comparison.tuning_seeds)} tuning seeds over the "
        "environments of a family, by the learning rate; a line for each cost of entropy and batch. Where parameters "
        "were not finite it is 0, as of random play."
    )
    return {"sensitivity.png": text}
