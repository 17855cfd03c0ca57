"""Discounting Chain: a self-tuned discount, with and without an outer critic. Figure 2 of Bonnet et al. 2022.

    frodo discounting_chain --seeds=0-9 --steps=1.28e8

Writes one run folder for each method and, above them, discounting_chain.png, discount.png and summary.json: for each
method `sampled_return` (the exact expected return of the policy), `greedy_return` and `eta_discount` (γ), means over
the last fifth of the run, as mean, std, min and max over seeds and for each seed, and steps_per_cpu_second.
"""

import dataclasses

from experiments.runs import command_line, sweep
from frodo.settings import presets
from frodo.settings.config import OnlineConfig
from toy_envs.discounting_chain import BEST_RETURN

METRICS = ("sampled_return", "greedy_return", "eta_discount")
LABELS = {
    "mg_outer_critic": "meta-gradient, outer critic",
    "bmg_outer_critic": "bootstrapped, outer critic",
    "mg": "meta-gradient",
    "bmg": "bootstrapped",
    "constant": "constant γ = 1",
}


def make_configs(config: OnlineConfig) -> dict[str, OnlineConfig]:
    """Return what is run, by the name of its folder."""
    configs = {}
    for name in [name for name in LABELS if name != "constant"]:
        critic = config.outer.critic if name.endswith("critic") else "agent"
        outer = dataclasses.replace(config.outer, is_bootstrapped=name.startswith("bmg"), critic=critic)
        configs[name] = config.replace(outer=outer)
    rule = config.rule.replace(tuned=("policy_cost",), discount=1.0, cost_range=(0.0, 2.0))  # 1, and frozen
    return configs | {"constant": config.replace(rule=rule, is_frozen=True)}


def main(argv: list[str]) -> None:
    config, options = command_line.parse_options(argv, presets.discounting_chain())
    known = {"best_return": BEST_RETURN}
    configs = make_configs(config)
    folder, summary = sweep.run_all(configs, options, experiment="discounting_chain", metrics=METRICS, known=known)
    for metric, name, ylabel in (
        ("sampled_return", "discounting_chain.png", "expected return of the policy as it acts"),
        ("eta_discount", "discount.png", "γ of the rule"),
    ):
        path = folder / name
        labels = {name: label for name, label in LABELS.items() if name != "constant" or metric != "eta_discount"}
        sweep.draw(folder, labels, metric, path=path, title="Discounting Chain", ylabel=ylabel)
    sweep.print_table(summary, METRICS)


if __name__ == "__main__":
    without = ("env", "rule.kind", "distillation")
    command_line.define_flags(presets.discounting_chain(), seeds="0-9", steps="1.28e8", without=without)
    command_line.start(main)
