"""Score programs: how well agents learn by given formulas, trained as in a search.

    frodo score --formula=dqn --formula=dqn_reg --formula="(Q(s)[a] - r)**2" --envs=gymnax/CartPole-v1
    frodo score --finalists=results/evolve/losses/finalists.csv --seeds=2000-2009

Prints for each program the mean normalised return of all episodes of a training by environment, with the standard
deviation over seeds; the sum of the means, where a search has medians over seeds; and how far the direction of its
gradient is from that of DQN's loss, δ², with γ or without, on fixed transitions: .05 is 5 %. --out=DIR keeps
scores.csv, the score of each seed, and a picture of each program, 1.png of the best.
"""

import csv
from pathlib import Path

import numpy as np
from absl import flags

from experiments.results import plots
from experiments.results.program_plots import draw_program
from experiments.runs import command_line
from experiments.runs.settings import parse_tasks
from frodo import files
from frodo.logs import Progress, table
from frodo.regimes.evolution import Evolution
from frodo.regimes.scores import task_of
from frodo.regimes.search_settings import EvolutionConfig
from frodo.runs.errors import UsageError
from frodo.runs.folders import check_out
from meta.programs.equivalence import distance_from_td
from meta.programs.language import LOSSES, to_formula
from meta.programs.rule import parse_loss

OF_THE_SEARCH = (  # settings that change no score
    *("language", "population_size", "tournament_size", "mutation_share", "start", "num_frozen", "hurdle"),
    *("equivalence", "num_seeds", "num_finalists", "num_final_seeds", "target_lane"),
)


def read_finalists(path: str) -> list[str]:
    """Return the formulas of a file that `evolve` wrote, finalists.csv or programs.csv, each once."""
    try:
        with Path(path).open(newline="", encoding="utf-8") as file:
            return list(dict.fromkeys(row["formula"].strip() for row in csv.DictReader(file)))
    except (OSError, KeyError, AttributeError, UnicodeDecodeError, csv.Error):  # a row that ends early has None
        raise UsageError(f"--finalists={path}: give a finalists.csv or programs.csv of `evolve`") from None


def main(argv: list[str]) -> None:
    FLAGS = flags.FLAGS
    check_out(Path(FLAGS.out))
    envs = parse_tasks(FLAGS.envs)
    formulas = [*FLAGS.formula, *(read_finalists(FLAGS.finalists) if FLAGS.finalists else [])]
    if not formulas:
        raise UsageError("--formula: give at least one, such as dqn or (Q(s)[a] - r)**2, or --finalists=FILE")
    config = command_line.parse_settings(argv, EvolutionConfig())
    programs = [parse_loss(f"--formula={x}", x, config.lane.ends) for x in formulas]
    seeds = command_line.parse_seeds(FLAGS.seeds)
    search = Evolution([task_of(env) for env in envs], config, seed=0)
    progress = Progress(len(programs) * len(envs) * len(seeds), unit="trainings")
    scores = search.rescore(programs, seeds, progress.update)[0]  # [programs, environments, seeds]
    sums, texts = scores.mean(axis=-1).sum(axis=-1), [to_formula(LOSSES, one) for one in programs]
    order = np.argsort(-sums, kind="stable")
    spread = lambda x: f" ± {x.std(ddof=1):.3f}" if len(x) > 1 else ""
    rows = [
        {"formula": texts[i]}
        | {env: f"{own.mean():.3f}{spread(own)}" for env, own in zip(envs, scores[i], strict=True)}
        | {"sum": f"{sums[i]:.3f}", "from δ²": f"{distance_from_td(programs[i], config.lane.ends):.3f}"}
        for i in order
    ]
    print(table(rows))
    if FLAGS.out:
        for place, i in enumerate(order if plots.can_draw("score them again") else (), start=1):
            draw_program(Path(FLAGS.out) / f"{place}.png", LOSSES, programs[i])
        found = [
            {"formula": text, "env": env, "seed": seed, "score": float(scores[i, j, k])}
            for i, text in enumerate(texts)
            for j, env in enumerate(envs)
            for k, seed in enumerate(seeds)
        ]
        files.write_csv(Path(FLAGS.out) / "scores.csv", found)


if __name__ == "__main__":
    flags.DEFINE_multi_string("formula", [], "A program, or the name of one; may be given several times.")
    flags.DEFINE_string("finalists", "", "Score the programs of this file of `evolve`, too.")
    flags.DEFINE_string("envs", "gymnax/CartPole-v1", "Environments in JAX.")
    flags.DEFINE_string("seeds", "0-4", "Seeds, such as 3 or 0,1,2 or 0-9.")
    flags.DEFINE_string("out", "", "Folder for the score of each seed, and pictures of the programs.")
    command_line.define_settings(EvolutionConfig(), without=OF_THE_SEARCH)
    command_line.start(main)
