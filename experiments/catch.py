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

from absl import flags

from experiments.analyses import animation
from experiments.analyses.catch import label, make_configs
from experiments.runs import command_line, sweep
from frodo.settings import presets
from frodo.settings.config import OnlineConfig
from toy_envs.catch import Catch

METRICS = ("sampled_return", "greedy_return")


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
