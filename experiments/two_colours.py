"""Two colours: self-tuned entropy compared with tuned constants and schedules. Section 5.1 of Flennerhag et al. 2022.

    frodo two_colours --seeds=0-9 --steps=6.4e6
    frodo two_colours --rule=frodo      FRODO's target in the place of V-trace's
    frodo two_colours --rule=a2c        A2C with weights of the entropy, and schedules of it, for tuning

Writes one run folder for each method and, above them, two_colours.png (cumulative reward), cycle.png (reward by the
steps since the last change, in the second half of the run), of self-tuned methods entropy.png and entropy_cycle.png
(the weight of the entropy), and summary.json: for each method `reward`, the mean reward of a step over the last fifth
of the run, and `reward_over_run`, as mean, std, min and max over seeds and for each seed, and steps_per_cpu_second.
`reward_over_run` times the steps is the cumulative reward.
"""

from absl import flags

from experiments.analyses import two_colours
from experiments.results import plots
from experiments.runs import command_line, sweep
from frodo.settings import presets

METRICS = ("reward",)


def main(argv: list[str]) -> None:
    rule = flags.FLAGS.rule
    config, options = command_line.parse_options(argv, presets.two_colours())
    configs = two_colours.make_configs(config, rule)
    folder, summary = sweep.run_all(
        configs,
        options,
        experiment=f"two_colours_{rule}",
        metrics=METRICS,
        row_steps=two_colours.PERIOD / two_colours.ROWS,
    )
    if plots.can_draw():
        two_colours.draw(folder, configs)
    sweep.print_table(summary, (*METRICS, "reward_over_run"))


if __name__ == "__main__":
    flags.DEFINE_enum("rule", "self_tuned", ["self_tuned", "frodo", "a2c"], "What is compared.")
    without = ("env", "rule.kind", "distillation")
    command_line.define_flags(presets.two_colours(), seeds="0-9", steps="6.4e6", without=without)
    command_line.start(main)
