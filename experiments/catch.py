"""Catch: FRODO compared with A2C on three-step returns, without and with bootstrapping. Figure 2a of Xu et al. 2020.

    frodo catch --seeds=0-9 --steps=2e6
    frodo catch --rule=q               the value-based variant and Q-learning
    frodo catch --rule=learned_loss    learned loss and learned target, three meta learning rates
    frodo catch --rule=consistency     FRODO with three weights c of the consistency loss
    frodo catch --rule=outer           FRODO with other critics and objectives of the outer loss
    frodo catch --animate --seeds=1 --steps=1e6    FRODO's objective as it forms, an animated picture

Writes one run folder for each method and, above them, catch.png and summary.json: for each method `sampled_return` and
`greedy_return` (exact expected returns by dynamic programming, means over the last fifth of the run), and
`sampled_return_over_run`, as mean, std, min and max over seeds and for each seed, and steps_per_cpu_second; and
`look_ahead_bound`, the best return of an agent that sees the rewards of one trajectory, also by dynamic programming.
With --animate it trains FRODO alone, by the first seed, in one run folder whose metrics.csv also has reward_<k> and
value_<k>: how much the target of a step depends on the reward and the value k steps later. objective.gif shows them.
"""

import dataclasses
from typing import Any

from absl import flags

from experiments.analyses import animation
from experiments.runs import command_line, sweep
from frodo.settings import presets
from frodo.settings.config import OnlineConfig
from toy_envs.catch import Catch

METRICS = ("sampled_return", "greedy_return")
META_LEARNING_RATES = (3e-5, 1e-4, 3e-4)
CONSISTENCY_COSTS = (0.0, 0.1, 1.0)
LABELS = {
    "frodo": "FRODO",
    "a2c_no_bootstrap": "A2C without bootstrapping",
    "a2c": "A2C with bootstrapping",
    "frodo_q": "FRODO, value-based",
    "q_learning": "Q-learning",
    "frodo_outer_head": "FRODO, outer critic a second head",
    "frodo_outer_network": "FRODO, outer critic a network",
    "frodo_bootstrapped": "FRODO, bootstrapped",
    "frodo_bootstrapped_head": "FRODO, bootstrapped, outer critic a second head",
}
OUTER: dict[str, dict[str, Any]] = {  # L = 3 of M = 5: the gradient goes through three updates
    "frodo": {},
    "frodo_outer_head": {"critic": "head"},
    "frodo_outer_network": {"critic": "network"},
    "frodo_bootstrapped": {"is_bootstrapped": True, "target_updates": 3},
    "frodo_bootstrapped_head": {"critic": "head", "is_bootstrapped": True, "target_updates": 3},
}


def make_configs(config: OnlineConfig, rule: str) -> dict[str, OnlineConfig]:
    """Return what is run, by the name of its folder."""
    if rule == "frodo":
        return {name: presets.with_rule(config, name) for name in ("frodo", "a2c_no_bootstrap", "a2c")}
    if rule == "outer":
        return {name: config.replace(outer=dataclasses.replace(config.outer, **own)) for name, own in OUTER.items()}
    if rule == "q":
        return {"frodo_q": config, "q_learning": presets.with_rule(config, "q_learning")}
    if rule == "consistency":
        costs = {f"consistency_{cost:g}": cost for cost in CONSISTENCY_COSTS}
        return {x: config.replace(rule=config.rule.replace(consistency_cost=cost)) for x, cost in costs.items()}
    at_rates = {x: dataclasses.replace(config.meta_optimizer, learning_rate=x) for x in META_LEARNING_RATES}
    return {
        f"{name}_{rate:g}": presets.with_rule(config.replace(meta_optimizer=own), name)
        for name in ("frodo", "learned_loss")
        for rate, own in at_rates.items()
    }


def label(name: str) -> str:
    """Return what the figure calls a method."""
    method, _, number = name.rpartition("_")
    if method == "consistency":
        return f"FRODO, c = {number}"
    return LABELS.get(name) or f"learned {'loss' if 'loss' in method else 'target'}, rate {number}"


def preset() -> OnlineConfig:
    return presets.catch(is_value_based=flags.FLAGS.rule == "q")


def main(argv: list[str]) -> None:
    rule = flags.FLAGS.rule
    config, options = command_line.parse_options(argv, preset())
    if flags.FLAGS.animate:
        return animation.animate(config, options, rule)
    configs, bound = make_configs(config, rule), Catch().look_ahead_bound(config.unroll)
    known = {"look_ahead_bound": bound}
    folder, summary = sweep.run_all(configs, options, experiment=f"catch_{rule}", metrics=METRICS, known=known)
    sweep.draw(
        folder,
        {name: label(name) for name in configs},
        "sampled_return",
        path=folder / "catch.png",
        title="Catch, 11 wide and 6 high",
        ylabel="expected return of the policy as it acts",
        hlines={f"best with {config.unroll}-step look-ahead": bound},
    )
    sweep.print_table(summary, METRICS if rule != "consistency" else ("sampled_return_over_run", "sampled_return"))


if __name__ == "__main__":
    kinds = ["frodo", "q", "learned_loss", "consistency", "outer"]
    flags.DEFINE_enum("rule", "frodo", kinds, "What is compared with what.")
    flags.DEFINE_boolean("animate", False, "Draw FRODO's objective as it forms, of the first seed, and nothing else.")
    without = ("env", "rule.kind", "distillation")
    command_line.define_flags(presets.catch(), seeds="0-9", steps="2e6", without=without, preset=preset)
    command_line.start(main)
