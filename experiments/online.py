"""Online discovery on any environment: one agent, one lifetime, its own objective.

    python -m experiments.online --env=toy/catch --seeds=0 --steps=1e6
    python -m experiments.online --env=atari/Pong --rule=frodo|impala|learned_loss|a2c|q_learning

Writes one run folder, results/online/<env>_<rule>/: besides what all runs have, <metric>.png with the learning curve,
and on environments where targets are compared with V-trace's, target_difference.png (Figure 3d of Xu et al. 2020).
summary.json as `training.train` says: `return` is the mean true episode return over the last fifth of the run for each
seed, `human_normalised` its score on Atari, `target_difference` the mean squared difference between the learned and the
V-trace target.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from absl import flags

from experiments import command_line, logs, plots, report, rules, training
from experiments.command_line import RunOptions
from experiments.folders import folder_of
from frodo import presets
from frodo.online import OnlineConfig
from frodo.rule import RULES
from toy_envs.catch import Catch

TITLES = {
    "return": "mean episode return",
    "sampled_return": "expected return of the policy as it acts",
    "error": "mean squared error of v",
    "target_difference": "mean squared difference from the V-trace target",
}


def run(config: OnlineConfig, options: RunOptions, *, experiment: str, name: str, label: str) -> dict[str, Any]:
    """Train, and draw the learning curves into the run folder; returns the summary and, under "figures", the paths."""
    summary = training.train(config, options, experiment=experiment, name=name)
    folder = folder_of(options, experiment, name)
    bound = {}
    if config.env == "toy/catch" and config.rule.name != "disco":
        bound[f"{config.unroll}-step bound"] = Catch().look_ahead_bound(config.unroll)
    figures = []
    for metric in TITLES:
        if metric in summary and not (metric == "return" and {"error", "sampled_return"} & set(summary)):
            figures.append(folder / f"{metric}.png")
            plots.curves(
                figures[-1],
                [report.curve(report.read(folder), metric)._replace(label=label)],
                title=f"{label} on {config.env}",
                xlabel="environment steps",
                ylabel=TITLES[metric],
                hlines=bound if "return" in metric else None,
                log=metric == report.DIFFERENCE,
            )
    return summary | {"figures": figures} | bound


def configure(env: str, rule: str, init_meta_params: str = "") -> OnlineConfig:
    """Return the settings of an agent with a rule by its name, or with one that goes on from a discovered one."""
    if init_meta_params:
        config, _ = rules.load(init_meta_params, presets.disco(env))
        return dataclasses.replace(config, init_meta_params=init_meta_params)
    return presets.with_rule(presets.disco(env) if rule == "disco" else presets.for_environment(env), rule)


def print_summary(summary: Mapping[str, Any]) -> None:
    """Print what a run came to, and where its curves are."""
    shown = ("return", "sampled_return", "greedy_return", "error", "human_normalised", "target_difference")
    rows = [{"": name, "value": float(np.mean(summary[name]))} for name in shown if name in summary]
    rows += [{"": name, "value": summary[name]} for name in summary if name.endswith("-step bound")]
    if summary["steps_per_cpu_second"] > 0:  # else the run had one row
        rows += [{"": "steps per CPU second", "value": summary["steps_per_cpu_second"]}]
    print(logs.table(rows))
    for path in summary["figures"]:
        print(f"learning curve: {path}")


def main(argv: list[str]) -> None:
    FLAGS = flags.FLAGS
    if FLAGS.init_meta_params:
        command_line.not_both("rule", "init_meta_params")
    preset = configure(FLAGS.env, FLAGS.rule, FLAGS.init_meta_params)
    config, options = command_line.parse_options(argv, preset)
    name = f"{config.env.replace('/', '_')}_{config.rule.name}"
    print_summary(run(config, options, experiment="online", name=name, label=config.rule.name))


if __name__ == "__main__":
    flags.DEFINE_string(
        "env", "toy/catch", "Environment: toy/<name>, atari/<Game>, envpool/<Id> or bsuite/<name>/<index>."
    )
    flags.DEFINE_string("rule", "frodo", "Rule: " + ", ".join(RULES) + ".")
    flags.DEFINE_string("init_meta_params", "", "Begin with this rule: disco103, or a file that `discover` wrote.")
    command_line.define_flags(OnlineConfig(), seeds="0", steps="1e6", without=("env", "rule.name", "init_meta_params"))
    command_line.start(main)
