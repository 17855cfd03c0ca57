"""The evolution of programs as a run: its settings, its folder with all that was found, and its figures."""

import dataclasses
from concurrent.futures import Executor
from typing import Any

import numpy as np

from experiments.results import plots, program_plots, reading
from experiments.runs.discovery import one_seed
from frodo import files
from frodo.regimes.evolution import Evolution
from frodo.regimes.scores import task_of
from frodo.regimes.search_settings import SEEDS_OF_FINALISTS, EvolutionConfig
from frodo.regimes.searching import Searches, settings_for, total
from frodo.runs.callbacks import by_name
from frodo.runs.driver import drive, end_program
from frodo.runs.folders import RunOptions, of_process
from frodo.runs.run import Run
from meta.programs.equivalence import distance_from_td
from meta.programs.language import LOSSES, to_formula


@dataclasses.dataclass
class EvolveConfig(EvolutionConfig):
    """A search of programs, and where its agents live.

    Attributes:
      envs: Names of environments; the first is the hurdle.
    """

    envs: tuple[str, ...] = ()


def configure(language: str, envs: tuple[str, ...]) -> EvolveConfig:
    """Return the settings of a search in these environments."""
    return EvolveConfig(**vars(settings_for(language, envs)), envs=envs)


def run(config: EvolveConfig, options: RunOptions, executor: Executor | None = None) -> dict[str, Any]:
    """Search, and write what was found into the run folder; returns the summary. An executor has the evaluations."""
    config.validate()
    seed = one_seed(options, "a search")
    options = of_process(options, "evolve", config.language)
    regime = Searches([task_of(env) for env in config.envs], config.envs, config, seed, options.steps, executor)
    how: dict[str, Any] = dict(config=config, why_as_long="a search ends with its finalists")
    with Run(options, experiment="evolve", name=config.language, **how) as run:
        stopped = drive(regime, run, by_name(options.log_to))
        end_program(stopped, run)
        cpu_seconds = None if executor else run.clock.cpu_seconds()  # which are not those of workers
        found = regime.result(lambda number: end_program(stopped._replace(signal=number), run), cpu_seconds)
        rows = [
            {"number": one.number, "env": env, "seed": SEEDS_OF_FINALISTS + k, "score": one.scores[j, k]}
            | {"formula": one.formula}
            for one in sorted(found.best, key=lambda one: (-one.score, one.number))
            for j, env in enumerate(config.envs)
            for k in range(config.num_final_seeds)
        ]
        files.write_csv(run.folder / "finalists.csv", rows)
        found.save(run.folder / "rule.npz")
        best, counts = found.best[0], found.search.counts
        of_envs = np.median(best.scores, axis=-1)
        summary = {
            "formula": best.formula,
            **({"simplified": best.simplified.text, "latex": best.simplified.latex} if best.simplified else {}),
            "score": best.score,
            "score_of_nothing": total(found.of_nothing),
            **{f"score/{env}": float(of_envs[i]) for i, env in enumerate(config.envs)},
            **counts,
            **({"programs_per_cpu_hour": counts["evaluated"] / cpu_seconds * 3600} if cpu_seconds else {}),
            **(nearest_to_td(found.search) if config.language == "losses" else {}),
            "finalists": [
                {"fresh seeds": total(one.scores), "search": one.score, "formula": one.formula} for one in found.best
            ],
        }
        run.finish(summary)
    if not plots.can_draw():
        return summary | {"rule": str(run.folder / "rule.npz")}
    records, language = found.search.records, config.kind.language
    results, programs = reading.read(run.folder), [x.program for x in records]
    curve = reading.curve(results, "best_score")._replace(label="best of the search", x=results.columns["evaluated"])
    title, ylabel = f"Evolution of {config.language}", "best sum of normalised returns"
    plots.curves(run.folder / "best.png", [curve], title=title, xlabel="programs evaluated", ylabel=ylabel)
    program_plots.draw_program(run.folder / "program.png", language, programs[best.number])
    scores = [np.nan if x.score is None else x.score for x in records]
    parents = [x.parent for x in records]
    program_plots.draw_family(run.folder / "family.png", language, programs, scores, parents, best.number)
    return summary | {"rule": str(run.folder / "rule.npz"), "figure": str(run.folder / "best.png")}


def nearest_to_td(search: Evolution) -> dict[str, Any]:
    """Return the program whose gradient's direction is nearest to δ²'s, of several the best: how far, and its score."""
    found = {x.number: round(distance_from_td(x.program, search.config.lane.ends), 3) for x in search.records}
    nearest = min(search.records, key=lambda x: (found[x.number], -(x.score or 0)))
    formula = to_formula(LOSSES, nearest.program)
    return {"nearest_to_td": formula, "distance_from_td": found[nearest.number], "score_of_nearest": nearest.score}
