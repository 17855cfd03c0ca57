"""A discount that is tuned online compared with constant ones, the same agent with each. After Xu et al. 2018.

    frodo discount --env=gymnax/Breakout-MinAtar --seeds=0-9 --steps=2e6
    frodo discount --discounts=0.8,0.9,0.95,0.99,0.995,0.987 --resume    one constant more, as where γ ended

Self-tuned agents begin with γ = .8, and η is γ alone. `tuned` has the agent's own critic in the outer objective, and
its loss by the outer discount; `tuned_no_value_loss` the critic without this loss; `tuned_outer_critic` a second head
that learns by the outer discount, and no such loss either (Bonnet et al. 2022). The others are IMPALA with a constant
γ, `constant_<γ>`. Writes one run folder for each and, above them, returns.png, discount.png and summary.json:
for each method `return` and `return_over_run`, as mean, std, min and max over seeds and for each seed, and
steps_per_cpu_second. The last lines say where γ ended.
"""

import dataclasses
from typing import Any

import numpy as np
from absl import flags

from experiments.results import reading
from experiments.runs import command_line, sweep
from frodo.runs.errors import UsageError
from frodo.settings import presets
from frodo.settings.config import OnlineConfig

TUNED: dict[str, dict[str, Any]] = {
    "tuned": {},
    "tuned_no_value_loss": {"value_cost": 0.0},
    "tuned_outer_critic": {"critic": "head"},
}
METRICS = ("return",)


def constants(text: list[str]) -> dict[str, float]:
    """Return the discounts of --discounts by the names of their runs."""
    found = {}
    for one in text:
        try:
            found[f"constant_{one}"] = float(one)
        except ValueError:
            raise UsageError(f"--discounts={','.join(text)}: {one!r} is no number") from None
    return found


def make_configs(config: OnlineConfig, discounts: dict[str, float]) -> dict[str, OnlineConfig]:
    """Return what is run, by the name of its folder: constants learn from as many steps, all of them for updates."""
    configs = {}
    for name, outer in TUNED.items():
        configs[name] = config.replace(outer=dataclasses.replace(config.outer, **outer))
    for name, discount in discounts.items():
        plain = presets.with_rule(config, "impala")
        configs[name] = plain.replace(rule=plain.rule.replace(discount=discount))
    return configs


def preset() -> OnlineConfig:
    return presets.tuned_discount(flags.FLAGS.env)


def main(argv: list[str]) -> None:
    config, options = command_line.parse_options(argv, preset())
    configs = make_configs(config, constants(flags.FLAGS.discounts))
    folder, summary = sweep.run_all(configs, options, experiment="discount", metrics=METRICS)
    labels = {name: name.replace("_", " ") for name in configs}
    sweep.draw(folder, labels, "return", path=folder / "returns.png", title=config.env, ylabel="return")
    of_tuned = {name: labels[name] for name in TUNED}
    sweep.draw(folder, of_tuned, "eta_discount", path=folder / "discount.png", title=config.env, ylabel="γ of the rule")
    sweep.print_table(summary, (*METRICS, "return_over_run"))
    for name in TUNED:
        ends = reading.curve(reading.read(folder / name), "eta_discount").y[:, -1]
        print(f"{labels[name]}: γ ended at {np.mean(ends):.4f}, of each seed {', '.join(f'{x:.4f}' for x in ends)}")


if __name__ == "__main__":
    flags.DEFINE_string("env", "gymnax/Breakout-MinAtar", "Environment: gymnax/<Id>, toy/<name>, or another pure one.")
    flags.DEFINE_list("discounts", ["0.8", "0.9", "0.95", "0.99", "0.995"], "Constant discounts.")
    without = ("env", "rule.kind", "distillation")
    command_line.define_flags(OnlineConfig(), seeds="0-9", steps="2e6", without=without, preset=preset)
    command_line.start(main)
