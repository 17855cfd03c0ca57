"""`--plan`: what a run would take on accelerators, in place of the run."""

from absl import flags

from experiments.runs.errors import caused_by
from frodo.config import OnlineConfig, PopulationConfig
from frodo.plan import describe, plan_online, plan_population


def define_plan_flag() -> None:
    """Define --plan; a program that has it says itself what its --num_devices are."""
    flags.DEFINE_boolean("plan", False, "Run nothing: show what the run would take on accelerators, and how long.")


def show_online(config: OnlineConfig, num_steps: int) -> None:
    """Print the plan of a lifetime of so many environment steps."""
    with caused_by(f"--num_devices={flags.FLAGS.num_devices}"):
        print(describe(plan_online(config, flags.FLAGS.num_devices or 1, num_steps)))


def show_population(config: PopulationConfig, envs: tuple[str, ...], num_steps: int) -> None:
    """Print the plan of so many meta-steps of a population."""
    with caused_by(f"--num_devices={flags.FLAGS.num_devices}"):
        print(describe(plan_population(config, envs, flags.FLAGS.num_devices or 1, num_steps)))
