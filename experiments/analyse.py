"""Figures of the predictions of an agent with DiscoRL's targets: how sure they are, and what they hold.

    frodo analyse results/evaluate/toy_catch_8x8_disco103 --figures=confidence,horizon

Reads the agent from the last checkpoint of a run and lets it act. For each of the figures of Oh et al. 2025, Figure 4,
it writes <figure>.png and the numbers in it, <figure>.csv, to the run's folder analysis/.
"""

from pathlib import Path

from absl import flags

from experiments.analyses import figures
from experiments.runs import command_line
from frodo.runs.folders import check_out


def main(argv: list[str]) -> None:
    FLAGS = flags.FLAGS
    folder = command_line.one_argument(argv)
    check_out(Path(FLAGS.out))
    figures.run(folder, FLAGS.figures, FLAGS.seed, FLAGS.out)


if __name__ == "__main__":
    flags.DEFINE_list("figures", list(figures.FIGURES), "Which figures.")
    flags.DEFINE_integer("seed", None, "Seed of the run whose agent it is; by default the first.", lower_bound=0)
    flags.DEFINE_string("out", "", "Folder of the figures; the run's folder analysis/ if not given.")
    command_line.start(main)
