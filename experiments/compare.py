"""Compare what an agent gains from hand-made objectives, from one that it discovers online, and from discovered ones.

    python -m experiments.compare --scalar_rule=catch_and_grids --disco_rule=catch_disco
    python -m experiments.compare --discover
    python -m experiments.compare --show_settings

RULE is a discovered rule by its name, or the file of one that `discover` found, in other environments than those of the
comparison; --discover makes both rules first.

Every method (the rows of METHODS, and other rules by their names) has the same agent, and lives for as many steps as
the environment's family gives.
First each tries the same grid of settings with the tuning seeds; then it lives with all seeds at the setting that was
best, a discovered rule at that which was best in *other* environments, and at the one setting that is best over all
of them (docs/protocol.md). Of each phase, a method in an environment is a process of its own, whose messages are in
log.txt of its folder <out>/tuning/<env>/<method>/ or <out>/cells/<env>/<method>/; every run in there is a run folder as
`online` writes it. --resume goes on with what is not finished; with more --envs or --methods than before, the
comparison grows. Writes report/: index.html, which needs nothing else, the same figures as PNG, and its numbers as CSV;
with --adapted_agents, of rule rooms also what agents get there that adapt in context.
"""

import dataclasses
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from absl import flags

from agents.validation import did_you_mean
from experiments.comparison import cells, in_context, report
from experiments.comparison.comparison import Comparison, check, check_names, refuse_seen
from experiments.comparison.methods import DISCOVERIES, all_methods, rule_flags
from experiments.comparison.protocol import FAMILIES, Grid, parse_batches, parse_numbers
from experiments.results import statistics
from experiments.runs import command_line, settings
from experiments.runs.jobs import Job, failure, open_folder, own_arguments, run_all
from frodo.logs import quantity
from frodo.rules.files import SHIPPED, shipped_rules
from frodo.runs.errors import RunError, UsageError
from frodo.runs.folders import check_out, has_checkpoint
from frodo.settings import presets
from frodo.settings.registry import starts

ENVS = "toy/catch,toy/catch/8x8,toy/grid_world/46,toy/grid_world/48,gymnax/CartPole-v1,gymnax/Acrobot-v1"
# Without what takes too long for most: Disco103, and DQN's update for each step.
BY_DEFAULT = (
    "impala,ppo,a2c,frodo,fitted_frozen,fitted_online,scalar_frozen,scalar_adapted,disco,disco_frozen,disco_adapted"
)


def path_of(rule: str) -> Path:
    """Return the file of a rule by its name or path."""
    return SHIPPED / f"{rule}.npz" if rule in shipped_rules() else Path(rule)


class Options(NamedTuple):
    """How a comparison is run."""

    out: Path
    num_processes: int
    is_discovering: bool
    allow_seen: bool
    resume: bool
    overwrite: bool
    adapted_agents: tuple[str, ...] = ()


def jobs_of(phase: str, those: Sequence[tuple[str, str]], out: Path, arguments: Sequence[str]) -> list[Job]:
    """Return a job for each environment and method of a phase: this program with --only."""
    return [
        Job(
            f"{phase}: {method} on {env}",
            cells.folder_of(out, phase, env, method),
            "experiments.compare",
            (*arguments, f"--out={out}", f"--only={phase}:{env}:{method}"),
        )
        for env, method in those
    ]


def discovery_jobs(out: Path) -> list[Job]:
    """Return a job for each rule that --discover makes; one that was stopped goes on."""
    jobs = []
    for discovery in DISCOVERIES.values():
        folder = out / "rules" / discovery.rule
        arguments = (
            f"--rule={discovery.rule}",
            f"--envs={discovery.envs}",
            f"--steps={discovery.meta_steps}",
            f"--out={folder}",
            "--resume" if has_checkpoint(folder) else "--overwrite",
        )
        jobs.append(Job(f"discovery of {discovery.rule}", folder, "experiments.discover", arguments))
    return jobs


def run(comparison: Comparison, options: Options, arguments: Sequence[str]) -> str:
    """Run what is not finished, and write the report; returns a table of the aggregate scores.

    Args:
      comparison, options: what, and how.
      arguments: the command line that says the same to the process of a cell.
    """
    statistics.require()
    check_names(comparison)
    in_context.check(options.adapted_agents, comparison.envs)
    if options.is_discovering:
        for found in DISCOVERIES.values():
            refuse_seen(comparison, found.rule, settings.parse_envs(found.envs), options.allow_seen)
        others = dict(comparison.files) | dict.fromkeys(DISCOVERIES, "")
        check(dataclasses.replace(comparison, files=others), options.allow_seen, is_discovering=True)
        given = [rule for rule in others.values() if rule]
    else:
        seen = check(comparison, options.allow_seen)
        given = [rule for rule in comparison.files.values() if rule and rule not in starts(is_fitted=False)]
    digests = {rule: hashlib.sha256(path_of(rule).read_bytes()).hexdigest() for rule in given}
    record = dataclasses.asdict(comparison) | {"sha256": digests}
    runs = ("tuning/*/*", "cells/*/*", "rules/*", "report/*")
    resume, overwrite = options.resume, options.overwrite
    open_folder(
        options.out,
        "comparison",
        record,
        runs,
        resume=resume,
        overwrite=overwrite,
        growing=("envs", "methods", "budgets"),
    )
    if options.is_discovering:
        discoveries = discovery_jobs(options.out)
        run_all(discoveries, options.num_processes, options.out)
        for job in discoveries:
            if why := failure(job.folder):
                raise RunError(f"{job.name} failed: {why}")
        seen = check(comparison, options.allow_seen)
    jobs = jobs_of(cells.TUNING, comparison.tuned_cells(), options.out, arguments)
    run_all(jobs, options.num_processes, options.out)
    shown = cells.choices(comparison, options.out)
    jobs += (of_cells := jobs_of(cells.CELLS, list(shown), options.out, arguments))
    for job, (cell, choice) in zip(of_cells, shown.items(), strict=True):
        if not cells.is_shown(options.out, *cell, choice=choice):
            (job.folder / "summary.json").unlink(missing_ok=True)  # of another choice
    run_all(of_cells, options.num_processes, options.out)
    text = report.write(comparison, options.out, seen, options.adapted_agents)
    if failed := [job.name for job in jobs if not job.is_finished]:
        print(text)
        raise RunError(
            f"{len(failed)} of {len(jobs)} jobs failed, {failed[0]} first; why is in {text.splitlines()[-1]}"
        )
    return text


def show(comparison: Comparison) -> str:
    """Return the common agent of every environment, and what each method has otherwise, as a text."""
    lines = [f"grid: {dataclasses.asdict(comparison.grid)}"]
    for env in comparison.envs:
        common = cells.flat(dataclasses.asdict(presets.common_agent(env)))
        lines += [f"\n{env}, {quantity(comparison.budget(env))} steps", *(f"  {x} = {y}" for x, y in common.items())]
        for method in (method for own, method in comparison.cells() if own == env):
            own = cells.flat(dataclasses.asdict(comparison.configure(env, method)))
            others = [f"{x}={y}" for x, y in own.items() if common.get(x) != y]
            lines.append(f"  {method}: {', '.join(others)}")
    return "\n".join(lines)


def parse_budgets(text: str) -> dict[str, int]:
    """Return the environment steps of each family: the defaults, but for those of "minatar=5e6,catch=1e5"."""
    budgets = {name: one.budget for name, one in FAMILIES.items()}
    for part in text.split(",") if text else []:
        name, _, steps = part.partition("=")
        if name not in FAMILIES:
            hint = did_you_mean(name, FAMILIES) or f": give some of {', '.join(FAMILIES)}"
            raise UsageError(f"--budgets={text}: {name!r} is no family{hint}")
        budgets[name] = command_line.parse_steps(steps, "budgets")
    return budgets


def main(argv: list[str]) -> None:
    FLAGS = flags.FLAGS
    command_line.no_arguments(argv)
    methods, those = tuple(FLAGS.methods.split(",")), all_methods()
    for name in methods:
        if name not in those:
            hint = did_you_mean(name, those) or f": give some of {', '.join(those)}"
            raise UsageError(f"--methods={FLAGS.methods}: {name!r} is no method{hint}")
    out = Path(FLAGS.out)
    check_out(out)
    rule_files = {name: str(FLAGS[name].value) for name in rule_flags()}
    if FLAGS.discover:
        if given := [name for name in DISCOVERIES if rule_files[name]]:
            raise UsageError(f"--discover makes the file of --{given[0]}: give one of the two")
        rule_files |= {name: str(out / "rules" / found.rule / "rule.npz") for name, found in DISCOVERIES.items()}
    grid = Grid(
        parse_numbers("learning_rates", FLAGS.learning_rates),
        parse_numbers("entropy_costs", FLAGS.entropy_costs),
        parse_batches(FLAGS.batches),
    )
    comparison = Comparison(
        settings.parse_envs(FLAGS.envs),
        parse_budgets(FLAGS.budgets),
        command_line.parse_seeds(FLAGS.seeds),
        command_line.parse_seeds(FLAGS.tuning_seeds, "tuning_seeds"),
        methods,
        rule_files,
        grid,
        FLAGS.discount,
        getattr(FLAGS, "lambda"),
        FLAGS.stale,
    )
    if FLAGS.only:
        of_phases = (cells.TUNING, comparison.tuned_cells()), (cells.CELLS, comparison.cells())
        known = {f"{phase}:{env}:{method}": (phase, env, method) for phase, own in of_phases for env, method in own}
        if FLAGS.only not in known:
            raise UsageError(f"--only={FLAGS.only} is no run of this{did_you_mean(FLAGS.only, known)}")
        cells.run(comparison, out, *known[FLAGS.only])
        return
    if FLAGS.show_settings:
        print(show(comparison))
        return
    adapted = tuple(FLAGS.adapted_agents)
    options = Options(out, FLAGS.processes, FLAGS.discover, FLAGS.allow_seen, FLAGS.resume, FLAGS.overwrite, adapted)
    print(run(comparison, options, own_arguments()))


if __name__ == "__main__":
    flags.DEFINE_string("envs", ENVS, "Environments to evaluate in.")
    budgets = ",".join(f"{name}={one.budget:g}" for name, one in FAMILIES.items())
    flags.DEFINE_string("budgets", "", f"Environment steps of each agent by family, where not {budgets}.")
    flags.DEFINE_string("seeds", "0-4", "Seeds, such as 3 or 0,1,2 or 0-9.")
    flags.DEFINE_string("tuning_seeds", "100,101", "Seeds of the runs that settings are chosen by.")
    flags.DEFINE_list("learning_rates", [f"{x:g}" for x in Grid.learning_rates], "Learning rates to choose from.")
    flags.DEFINE_list("entropy_costs", [f"{x:g}" for x in Grid.entropy_costs], "Costs of entropy to choose from.")
    flags.DEFINE_string(
        "batches", ",".join("{}x{}".format(*x) for x in Grid.batches), "Environments x steps to choose from."
    )
    text = "γ of rules that were not discovered; the outer objective keeps its own."
    flags.DEFINE_float("discount", None, text, lower_bound=0, upper_bound=1)
    text = "λ of the same; the outer objective keeps its own."
    flags.DEFINE_float("lambda", None, text, lower_bound=0, upper_bound=1)
    text = "Trajectories that one θ acts before it is updated on them in turn, where none are replayed; M of FRODO."
    flags.DEFINE_integer("stale", None, text, lower_bound=1)
    flags.DEFINE_string("methods", BY_DEFAULT, f"What to compare, of {', '.join(all_methods())}.")
    for flag, own in rule_flags().items():
        flags.DEFINE_string(flag, "", f"Discovered rule of the form {own!r}: {settings.DISCOVERED}, or by `evolve`.")
    text = "Folders of experiments.adapt: its agents play the rule rooms among --envs, with θ as it is."
    flags.DEFINE_list("adapted_agents", [], text)
    flags.DEFINE_boolean("discover", False, "Discover the two rules first, in environments of their own.")
    flags.DEFINE_boolean("allow_seen", False, "Evaluate rules also where they were discovered; the report marks it.")
    flags.DEFINE_integer("processes", os.cpu_count() or 1, "Runs at a time.", lower_bound=1)
    flags.DEFINE_boolean("show_settings", False, "Print the common agent and what each method has, and run nothing.")
    flags.DEFINE_string("only", "", "Do the runs PHASE:ENV:METHOD alone, in this process, and write no report.")
    flags.DEFINE_string("out", "results/compare", "Results folder.")
    flags.DEFINE_boolean("resume", False, "Go on with what is not finished, or with more envs and methods.")
    flags.DEFINE_boolean("overwrite", False, "Replace the comparison in the results folder.")
    command_line.start(main)
