"""What a learned target depends on: rewards, discounts and values k steps ahead, over a lifetime.

    python -m experiments.sensitivity --env=toy/catch --steps=1e6

An agent lives online, and eleven times from its start to its end the first target of each of its trajectories, G₀, is
differentiated with respect to the reward, the discount and the value of the next observation at step k, beside those of
TD(λ) and of V-trace on the same trajectories. Does it bootstrap (∂G/∂v), how far, and what does it do with rewards? At
the end of its life, the probabilities of the first action are changed: what becomes of the reward that
followed says how it corrects off-policy data. Writes results/sensitivity/<env>_<rule>/ with sensitivity.csv,
off_policy.csv and sensitivity.png, and of two seeds or more their mean.
"""

from absl import flags

from experiments.analyses import derivatives
from experiments.runs import command_line
from frodo.logs import note
from frodo.runs.errors import caused_by
from frodo.settings import presets
from frodo.settings.config import OnlineConfig


def preset() -> OnlineConfig:
    with caused_by("--rule"):
        return presets.for_rule(flags.FLAGS.env, flags.FLAGS.rule)


def main(argv: list[str]) -> None:
    note(f"figure: {derivatives.run(*command_line.parse_options(argv, preset()))}")


if __name__ == "__main__":
    flags.DEFINE_string("env", "toy/catch", "Environment written in JAX.")
    flags.DEFINE_string("rule", "frodo", "Rule with scalar targets.")
    without = ("env", "is_frozen", "distillation")
    command_line.define_flags(OnlineConfig(), seeds="0", steps="1e6", without=without, preset=preset)
    command_line.start(main)
