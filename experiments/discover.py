"""Discover a rule by a population of agents in many environments, over many lifetimes.

    frodo discover --steps=2000
    frodo discover --envs=toy/catch,toy/grid_world/0-7,envpool/CartPole-v1 --rule=frodo
    frodo discover --preset=disco57 --plan --num_devices=64

--steps are meta-steps: each is M updates of every agent and one step of η. Writes one run folder,
results/discover/<rule>/. metrics.csv has one row per log point with `return/<env>`, the mean return of the episodes
that ended, and `end_return/<env>`, that of the last meta-step of lifetimes that ended; summary.json their means over
the last fifth of the run, and lifetimes and resets in all. rule.npz is η with its configuration, rules/<meta-step>.npz
what it was on the way, where generations count on. discovery.png is the return at the end of lifetimes, or of all
episodes where no lifetime ends.
"""

import jax
from absl import flags

from experiments.runs import command_line, discovery, planning, settings
from experiments.runs.discovery import DiscoverConfig
from experiments.runs.processes import define_process_flags, join
from frodo import logs
from frodo.regimes.plan import plan_population
from frodo.runs.errors import UsageError, caused_by
from frodo.settings import population_presets
from frodo.settings.registry import RULES


def preset() -> DiscoverConfig:
    FLAGS = flags.FLAGS
    if FLAGS.init_meta_params:
        command_line.not_both("rule", "init_meta_params")
    envs = population_presets.ENVS.get(FLAGS.preset, ())
    if FLAGS["envs"].present or not envs:
        envs = settings.parse_envs(FLAGS.envs)
    with caused_by("--init_meta_params" if FLAGS.init_meta_params else "--rule"):
        return discovery.configure(FLAGS.rule, envs, FLAGS.preset, FLAGS.init_meta_params)


def main(argv: list[str]) -> None:
    FLAGS = flags.FLAGS
    join()
    config, options = command_line.parse_options(argv, preset())
    if FLAGS.num_devices and not FLAGS.plan:
        raise UsageError(f"--num_devices={FLAGS.num_devices}: it is of --plan; a run has --config.num_devices")
    if FLAGS.plan:
        planning.show(plan_population, config, config.envs, num_steps=options.steps)
        return
    with caused_by(f"--preset={FLAGS.preset}"):
        settings.parse_envs(",".join(config.envs))  # a plan knows environments that cannot be made
    summary = discovery.run(config, options)
    if not jax.process_index():
        print(logs.table([{"": name, "value": value} for name, value in summary.items()]))


if __name__ == "__main__":
    text = "Environments, one agent each, such as toy/grid_world/0-7; a paper's preset has its own."
    flags.DEFINE_string("envs", "toy/catch,toy/grid_world/0-2", text)
    flags.DEFINE_string("rule", "disco", f"Rule at random η: {', '.join(x for x in RULES if RULES[x].is_learned)}.")
    flags.DEFINE_string("init_meta_params", "", f"Begin with this rule: {settings.STARTS}.")
    flags.DEFINE_enum("preset", "small", list(population_presets.PRESETS), "Settings that --config overrides.")
    define_process_flags()
    planning.define_plan_flags()
    text = "Devices of the plan; those of a run are --config.num_devices."
    flags.DEFINE_integer("num_devices", 0, text, lower_bound=0)
    without = ("envs", "init_meta_params", "distillation")
    command_line.define_flags(DiscoverConfig(), seeds="0", steps="2000", without=without, preset=preset)
    flags.FLAGS["steps"].help, flags.FLAGS["seeds"].help = "Meta-steps, such as 2000 or 2k.", "One seed."
    command_line.start(main)
