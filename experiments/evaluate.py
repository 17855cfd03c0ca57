"""Train agents with a rule that stays as it is: the published one, Disco103, or one that `discover` found.

    python -m experiments.evaluate --rule=disco103 --env=toy/catch/8x8 --seeds=0-4 --steps=58e3
    python -m experiments.evaluate --rule=results/discover/disco/rule.npz --env=toy/grid_world/50

Writes one run folder, results/evaluate/<env>_<rule>/, as `online` does: metrics.csv, summary.json, return.png. Where
the published weights come from: --weights, else DISCO103_WEIGHTS, else the user's cache, else a download.
"""

import os
from pathlib import Path

from absl import flags

from experiments import weights
from experiments.runs import command_line, settings
from experiments.runs.learning_curves import print_summary, train_and_draw
from frodo.online import OnlineConfig


def main(argv: list[str]) -> None:
    FLAGS = flags.FLAGS
    if FLAGS.weights:
        os.environ["DISCO103_WEIGHTS"] = str(weights.find(FLAGS.weights))
    config, options = command_line.parse_options(argv, settings.configure_frozen(FLAGS.rule, FLAGS.env))
    name = f"{FLAGS.env.replace('/', '_')}_{Path(FLAGS.rule).stem}"
    print_summary(train_and_draw(config, options, experiment="evaluate", name=name, label=Path(FLAGS.rule).stem))


if __name__ == "__main__":
    flags.DEFINE_string("env", "toy/catch/8x8", "Environment, as for experiments.online.")
    flags.DEFINE_string(
        "rule", "disco103", "disco103, or the file of a discovered rule; disco or frodo for a random one."
    )
    flags.DEFINE_string("weights", "", "The published weights, disco_103.npz.")
    without = ("env", "rule.name", "init_meta_params", "is_frozen")
    command_line.define_flags(OnlineConfig(), seeds="0-4", steps="58e3", without=without)
    command_line.start(main)
