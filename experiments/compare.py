"""Compare what an agent gains from objectives: hand-designed, discovered online by itself, and discovered before.

    frodo compare --scalar_rule=catch_and_grids --disco_rule=catch_disco

RULE is a discovered rule by its name, or the file of one that `discover` found, in other environments than those of the
comparison.

Every method (the rows of METHODS, and other rules by their names) has the same agent, and as many steps as the
environment's family gives.
First each tries the same grid of settings with the tuning seeds. Then all seeds run at the setting that was best, of a
discovered rule at that which was best in *other* environments, and at the one setting that is best over all of them
(docs/concepts/fair_comparison.md). Of each phase, a method in an environment is a process, whose messages are in
log.txt of its folder <out>/tuning/<env>/<method>/ or <out>/cells/<env>/<method>/; every run in there is a run folder as
`online` writes it. --resume goes on with what is not finished; with more --envs or --methods than before, the
comparison grows. Writes report/: index.html with its figures as PNG, and its numbers as CSV.
"""

from pathlib import Path

from absl import flags

from agents.validation import did_you_mean
from experiments.comparison import cells, running
from experiments.comparison.comparison import Comparison
from experiments.comparison.methods import BY_DEFAULT, all_methods, parse_methods, rule_flags
from experiments.comparison.protocol import FAMILIES, Grid, parse_budgets, parse_grid, parse_replay
from experiments.runs import command_line, settings
from experiments.runs.jobs import own_arguments
from frodo.runs.errors import UsageError
from frodo.runs.folders import check_out

ENVS = "toy/catch,toy/catch/8x8,toy/grid_world/46,toy/grid_world/48,gymnax/CartPole-v1,gymnax/Acrobot-v1"


def parse_comparison(given: flags.FlagValues) -> Comparison:
    return Comparison(
        settings.parse_envs(given.envs),
        parse_budgets(given.budgets),
        command_line.parse_seeds(given.seeds),
        command_line.parse_seeds(given.tuning_seeds, "tuning_seeds"),
        parse_methods(given.methods),
        {name: str(given[name].value) for name in rule_flags()},
        parse_grid(given.learning_rates, given.entropy_costs, given.batches),
        given.discount,
        getattr(given, "lambda"),
        parse_replay(given.replay),
        given.stale,
    )


def main(argv: list[str]) -> None:
    FLAGS = flags.FLAGS
    command_line.no_arguments(argv)
    comparison, out = parse_comparison(FLAGS), Path(FLAGS.out)
    check_out(out)
    if FLAGS.only:
        known = [":".join((phase, *cell)) for phase in (cells.TUNING, cells.CELLS) for cell in comparison.cells()]
        if FLAGS.only not in known:
            raise UsageError(f"--only={FLAGS.only} is no run of this{did_you_mean(FLAGS.only, known)}")
        cells.run(comparison, out, *FLAGS.only.split(":"))
    else:
        how = dict(resume=FLAGS.resume, overwrite=FLAGS.overwrite)
        with command_line.job_executor() as executor:
            print(running.run(comparison, out, own_arguments(), executor, allow_seen=FLAGS.allow_seen, **how))


if __name__ == "__main__":
    flags.DEFINE_string("envs", ENVS, "Environments to evaluate in.")
    budgets = ",".join(f"{name}={one.budget:g}" for name, one in FAMILIES.items())
    flags.DEFINE_string("budgets", "", f"Environment steps of each agent by family, where not {budgets}.")
    flags.DEFINE_string("seeds", "0-4", "Seeds, such as 3 or 0,1,2 or 0-9.")
    flags.DEFINE_string("tuning_seeds", "100,101", "Seeds of the runs that settings are chosen by.")
    flags.DEFINE_list("learning_rates", [f"{x:g}" for x in Grid.learning_rates], "Learning rates to choose from.")
    flags.DEFINE_list("entropy_costs", [f"{x:g}" for x in Grid.entropy_costs], "Costs of entropy to choose from.")
    batches = ",".join("{}x{}".format(*x) for x in Grid.batches)
    flags.DEFINE_string("batches", batches, "Environments x steps to choose from.")
    for flag, text in (("discount", "γ of rules that were not discovered"), ("lambda", "λ of the same")):
        flags.DEFINE_float(flag, None, f"{text}; the outer objective keeps its own.", lower_bound=0, upper_bound=1)
    text = "Trajectories kept x those of an update, as 1024x64, of every method; else each has its own replay, or none."
    text += " A method that learns η acts one more for every M updates, which no update learns from."
    flags.DEFINE_string("replay", "", text)
    text = "Trajectories that one θ acts before it is updated on them in turn, where none are replayed; M of FRODO."
    flags.DEFINE_integer("stale", None, text, lower_bound=1)
    flags.DEFINE_string("methods", BY_DEFAULT, f"What to compare, of {', '.join(all_methods())}.")
    for flag, own in rule_flags().items():
        flags.DEFINE_string(flag, "", f"Discovered rule of the form {own!r}: {settings.DISCOVERED}, or by `evolve`.")
    flags.DEFINE_boolean("allow_seen", False, "Evaluate rules also where they were discovered; the report marks it.")
    command_line.define_job_flags("Runs")
    flags.DEFINE_string("only", "", "Do the runs PHASE:ENV:METHOD alone, in this process, and write no report.")
    flags.DEFINE_string("out", "results/compare", "Results folder.")
    flags.DEFINE_boolean("resume", False, "Go on with what is not finished, or with more envs and methods.")
    flags.DEFINE_boolean("overwrite", False, "Replace the comparison in the results folder.")
    command_line.start(main)
