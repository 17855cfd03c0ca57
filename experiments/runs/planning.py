"""`--plan`: what a run would take on accelerators, in place of the run."""

from collections.abc import Callable
from typing import Any

from absl import flags

from agents.validation import check_choice
from frodo.regimes.plan import ACCELERATORS, Plan, describe
from frodo.runs.errors import caused_by


def define_plan_flags() -> None:
    """Define --plan and --accelerators; a program that has them says itself what its --num_devices are."""
    flags.DEFINE_boolean("plan", False, "Run nothing: show what the run would take on accelerators, and how long.")
    known = ", ".join(ACCELERATORS)
    flags.DEFINE_list("accelerators", list(ACCELERATORS), f"Those of a plan, some of {known}.")


def show(plan: Callable[..., Plan], *what: Any, num_steps: int) -> None:
    """Print a plan of `what` on so many devices: `plan_online`, or of meta-steps `plan_population`."""
    given = flags.FLAGS
    for name in given.accelerators or [""]:
        check_choice(f"--accelerators={','.join(given.accelerators)}: an accelerator", name, ACCELERATORS)
    with caused_by(f"--num_devices={given.num_devices}"):
        print(describe(plan(*what, given.num_devices or 1, num_steps), given.accelerators))
