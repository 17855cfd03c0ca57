"""What an agent with DiscoRL's targets predicts, what a rule in PPO's loop does, and formulas for a rule's targets.

    frodo analyse results/evaluate/toy_catch_8x8_disco103 --figures=confidence,horizon
    frodo analyse results/discover/corrected_ppo/rule.npz
    frodo analyse results/online/toy_catch_frodo
    frodo analyse results/discover/frodo/rule.npz
    frodo analyse disco103 --envs=toy/catch/5x5,toy/grid_world/0

Of a run it reads the agent from the last checkpoint and lets it act. For each of the figures of Oh et al. 2025, Figure
4, it writes <figure>.png and the numbers in it, <figure>.csv, to the run's folder analysis/. Of a rule of the kind lpo
or corrected_ppo it draws the loss of the policy over the ratio, next to PPO's and DPO's, at the beginning, the middle
and the end of a life, and the corrections of settings and targets, into analysis/ next to its file, with formulas for
them: shorter ones, and more exact ones. Of a scalar rule of actor-critics, the kind frodo, it fits formulas to the
targets of fresh agents that learn by it where it was discovered; of a run with such a rule, to those of its own agent.
Each is written as a rule of the kind target_program, by which agents can learn (`--rule` of other programs,
`--target_rule` of `frodo compare`). Of a formula, `error` is what it lacks as a share of the variance of G − v, given
the rule's own next target, of trajectories that it was not fitted to; `alone` is the same where the formula makes all
targets; the last row is V-trace. Of a rule of DiscoRL's form it fits formulas to the policy targets of fresh agents,
each of which is a rule of the kind policy_program (`--policy_program_rule` of `frodo compare`). `error` is then
KL(π̂ ‖ formula's) as a share of KL(π̂ ‖ π), of trajectories that it was not fitted to; the last row is CMPO.
"""

from pathlib import Path

from absl import flags

from agents.validation import did_you_mean
from experiments.analyses import correction, figures, policy_formulas, target_formulas
from experiments.runs import command_line, settings
from frodo.rules.files import has_meta_params, load_rule
from frodo.runs.errors import UsageError, caused_by
from frodo.runs.folders import check_out


def main(argv: list[str]) -> None:
    FLAGS = flags.FLAGS
    folder = command_line.one_argument(argv)
    check_out(Path(FLAGS.out))
    name = str(folder)
    if (folder / "config.json").exists() or not has_meta_params(name):
        if FLAGS.envs:
            raise UsageError(f"--envs={FLAGS.envs}: {folder} is a run, expected a rule")
        if not folder.exists() and (hint := did_you_mean(name, settings.discovered())):
            raise UsageError(f"there is no run {folder}, and no rule of that name{hint}")
        figures.run(folder, FLAGS.figures, FLAGS.seed, FLAGS.out)
        return
    for flag in ("figures", "seed"):
        if FLAGS[flag].present:
            raise UsageError(f"--{flag}={FLAGS[flag].value}: {folder} is a rule, expected a run")
    envs = settings.parse_envs(FLAGS.envs) if FLAGS.envs else ()
    with caused_by(name):
        rule = load_rule(name)
    out = Path(FLAGS.out or (folder.parent / "analysis" if folder.suffix == ".npz" else "results/analyse"))
    with_formulas = {"frodo": target_formulas.of_rule, "disco": policy_formulas.of_rule}
    if (kind := rule.config.rule.name) in with_formulas:
        with_formulas[kind](name, rule, out, envs)
    elif envs:
        raise UsageError(f"--envs={FLAGS.envs}: {name} is a rule of the kind {kind}, expected frodo or disco")
    else:
        correction.draw(folder, rule, str(out))


if __name__ == "__main__":
    flags.DEFINE_list("figures", list(figures.FIGURES), "Which figures of a run.")
    flags.DEFINE_integer("seed", None, "Seed of the run whose agent it is; by default the first.", lower_bound=0)
    flags.DEFINE_string("envs", "", "Environments in JAX in which agents learn by a rule, if not those it comes from.")
    flags.DEFINE_string(
        "out",
        "",
        "Folder of what is written; if not given, analysis/ in the run or next to the file, or results/analyse.",
    )
    command_line.start(main)
