"""`--plan`: what a run would take on accelerators, in place of the run."""

from absl import flags

from experiments.runs.errors import UsageError, caused_by
from frodo.config import OnlineConfig, PopulationConfig
from frodo.plan import describe, plan_online, plan_population


def define_plan_flags() -> None:
    """Define --plan and --num_devices."""
    flags.DEFINE_boolean("plan", False, "Run nothing: show what the run would take on accelerators, and how long.")
    flags.DEFINE_integer("num_devices", 1, "Devices of the plan.", lower_bound=1)


def is_asked() -> bool:
    """Say whether a plan is asked for, and not a run.

    Raises:
      UsageError: if devices are given for a plan that is not asked for.
    """
    given = flags.FLAGS
    if given["num_devices"].present and not given.plan:
        raise UsageError(f"--num_devices={given.num_devices}: give it with --plan, which says what a run would take")
    return given.plan


def show_online(config: OnlineConfig, num_steps: int) -> None:
    """Print the plan of a lifetime of so many environment steps."""
    with caused_by(f"--num_devices={flags.FLAGS.num_devices}"):
        print(describe(plan_online(config, flags.FLAGS.num_devices, num_steps)))


def show_population(config: PopulationConfig, envs: tuple[str, ...], num_steps: int) -> None:
    """Print the plan of so many meta-steps of a population."""
    with caused_by(f"--num_devices={flags.FLAGS.num_devices}"):
        print(describe(plan_population(config, envs, flags.FLAGS.num_devices, num_steps)))
