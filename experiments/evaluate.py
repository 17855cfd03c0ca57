"""Train agents with a rule that stays as it is: the published one, Disco103, or one that was discovered here.

    frodo evaluate --rule=disco103 --env=toy/catch/8x8 --seeds=0-4 --steps=58e3
    frodo evaluate --rule=catch_disco --env=toy/catch/8x8
    frodo evaluate --rule=results/discover/disco/rule.npz --env=toy/grid_world/50

Writes one run folder, results/evaluate/<env>_<rule>/, as `online` does: metrics.csv, summary.json, return.png. Where
the published weights come from: --weights, else DISCO103_WEIGHTS, else the user's cache, else a download.
"""

import os
from pathlib import Path

from absl import flags

from experiments.runs import command_line, learning_curves, settings, training
from frodo.rules import disco103_weights
from frodo.runs.errors import caused_by
from frodo.runs.folders import folder_of
from frodo.settings.config import OnlineConfig


def main(argv: list[str]) -> None:
    FLAGS = flags.FLAGS
    if FLAGS.weights:
        with caused_by("--weights"):
            os.environ["DISCO103_WEIGHTS"] = str(disco103_weights.find(FLAGS.weights))
    with caused_by("--rule"):
        preset = settings.configure_frozen(FLAGS.env, FLAGS.rule)
    config, options = command_line.parse_options(argv, preset)
    rule = Path(FLAGS.rule).stem
    name = f"{FLAGS.env.replace('/', '_')}_{rule}"
    summary = training.train(config, options, experiment="evaluate", name=name)
    learning_curves.show(summary, folder_of(options, "evaluate", name), rule)


if __name__ == "__main__":
    flags.DEFINE_string("env", "toy/catch/8x8", "Environment, as for `frodo online`.")
    flags.DEFINE_string("rule", "disco103", f"Rule: {settings.STARTS}; disco or frodo for a random one.")
    flags.DEFINE_string("weights", "", "The published weights, disco_103.npz.")
    without = ("env", "init_meta_params", "is_frozen")
    preset = lambda: settings.known_frozen(flags.FLAGS.env, flags.FLAGS.rule)
    command_line.define_flags(OnlineConfig(), seeds="0-4", steps="58e3", without=without, preset=preset)
    command_line.start(main)
