"""Evolve a loss: programs are varied and selected by how well fresh agents learn by them (Co-Reyes et al. 2021).

    frodo evolve
    frodo evolve --envs=gymnax/CartPole-v1,toy/catch --config.start=dqn --config.num_frozen=0
    frodo evolve --language=targets --envs=toy/catch/5x5,toy/grid_world/0

With --scheduler a worker of a cluster that is free evaluates the next program; else lanes of this process do.
--language says what programs are: losses of value-based agents, or targets of actor-critics. The first environment is
the hurdle. Writes one run folder, results/evolve/<language>/. metrics.csv has one row per chunk of steps, with counts
and the best score so far; programs.csv all that were evaluated, with formula, parent and scores; finalists.csv the best
ones again, with fresh seeds; rule.npz is the best of these, for agents as those in the first environment; summary.json
its scores, that of agents that learn nothing, and of losses the program that is nearest to δ².
best.png is the best score over programs, program.png the program of rule.npz as a graph, and family.png shows all
programs that were evaluated, and the ancestors of the best one.

Returns are normalised by the bounds of the paper's code, elsewhere by random and by best play. By default trainings are
those of the paper's appendix B; for losses in toys alone, they are short trainings of small agents.
"""

import contextlib

import jax
from absl import flags

from experiments.runs import command_line, search
from experiments.runs.processes import define_process_flags, join
from experiments.runs.search import EvolveConfig
from experiments.runs.settings import parse_tasks
from frodo.logs import table
from frodo.regimes.search_settings import KINDS
from frodo.runs import workers
from frodo.runs.errors import UsageError


def main(argv: list[str]) -> None:
    FLAGS = flags.FLAGS
    if FLAGS.scheduler and FLAGS.coordinator:
        raise UsageError(f"--scheduler={FLAGS.scheduler}: give it or --coordinator, whose processes share the lanes")
    join()
    preset = search.configure(FLAGS.language, parse_tasks(FLAGS.envs))
    config, options = command_line.parse_options(argv, preset)
    with workers.cluster(FLAGS.scheduler) if FLAGS.scheduler else contextlib.nullcontext() as executor:
        summary = search.run(config, options, executor)
    if not jax.process_index():
        finalists = summary.pop("finalists")
        print(table([{"": name, "value": value} for name, value in summary.items()]))
        print(table([{name: x if name == "formula" else f"{x:.3f}" for name, x in row.items()} for row in finalists]))


if __name__ == "__main__":
    flags.DEFINE_string("envs", "toy/catch/6x5", "Environments in JAX; the first is the hurdle.")
    flags.DEFINE_enum("language", "losses", list(KINDS), "What programs compute.")
    define_process_flags()
    command_line.define_scheduler_flag()
    preset = lambda: search.configure(flags.FLAGS.language, parse_tasks(flags.FLAGS.envs))
    command_line.define_flags(EvolveConfig(), seeds="0", programs="1200", without=("envs", "language"), preset=preset)
    command_line.start(main)
