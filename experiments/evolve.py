"""Evolve a loss: programs are varied and selected by how well fresh agents learn by them (Co-Reyes et al. 2021).

    python -m experiments.evolve --steps=2000
    python -m experiments.evolve --envs=gymnax/CartPole-v1,toy/catch --config.start=dqn --config.num_frozen=0
    python -m experiments.evolve --language=targets --envs=toy/catch/5x5,toy/grid_world/0

--steps are programs that are evaluated, --language says of what: losses of value-based agents, or targets of
actor-critics. The first environment is the hurdle. Writes one run folder, results/evolve/<language>/.
metrics.csv has one row per chunk of steps, with counts and the best score so far; programs.csv all that were evaluated,
with formula, parent and scores; finalists.csv the best ones again, with fresh seeds; rule.npz is the best of these,
for agents as those in the first environment; summary.json its scores, and of losses the program that is nearest to δ².
best.png is the best score over programs, program.png the program of rule.npz as a graph, and family.png shows all
programs that were evaluated, and the ancestors of the best one.

Returns are normalised by the bounds of the paper's code, elsewhere by random and by best play.
"""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np
from absl import flags

from experiments.results import plots, program_plots, reading
from experiments.runs import command_line
from experiments.runs.processes import define_process_flags, join
from experiments.runs.settings import parse_tasks
from frodo import files
from frodo.logs import table
from frodo.regimes.evolution import Evolution
from frodo.regimes.scores import task_of
from frodo.regimes.search_settings import KINDS, SEEDS_OF_FINALISTS, EvolutionConfig
from frodo.regimes.searching import Evolved, Searches, settings_for
from frodo.runs.callbacks import by_name
from frodo.runs.driver import drive, end_program
from frodo.runs.errors import UsageError
from frodo.runs.folders import of_process
from frodo.runs.options import RunOptions
from frodo.runs.run import Run
from meta.programs.evaluation import distance_from_td
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
    return EvolveConfig(**vars(settings_for(language)), envs=envs)


def run(config: EvolveConfig, options: RunOptions) -> dict[str, Any]:
    """Search, and write what was found into the run folder; returns the summary."""
    config.validate()
    if len(options.seeds) != 1:
        raise UsageError(f"--seeds={','.join(map(str, options.seeds))}: a search has one seed")
    options = of_process(options, "evolve", config.language)
    tasks = [task_of(env) for env in config.envs]
    regime = Searches(tasks, config.envs, config, options.seeds[0], options.steps)
    why = "a search ends with its finalists"
    with Run(options, experiment="evolve", name=config.language, config=config, why_as_long=why) as run:
        stopped = drive(regime, run, by_name(options.log_to))
        end_program(stopped, run)
        cpu_seconds = run.clock.cpu_seconds()
        found = regime.result(lambda number: end_program(stopped._replace(signal=number), run), cpu_seconds)
        write_finalists(run.folder / "finalists.csv", config, found)
        found.save(run.folder / "rule.npz")
        best, counts = found.best[0], found.search.counts
        of_envs = np.median(best.scores, axis=-1)
        summary = {
            "formula": best.formula,
            "score": best.score,
            **{f"score/{env}": float(of_envs[i]) for i, env in enumerate(config.envs)},
            **counts,
            "programs_per_cpu_hour": counts["evaluated"] / cpu_seconds * 3600,
            **(nearest_to_td(found.search) if config.language == "losses" else {}),
        }
        run.finish(summary)
    draw(run.folder)
    records, language = found.search.records, config.kind.language
    program_plots.draw_program(run.folder / "program.png", language, records[best.number].program)
    scores = [np.nan if x.score is None else x.score for x in records]
    of_records = [x.program for x in records], scores, [x.parent for x in records]
    program_plots.draw_family(run.folder / "family.png", language, *of_records, best.number)
    return summary | {"rule": str(run.folder / "rule.npz"), "figure": str(run.folder / "best.png")}


def nearest_to_td(search: Evolution) -> dict[str, Any]:
    """Return the program whose gradient's direction is nearest to δ²'s, of several the best: how far, and its score."""
    found = {x.number: round(distance_from_td(x.program, search.config.lane.ends), 3) for x in search.records}
    nearest = min(search.records, key=lambda x: (found[x.number], -(x.score or 0)))
    formula = to_formula(LOSSES, nearest.program)
    return {"nearest_to_td": formula, "distance_from_td": found[nearest.number], "score_of_nearest": nearest.score}


def write_finalists(path: Path, config: EvolveConfig, found: Evolved) -> None:
    """Write scores with fresh seeds, a row for each finalist, environment and seed, the best of the search first."""
    finalists = sorted(found.best, key=lambda one: (-one.score, one.number))
    rows = [
        {"number": one.number, "env": env, "seed": SEEDS_OF_FINALISTS + k, "score": one.scores[j, k]}
        | {"formula": one.formula}
        for one in finalists
        for j, env in enumerate(config.envs)
        for k in range(config.num_final_seeds)
    ]
    files.write_csv(path, rows)


def draw(folder: Path) -> None:
    """Draw the best score so far over programs that were evaluated."""
    results = reading.read(folder)
    best = reading.curve(results, "best_score")._replace(label="best of the search", x=results.columns["evaluated"])
    plots.curves(
        folder / "best.png",
        [best],
        title=f"Evolution of {results.config['name']}",
        xlabel="programs evaluated",
        ylabel="best sum of normalised returns",
    )


def main(argv: list[str]) -> None:
    FLAGS = flags.FLAGS
    join()
    summary = run(*command_line.parse_options(argv, configure(FLAGS.language, parse_tasks(FLAGS.envs))))
    if not jax.process_index():
        print(table([{"": name, "value": value} for name, value in summary.items()]))


if __name__ == "__main__":
    flags.DEFINE_string("envs", "gymnax/CartPole-v1", "Environments in JAX; the first is the hurdle.")
    flags.DEFINE_enum("language", "losses", list(KINDS), "What programs compute.")
    define_process_flags()
    preset = lambda: configure(flags.FLAGS.language, ())
    command_line.define_flags(EvolveConfig(), seeds="0", steps="2000", without=("envs", "language"), preset=preset)
    command_line.start(main)
