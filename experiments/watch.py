"""A film of one episode of a trained agent: what it sees, and below it what it predicts, growing step by step.

    python -m experiments.watch results/online/toy_catch_frodo --out=catch.mp4

Reads the last checkpoint of a run folder, acts with it in a new environment, and writes RUN/episode.gif. Curves: the
value of the state, Σₐ π(a) q(a) of agents that predict action values; the entropy of the policy that acts; of
DiscoRL's agents how sure they are of y, and of z for the taken action: 1 − H / log N (`predictions.certainty`); in rule
rooms what is believed of each pair of objects, that it makes the goal, by who saw as much happen (`analyses.rooms`). Of
an agent with a transformer also how much each step reads of those before it, a row for each layer. On environments
written in JAX the last observation of an episode is not seen.
"""

from pathlib import Path

from absl import flags

from experiments.analyses import films
from experiments.runs import command_line
from frodo.logs import note
from frodo.runs.folders import check_out


def main(argv: list[str]) -> None:
    FLAGS = flags.FLAGS
    folder = command_line.one_argument(argv)
    out = Path(FLAGS.out) if FLAGS.out else folder / "episode.gif"
    check_out(out, is_file=True)
    films.run(folder, out, FLAGS.seed, command_line.parse_steps(FLAGS.steps), FLAGS.episode_seed)
    note(f"film: {out}")


if __name__ == "__main__":
    flags.DEFINE_integer("seed", None, "The agent's seed; the first that the checkpoint holds if not given.")
    flags.DEFINE_string("out", "", "The film, .gif or .mp4; RUN/episode.gif if not given.")
    flags.DEFINE_string("steps", "1000", "Steps of the episode at most, such as 500 or 2e3.")
    flags.DEFINE_integer("episode_seed", 0, "Random seed of the episode, and of environments on the host.", 0)
    command_line.start(main)
