"""`--plan`: what a run would take on accelerators, in place of the run."""

from collections.abc import Callable

from absl import flags

from agents.validation import check_choice
from frodo.regimes.plan import ACCELERATORS, Plan, describe, plan_online, plan_population
from frodo.runs.errors import caused_by
from frodo.settings.config import OnlineConfig, PopulationConfig


def define_plan_flags() -> None:
    """Define --plan and --accelerators; a program that has them says itself what its --num_devices are."""
    flags.DEFINE_boolean("plan", False, "Run nothing: show what the run would take on accelerators, and how long.")
    known = ", ".join(ACCELERATORS)
    flags.DEFINE_list("accelerators", list(ACCELERATORS), f"Those of a plan, some of {known}.")


def show_online(config: OnlineConfig, num_steps: int) -> None:
    """Print the plan of a lifetime of so many environment steps."""
    _show(lambda num_devices: plan_online(config, num_devices, num_steps))


def show_population(config: PopulationConfig, envs: tuple[str, ...], num_steps: int) -> None:
    """Print the plan of so many meta-steps of a population."""
    _show(lambda num_devices: plan_population(config, envs, num_devices, num_steps))


def _show(plan: Callable[[int], Plan]) -> None:
    given = flags.FLAGS
    for name in given.accelerators or [""]:
        check_choice(f"--accelerators={','.join(given.accelerators)}: an accelerator", name, ACCELERATORS)
    with caused_by(f"--num_devices={given.num_devices}"):
        print(describe(plan(given.num_devices or 1), given.accelerators))
