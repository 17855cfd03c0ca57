"""The report of a comparison: index.html, which holds all it shows, its figures as PNG and its numbers as CSV."""

import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments.comparison import cells, in_context
from experiments.comparison.cells import Choice
from experiments.comparison.comparison import Comparison
from experiments.comparison.methods import BASELINES, row_of
from experiments.comparison.page import interval, page
from experiments.comparison.protocol import ALL, family, groups_of
from experiments.results import plots, reading, statistics
from experiments.results.statistics import Estimate
from frodo import files
from frodo.logs import table
from frodo.regimes.scores import normalised, reference_scores
from frodo.settings.registry import RULES

THRESHOLDS = np.linspace(-0.2, 1.1, 66)

Cell = tuple[str, str]  # environment, method


class Findings(NamedTuple):
    """The numbers of a comparison.

    Attributes:
      choices: cell -> settings, of the cells whose tuning is finished.
      finals: "tuned" or "one" -> cell -> return of each seed, of the finished ones; random play's where parameters were
        not finite at the end.
      diverged: cell -> how many seeds that was, at its best settings.
      skipped: cell -> how many meta-gradients were not finite, at its best settings.
      scores: method -> normalised scores [num_seeds, num_envs] at its best settings, of methods with all cells.
      aggregates: method -> "IQM", "median", "optimality gap" -> estimate, at its best settings.
      by_family: "tuned" or "one" -> method -> family or ALL -> interquartile mean, where all of its cells are there.
      differences: "tuned" or "one" -> baseline, or what has the same η and does not learn it -> method -> environment,
        family or ALL -> mean paired difference.
      improvements: baseline -> method -> probability that a run of it is better, averaged over environments.
      costs: a row for each cell at its best settings.
      seen: method -> environments that its rule was discovered in.
      labels: method -> its name, marked where its rule has seen an environment.
    """

    choices: Mapping[Cell, Choice]
    finals: Mapping[str, Mapping[Cell, np.ndarray]]
    diverged: Mapping[Cell, int]
    skipped: Mapping[Cell, int]
    scores: Mapping[str, np.ndarray]
    aggregates: Mapping[str, Mapping[str, Estimate]]
    by_family: Mapping[str, Mapping[str, Mapping[str, Estimate]]]
    differences: Mapping[str, Mapping[str, Mapping[str, Mapping[str, Estimate]]]]
    improvements: Mapping[str, Mapping[str, Estimate]]
    costs: Sequence[Mapping[str, Any]]
    seen: Mapping[str, Sequence[str]]
    labels: Mapping[str, str]


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
    folder = out / "report"
    choices = cells.choices(comparison, out)
    runs = {
        which: {
            cell: cells.read(comparison, out, *cell, point=getattr(choice, which))
            for cell, choice in choices.items()
            if cells.is_shown(out, *cell, choice=choice)
        }
        for which in Choice._fields
    }
    found = _findings(comparison, choices, runs, seen)
    tuning = {cell: cells.tuning_returns(comparison, out, *cell) for cell, own in choices.items() if own.tuned}
    figures = _draw(comparison, folder, runs["tuned"], found, tuning)
    in_rooms = _in_rooms(comparison, folder, runs["tuned"], found, adapted_agents, figures)
    files.write_csv(folder / "scores.csv", _score_rows(comparison, found))
    files.write_csv(folder / "statistics.csv", _statistics_rows(found))
    files.write_csv(folder / "costs.csv", found.costs)
    files.write_csv(folder / "grid.csv", _grid_rows(comparison, tuning, choices))
    files.write(folder / "index.html", page(comparison, out, found, figures, in_rooms).encode())
    rows = [
        {"method": found.labels[method], **{name: interval(estimate) for name, estimate in own.items()}}
        for method, own in found.aggregates.items()
    ]
    return f"{table(rows)}\n{folder / 'index.html'}"


def _findings(comparison: Comparison, choices: Mapping, runs: Mapping, seen: Mapping) -> Findings:
    returns = {which: {cell: cells.returns_of(run) for cell, run in own.items()} for which, own in runs.items()}
    finals = {
        which: {
            (env, m): np.where(np.isneginf(values), reference_scores(env)[0], values)
            for (env, m), values in own.items()
        }
        for which, own in returns.items()
    }
    diverged = {cell: int(np.isneginf(values).sum()) for cell, values in returns["tuned"].items()}
    skipped = {
        cell: int(sum(run.columns["skipped"][own][-1] for own in reading.lives(run)))
        for cell, run in runs["tuned"].items()
        if "skipped" in run.columns
    }
    groups = groups_of(comparison.envs)
    places = {env: [i] for i, env in enumerate(comparison.envs)} | groups
    by_family: dict[str, dict[str, dict[str, Estimate]]] = {which: {} for which in finals}
    differences: dict[str, dict[str, dict[str, dict[str, Estimate]]]] = {which: {} for which in finals}
    for which, own in finals.items():
        for name, columns in places.items():
            scores = _scores(comparison, own, columns)
            if name in groups:
                for method, estimate in statistics.iqms(scores).items():
                    by_family[which].setdefault(method, {})[name] = estimate
            for over, method in _pairs(scores):
                estimate = statistics.mean_difference(scores[method] - scores[over])
                differences[which].setdefault(over, {}).setdefault(method, {})[name] = estimate
    scores = _scores(comparison, finals["tuned"], groups[ALL])
    return Findings(
        choices,
        finals,
        diverged,
        skipped,
        scores,
        statistics.aggregates(scores),
        by_family,
        differences,
        {over: statistics.improvements(scores, over) for over in BASELINES if over in scores and len(scores) > 1},
        _costs(comparison, runs["tuned"]),
        seen,
        {method: row_of(method).label + " *" * (method in seen) for method in comparison.methods},
    )


def _pairs(methods: Collection[str]) -> list[tuple[str, str]]:
    """Return whose difference to what is shown: all methods' to the baselines, and of those that learn η to frozen."""
    overs = dict.fromkeys((*BASELINES, *(row_of(method).frozen for method in methods)))
    return [
        (over, method)
        for over in overs
        if over in methods
        for method in methods
        if method != over and (over in BASELINES or row_of(method).frozen == over)
    ]


def _scores(comparison: Comparison, finals: Mapping[Cell, np.ndarray], columns: Sequence[int]) -> dict[str, np.ndarray]:
    """Return normalised scores [num_seeds, len(columns)] of the methods that have all cells of these environments."""
    envs = [comparison.envs[i] for i in columns]
    return {
        method: np.stack([normalised(env, finals[env, method]) for env in envs], axis=1)
        for method in comparison.methods
        if all((env, method) in finals and np.isfinite(finals[env, method]).all() for env in envs)
    }


def _score_rows(comparison: Comparison, found: Findings) -> list[dict[str, Any]]:
    return [
        {
            "environment": env,
            "family": family(env),
            "method": method,
            "settings": which,
            "seed": seed,
            "return": value,
            "score": float(normalised(env, value)),
            "is_seen": env in found.seen.get(method, ()),
        }
        for which, finals in found.finals.items()
        for (env, method), values in finals.items()
        for seed, value in zip(comparison.seeds, values.tolist(), strict=True)
    ]


def _statistics_rows(found: Findings) -> list[dict[str, Any]]:
    rows = [
        ("tuned", ALL, m, name, x) for m, own in found.aggregates.items() for name, x in own.items() if name != "IQM"
    ]
    for which, methods in found.by_family.items():
        rows += [(which, group, m, "IQM", x) for m, own in methods.items() for group, x in own.items()]
    named = [(which, *one) for which, own in found.differences.items() for one in own.items()]
    for which, over, methods in named:
        rows += [
            (which, group, m, f"difference to {over}", x) for m, own in methods.items() for group, x in own.items()
        ]
    for over, own in found.improvements.items():
        rows += [("tuned", ALL, m, f"probability of improvement over {over}", x) for m, x in own.items()]
    return [
        {
            "settings": which,
            "environments": group,
            "method": method,
            "statistic": name,
            **{key: float(value) for key, value in estimate._asdict().items()},
            "is_seen": method in found.seen,
        }
        for which, group, method, name, estimate in rows
    ]


def _grid_rows(comparison: Comparison, tuning: Mapping, choices: Mapping[Cell, Choice]) -> list[dict[str, Any]]:
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
            "is_tuned": point == choices[env, method].tuned,
            "is_one": point == choices[env, method].one,
        }
        for (env, method), returns in tuning.items()
        for point, values in returns.items()
        for seed, value in zip(comparison.tuning_seeds, values.tolist(), strict=True)
    ]


def _costs(comparison: Comparison, runs: Mapping[Cell, reading.Results]) -> list[dict[str, Any]]:
    """Return for each cell the cost of η before the lifetime, and that of a seed's lifetime without compilation.

    Of a lifetime's CPU time, that for η is what its other steps leave, each at the cost of a step of the method that
    has the same agent and does not learn η; nan without such a cell, or if a run has a single row.
    """
    same_agent = ("network", "batch_size", "unroll", "replay")
    rows: dict[Cell, dict[str, Any]] = {}
    for (env, method), results in runs.items():
        config, where = results.config["config"], comparison.origin(method)
        is_meta = RULES[config["rule"]["name"]].is_learned and not config["is_frozen"]
        fresh = (config["stride"] or config["num_updates"]) * config["unroll"]
        is_extra = is_meta and not config["is_validation_kept"]
        share = config["validation_unroll"] / (fresh + config["validation_unroll"]) if is_extra else 0.0
        env_steps = float(results.columns["env_steps"].max())
        seconds = env_steps / steps_per_cpu_second(results)
        total = float(results.columns["cpu_seconds"][-1])
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
            "CPU s to compile, all seeds": max(0.0, total - seconds * len(comparison.seeds)),
        }
    for (env, method), row in rows.items():
        other = env, row_of(method).frozen
        if math.isnan(row["CPU s for η"]) and other in rows:
            one, two = (runs[cell].config["config"] for cell in ((env, method), other))
            if all(one[name] == two[name] for name in same_agent):
                per_step = rows[other]["CPU s"] / rows[other]["env steps"]
                own = row["CPU s"] - (row["env steps"] - row["env steps for η"]) * per_step
                row["CPU s for η"] = float(np.maximum(0.0, own))
    return list(rows.values())


def _in_rooms(
    comparison: Comparison,
    folder: Path,
    runs: Mapping[Cell, reading.Results],
    found: Findings,
    adapted_agents: Sequence[str],
    figures: dict[str, str],
) -> list[Mapping[str, Any]]:
    """Draw what is had in rule rooms by the steps in a room, add the figures, and return the rows of the table."""
    by_kind = in_context.rooms(comparison.envs)
    before = {(row["environment"], row["method"]): row for row in found.costs}
    adapted = [line for name in adapted_agents for line in in_context.adapted(Path(name), by_kind)]
    rows: list[Mapping[str, Any]] = []
    for kind, own in by_kind.items():
        lines = [
            in_context.learned(found.labels[m], kind, {env: runs[env, m] for env in own}, before[next(iter(own)), m])
            for m in comparison.methods
            if all((env, m) in runs for env in own)
        ]
        if lines := lines + [line for line in adapted if line.kind == kind]:
            file = f"rooms_{kind}.png"
            in_context.draw(folder / file, lines, in_context.optimum(kind, own))
            figures[file] = (
                f"Rooms of the kind {kind}: mean normalised score over {len(own)} rooms by the environment steps in a "
                "room. Dashed: agents that adapt in context, with θ as it is, which end with the last of "
                f"{in_context.NUM_TRIALS} trials; band: 95 % Student-t interval of the mean over seeds."
            )
            rows += in_context.rows(lines)
    if rows:
        files.write_csv(folder / "rooms.csv", rows)
    return rows


def steps_per_cpu_second(results: reading.Results) -> float:
    """Return the speed of a run, compilation left out; nan if it has a single row."""
    return files.read_json(results.folder / "summary.json").get("steps_per_cpu_second") or math.nan


def _draw(
    comparison: Comparison, folder: Path, runs: Mapping[Cell, reading.Results], found: Findings, tuning: Mapping
) -> dict[str, str]:
    """Draw what there is; returns file name -> what it shows."""
    figures = {}
    num_seeds = len(comparison.seeds)
    scores, labels = found.scores, found.labels
    for env in comparison.envs:
        series = {
            method: reading.curve(runs[env, method], "return")._replace(label=labels[method])
            for method in comparison.methods
            if (env, method) in runs
        }
        if series:
            random, best = reference_scores(env)
            levels = {"random play": random, "reference (score 1)": best}
            band = "thin lines: each seed" if num_seeds < 3 else "band: 95 % Student-t interval of the mean"
            speeds = {method: steps_per_cpu_second(runs[env, method]) for method in series}
            by_time = {m: own._replace(x=own.x / speeds[m]) for m, own in series.items() if speeds[m] > 0}
            for name, own, over in (("curves", series, "environment steps"), ("cpu", by_time, "CPU seconds of a seed")):
                file = f"{name}_{env.replace('/', '_')}.png"
                plots.panels(
                    folder / file, _by_targets(own), title=env, xlabel=over, ylabel="mean return", hlines=levels
                )
                figures[file] = f"Return in {env} over {over}, mean of {num_seeds} seeds without smoothing; {band}."
    if scores:
        names = next(iter(found.aggregates.values()))
        estimates = {name: {labels[method]: own[name] for method, own in found.aggregates.items()} for name in names}
        plots.estimates(folder / "aggregates.png", estimates)
        figures["aggregates.png"] = "Normalised scores over all environments. Line: 95 % stratified bootstrap interval."
        profiles = statistics.profiles(scores, THRESHOLDS)
        by_panel = {
            targets: {labels[method]: profiles[method] for method in own}
            for targets, own in _by_targets({method: method for method in profiles}).items()
        }
        plots.profiles(folder / "profiles.png", THRESHOLDS, by_panel)
        figures["profiles.png"] = "Fraction of runs with a score above τ. Band: 95 % stratified bootstrap interval."
    if tuning:
        plots.sensitivity(folder / "sensitivity.png", _sensitivity(comparison, tuning, labels))
        figures["sensitivity.png"] = (
            f"The whole grid: mean normalised score of the {len(comparison.tuning_seeds)} tuning seeds over the "
            "environments of a family, by the learning rate; a line for each cost of entropy and batch. Where "
            "parameters were not finite it is 0, as of random play."
        )
    return figures


def _sensitivity(comparison: Comparison, tuning: Mapping, labels: Mapping[str, str]) -> dict:
    """Method -> family -> program -> learning rate -> mean score over the family's environments."""
    found: dict[str, dict[str, dict[str, dict[float, float]]]] = {}
    for method in dict.fromkeys(method for _, method in tuning):
        of_families = found.setdefault(labels[method], {})
        for name, columns in groups_of(comparison.envs).items():
            envs = [comparison.envs[i] for i in columns]
            lines = of_families.setdefault(name, {})
            for point in tuning[envs[0], method]:
                score = float(np.mean([np.mean(cells.scores_of(env, tuning[env, method][point])) for env in envs]))
                lines.setdefault(str(point.program), {})[point.learning_rate] = score
    return found


def _by_targets(by_method: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Sort what belongs to methods by the kind of their targets: a panel each."""
    panels: dict[str, list[Any]] = {}
    for method, own in by_method.items():
        panels.setdefault(row_of(method).targets, []).append(own)
    return panels
