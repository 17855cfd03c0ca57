"""Online discovery on any environment: one agent, one lifetime, its own objective.

    frodo online --env=toy/catch --seeds=0 --steps=1e6
    frodo online --env=atari/Pong --rule=impala
    frodo online --env=atari/Pong --plan --num_devices=6 --steps=4e9

With --plan it runs nothing, and says what that would take on accelerators. Else it
writes one run folder, results/online/<env>_<rule>/: besides what all runs have, <metric>.png with the learning curve,
on environments where targets are compared with V-trace's, target_difference.png (Figure 3d of Xu et al. 2020), and of
agents with Q start_q.png and, of programs with maxima, cases.png (Figures 5 and 6 of Co-Reyes et al. 2021).
summary.json as `training.train` says: `return` is the mean true episode return over the last fifth of the run for each
seed, `human_normalised` its score on Atari, `target_difference` the mean squared difference between the learned and the
V-trace target.
"""

import dataclasses

import jax
from absl import flags

from agents.environments.names import FORMS
from experiments.runs import command_line, learning_curves, planning, settings, training
from experiments.runs.processes import define_process_flags, join, num_devices
from frodo.regimes.plan import plan_online
from frodo.runs.errors import caused_by
from frodo.runs.folders import folder_of, of_process
from frodo.settings.config import OnlineConfig
from frodo.settings.registry import RULES


def preset() -> OnlineConfig:
    FLAGS = flags.FLAGS
    if FLAGS.init_meta_params:
        command_line.not_both("rule", "init_meta_params")
    with caused_by("--init_meta_params" if FLAGS.init_meta_params else "--rule"):
        return settings.configure(FLAGS.env, FLAGS.rule, FLAGS.init_meta_params)


def main(argv: list[str]) -> None:
    FLAGS = flags.FLAGS
    join()
    config, options = command_line.parse_options(argv, preset())
    if FLAGS.plan:
        planning.show(plan_online, config, num_steps=options.steps)
        return
    name = f"{config.env.replace('/', '_')}_{config.rule.name}"
    options = of_process(dataclasses.replace(options, num_devices=num_devices()), "online", name)
    summary = training.train(config, options, experiment="online", name=name)
    if not jax.process_index():
        learning_curves.show(summary, folder_of(options, "online", name), config.rule.name)


if __name__ == "__main__":
    flags.DEFINE_string("env", "toy/catch", f"Environment: {', '.join(FORMS.values())}.")
    flags.DEFINE_string("rule", "frodo", "Rule: " + ", ".join(RULES) + ".")
    flags.DEFINE_string("init_meta_params", "", f"Begin with this rule: {settings.STARTS}.")
    planning.define_plan_flags()
    text = "Split the batch over so many, 0 for no split; or those of a plan."
    flags.DEFINE_integer("num_devices", 0, text, lower_bound=0)
    define_process_flags()
    without = ("env", "init_meta_params")
    command_line.define_flags(OnlineConfig(), seeds="0", steps="1e6", without=without, preset=preset)
    command_line.start(main)
