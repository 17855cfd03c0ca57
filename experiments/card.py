"""Make the card of a rule: how agents learn by it in ten environments, against PPO and IMPALA at equal tuning.

    frodo card catch_and_grids --licence=Apache-2.0
    frodo card results/discover/frodo/rule.npz
    frodo card my_rule

A rule is named as for --rule of other programs: a discovered one, the file of one, or a hand-designed one by its name
in `frodo.RULES`, also one that FRODO_PLUGINS registers. η stays as it is; a learned rule without η learns it online.
Each method chooses its learning rate and cost of entropy with two other seeds, a discovered rule in the other
environments (docs/concepts/fair_comparison.md).
Writes <out>/<name>/ with rule.npz, card.json and README.md, which is a rule of a zoo (`frodo zoo check`), and prints
the page. Runs are in <out>/runs/; those of PPO and IMPALA are done once for all cards in a folder. A card that was
stopped goes on when it is asked for again.
"""

import shlex
from pathlib import Path

from absl import flags

from experiments.comparison import card
from experiments.runs import command_line, settings
from frodo.rules import cards
from frodo.runs.errors import UsageError, caused_by
from frodo.runs.folders import check_out


def main(argv: list[str]) -> None:
    FLAGS = flags.FLAGS
    if len(argv) != 2:
        raise UsageError("name one rule: frodo card RULE")
    check_out(out := Path(FLAGS.out))
    given = ("envs", "budgets", "seeds", "licence")
    command = shlex.join(["frodo", "card", argv[1], *(f"--{x}={FLAGS[x].value}" for x in given if FLAGS[x].present)])
    how = dict(envs=settings.parse_envs(FLAGS.envs), budgets=FLAGS.budgets, licence=FLAGS.licence)
    seeds = command_line.parse_seeds(FLAGS.seeds)
    with caused_by(argv[1]), command_line.job_executor() as executor:
        print(cards.to_markdown(card.write(argv[1], out, executor, command, seeds=seeds, **how)))


if __name__ == "__main__":
    flags.DEFINE_string(
        "envs", ",".join(card.SUITE), "Environments, of which scores of random and best play are known."
    )
    flags.DEFINE_string("budgets", card.BUDGETS, "Environment steps of each agent by family, as for `frodo compare`.")
    flags.DEFINE_string("seeds", "0-4", "Seeds, such as 0-4; settings are chosen with 100 and 101.")
    flags.DEFINE_string("licence", "", "Licence of the rule's file, such as Apache-2.0.")
    command_line.define_job_flags("Runs")
    flags.DEFINE_string("out", "results/card", "Folder of cards.")
    command_line.start(main)
