"""Train an agent with a memory over many tasks, and test with θ frozen what it learns within an episode of trials.

    frodo adapt --env=toy/rule_room/main --trials=4 --rule=impala --steps=1e7
    frodo adapt --env=toy/bandit/2 --trials=2 --test_trials=1,2 --test_tasks=16384 --test_episodes=1
    frodo adapt --env=toy/rule_room/mixed --test_env=toy/rule_room/main

An episode is so many trials of one task (`toy_envs.trials`; AdA 2023); any rule trains the agent: hand-designed,
learned meanwhile, or a discovered one that stays as it is. The test is on tasks that are held out, for each
number of trials. Writes the run folder of the training, results/adapt/<trials>_<env>_<rule>/, as `online` does, with
`trial_1` and so on in metrics.csv; and into it k_shot.csv, k_shot.png, and in summary.json under "test", for each
number of trials: `return`, the mean over tasks of each trial's return, and where the best is known
(`experiments.results.k_shot`) `score`, `median` and `p20`, all [seeds][trials]; `optimum` [trials]; of a bandit
`regret` [seeds], of the whole episode against who knows the arms, and `least_regret`, the best explorer's. Next to them
`oracle`, its mean, `one_trial_optimum`, `num_tasks`, and `num_solvable`, of which there are median and p20. --resume
with all steps done tests anew, such as with --greedy. --film draws an episode of the first seed's agent as film.gif.
--agent tests one that is trained, and trains none: frodo adapt --agent=rule_room --film
"""

import dataclasses
import re
from pathlib import Path

import jax
from absl import flags

from experiments.analyses import held_out
from experiments.runs import command_line, learning_curves, loaded_agent, settings, training
from experiments.runs.processes import define_process_flags, join, num_devices
from frodo import files
from frodo.runs.errors import UsageError, caused_by
from frodo.runs.folders import folder_of, of_process
from frodo.settings.config import OnlineConfig
from frodo.settings.registry import RULES


def preset() -> OnlineConfig:
    FLAGS = flags.FLAGS
    match = re.fullmatch(r"(?:([1-9]\d{0,2})-)?([1-9]\d{0,2})", FLAGS.trials)
    if not match or int(match[1] or 1) > int(match[2]):
        raise UsageError(f"--trials={FLAGS.trials}: give an integer from 1 to 999, or from 1 to 6 trials as 1-6")
    env = f"trials/{FLAGS.trials}/{'forgetful/' * FLAGS.forgetful}{FLAGS.env}"
    with caused_by("--rule"):
        configure = settings.configure if FLAGS.rule in RULES else settings.configure_frozen
        return configure(env, FLAGS.rule)


def main(argv: list[str]) -> None:
    FLAGS = flags.FLAGS
    join()
    config, options = command_line.parse_options(argv, preset())
    options = dataclasses.replace(options, num_devices=num_devices())
    training.choose_threads(config, options)
    of_training = ("rule", "seeds", "steps", "resume", *(x for x in FLAGS if x.startswith("config.")))
    if FLAGS.agent and (given := [x for x in of_training if FLAGS[x].present]):
        raise UsageError(f"--{given[0]}={FLAGS[given[0]].value}: give it or --agent, which is trained")
    how = (FLAGS.test_tasks, FLAGS.test_episodes, FLAGS.greedy, FLAGS.film)
    test = held_out.parse(FLAGS.env, FLAGS.test_env, FLAGS.test_trials, *how)
    label = Path(FLAGS.agent or FLAGS.rule).name.removesuffix(".npz")
    name = f"{config.env.removeprefix('trials/').replace('/', '_')}_{label}"
    options = of_process(options, "adapt", name)
    folder, summary, where = folder_of(options, "adapt", name), {"agent": FLAGS.agent}, f"of {FLAGS.env}"
    if FLAGS.agent:
        with caused_by("--agent"):
            agents = [loaded_agent.of_result(FLAGS.agent, config.env)]
    else:
        summary, where = training.train(config, options, experiment="adapt", name=name), f"trained on {config.env}"
        if jax.process_index():
            return  # process 0 tests
        learning_curves.show(summary, folder, label)
        agents = [loaded_agent.load(folder, seed) for seed in options.seeds]
    summary["test"] = held_out.run(test, folder, agents, f"{label} on held-out tasks, {where}")
    files.write_json(folder / "summary.json", summary)


if __name__ == "__main__":
    flags.DEFINE_string("env", "toy/rule_room/main", "Environment of one trial, written in JAX.")
    flags.DEFINE_string("trials", "4", "Trials of an episode in training; 1-6 for a number that is drawn.")
    flags.DEFINE_boolean("forgetful", False, "Reset the memory at the end of each trial, in training and test.")
    flags.DEFINE_string("rule", "impala", f"Rule: {', '.join(RULES)}, {settings.DISCOVERED}.")
    flags.DEFINE_string("agent", "", "Test this agent, of the package or a file of OnlineResult.save; train none.")
    flags.DEFINE_string(
        "test_env", "", "Environment of the test, by default that of training, or of its solvable rooms."
    )
    flags.DEFINE_string("test_trials", "1,2,4,8", "Numbers of trials that are tested.")
    flags.DEFINE_integer("test_tasks", 256, "Tasks of the test, all held out.", lower_bound=1)
    flags.DEFINE_integer("test_episodes", 8, "Episodes of each task.", lower_bound=1)
    flags.DEFINE_boolean("greedy", False, "Take the most probable action in the test, not one drawn from the policy.")
    flags.DEFINE_boolean("film", False, "Draw the first seed's agent in the rule room where it gains most: film.gif.")
    flags.DEFINE_integer("num_devices", 0, "Split the batch over so many, 0 for no split.", lower_bound=0)
    define_process_flags()
    without = ("env", "init_meta_params", "is_frozen")
    command_line.define_flags(OnlineConfig(), seeds="0", steps="1e7", without=without, preset=preset)
    command_line.start(main)
