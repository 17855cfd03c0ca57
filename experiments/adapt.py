"""Train an agent with a memory over many tasks, and test with θ frozen what it learns within an episode of trials.

    python -m experiments.adapt --env=toy/rule_room/main --trials=4 --rule=impala --steps=1e7
    python -m experiments.adapt --env=toy/bandit/2 --trials=2 --test_trials=1,2 --test_tasks=16384 --test_episodes=1
    python -m experiments.adapt --env=toy/rule_room/mixed --test_env=toy/rule_room/main

An episode is so many trials of one task (`toy_envs.trials`; AdA 2023); any rule trains the agent, a hand-made one, one
that is learned meanwhile, or a discovered one that stays as it is. The test is on tasks that are held out, for each
number of trials. Writes the run folder of the training, results/adapt/<env>_<trials>_<rule>/, as `online` does, with
`trial_1` and so on in metrics.csv; and into it k_shot.csv, k_shot.png, and in summary.json under "test", for each
number of trials: `return`, the mean over tasks of each trial's return, and where the best is known
(`experiments.results.k_shot`) `score`, `median` and `p20`, all [seeds][trials]; `optimum` [trials]; of a bandit
`regret` [seeds], of the whole episode against who knows the arms, and `least_regret`, the best explorer's. Beside them
`oracle`, its mean, `one_trial_optimum`, `num_tasks`, and `num_solvable`, of which there are median and p20. --resume
with all steps done tests anew, such as with --greedy.
"""

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from absl import flags

from agents.environments.names import is_pure, make_environment
from experiments.results import k_shot
from experiments.runs import command_line, loaded_agent, settings, training
from experiments.runs.learning_curves import print_summary, train_and_draw
from experiments.runs.processes import define_process_flags, join, num_devices
from frodo import files, logs
from frodo.regimes.adaptation import held_out_tasks
from frodo.runs import memory
from frodo.runs.errors import UsageError, caused_by
from frodo.runs.folders import folder_of, of_process
from frodo.runs.options import RunOptions
from frodo.settings.config import OnlineConfig
from frodo.settings.registry import RULES
from toy_envs.bandit import Bandit
from toy_envs.base import Environment


class HeldOut(NamedTuple):
    """What is tested: the environment of one trial, for each of these numbers of trials."""

    environment: Environment
    nums_trials: tuple[int, ...]
    num_tasks: int
    num_episodes: int  # of each task
    is_greedy: bool  # in choosing actions


def run(config: OnlineConfig, options: RunOptions, test: HeldOut, label: str) -> dict[str, Any]:
    """Train, test, write what was found, and return the summary; figures are under "figures"."""
    name = f"{config.env.removeprefix('trials/').replace('/', '_')}_{label}"
    options = of_process(options, "adapt", name)
    summary = train_and_draw(config, options, experiment="adapt", name=name, label=label)
    if jax.process_index():
        return summary  # process 0 tests
    folder = folder_of(options, "adapt", name)
    agents = [loaded_agent.load(folder, seed) for seed in options.seeds]
    tasks = jax.jit(lambda: held_out_tasks(test.environment, test.num_tasks))()
    logs.note("test: what is possible in these tasks")
    known = k_shot.references(test.environment, tasks, test.nums_trials)
    found = {}
    for k in test.nums_trials:
        logs.note(f"test: {k} trial{'s' * (k > 1)}")
        returns = loaded_agent.play_trials(agents, test.environment, tasks, k, test.num_episodes, test.is_greedy)
        found[k] = k_shot.statistics(returns, known.oracle)
    summary["test"] = _summary(test, known, found)
    figure = folder / "k_shot.png"
    k_shot.draw(figure, found, known, f"{label} on held-out tasks, trained on {config.env}")
    files.write_csv(folder / "k_shot.csv", rows(options.seeds, found, known))
    files.write_json(folder / "summary.json", {key: x for key, x in summary.items() if key != "figures"})
    return summary | {"figures": [*summary["figures"], figure]}


def _summary(test: HeldOut, known: k_shot.References, found: Mapping[int, Mapping[str, np.ndarray]]) -> dict[str, Any]:
    summary: dict[str, Any] = {"num_tasks": test.num_tasks, "is_greedy": test.is_greedy}
    if known.oracle.size:
        summary |= {"num_solvable": int(np.sum(known.oracle > 0)), "oracle": float(known.oracle.mean())}
        summary["one_trial_optimum"] = known.one_trial
    for k, own in found.items():
        entry: dict[str, Any] = {name: values.tolist() for name, values in own.items()}
        if k in known.optimum:
            entry["optimum"] = known.optimum[k].tolist()
        if isinstance(test.environment, Bandit):
            entry["regret"] = (k * known.oracle.mean() - own["return"].sum(axis=1)).tolist()
            entry["least_regret"] = float(k * known.mean_oracle - known.optimum[k].sum())
        summary[str(k)] = entry
    return summary


def rows(
    seeds: tuple[int, ...], found: Mapping[int, Mapping[str, np.ndarray]], known: k_shot.References
) -> list[dict[str, Any]]:
    """Return a row for each seed, number of trials and trial."""
    return [
        {"seed": seed, "num_trials": k, "trial": i + 1}
        | {name: float(values[number, i]) for name, values in own.items()}
        | ({"optimum": float(known.optimum[k][i])} if k in known.optimum else {})
        for number, seed in enumerate(seeds)
        for k, own in found.items()
        for i in range(k)
    ]


def print_test(summary: Mapping[str, Any]) -> None:
    """Print returns by trial, as means over seeds, and their spread where there are several."""
    table = []
    for k, entry in summary.items():
        if not isinstance(entry, Mapping):
            continue
        for i in range(int(k)):
            row: dict[str, Any] = {"trials": k, "trial": i + 1}
            for name in [x for x in ("return", "score", "median", "p20") if x in entry]:
                values = np.array(entry[name])[:, i]
                row[name] = f"{values.mean():.4f}" + (f" ± {values.std(ddof=1):.4f}" if len(values) > 1 else "")
            table.append(row | ({"optimum": entry["optimum"][i]} if "optimum" in entry else {}))
    print(logs.table(table))
    for k, entry in summary.items():
        if isinstance(entry, Mapping) and "regret" in entry:
            regrets = ", ".join(f"{regret:.4f}" for regret in entry["regret"])
            print(f"regret of {k} trials, of each seed: {regrets}; of the best explorer: {entry['least_regret']:.4f}")


def parse_trials(text: str) -> tuple[int, ...]:
    """Return the numbers of trials of "1,2,4,8", in order."""
    parts = [part.strip() for part in text.split(",")]
    if not all(re.fullmatch(r"[1-9]\d{0,2}", part) for part in parts):
        raise UsageError(f"--test_trials={text}: give numbers of trials from 1 to 999, such as 1,2,4,8")
    return tuple(sorted({int(part) for part in parts}))


def parse_test(env: str, test_env: str, trials: str, num_tasks: int, num_episodes: int, is_greedy: bool) -> HeldOut:
    """Return what is tested; a UsageError where an agent of the environment cannot be."""
    made = []
    for flag, name in (("env", env), ("test_env", test_env or env)):
        if not is_pure(name):
            raise UsageError(f"--{flag}={name}: give an environment written in JAX, such as toy/rule_room/main")
        with caused_by(f"--{flag}"):
            made.append(make_environment(name, 1, 0))
    trained, tested = made
    assert isinstance(trained, Environment) and isinstance(tested, Environment)
    ids, held_out = trained.task_ids, trained.held_out_ids or ()
    if ids[0] in held_out and ids[-1] in held_out:
        others = env.partition("/held_out")[0]
        raise UsageError(f"--env={env}: tasks that are held out are for the test, train in {others}")
    shown = lambda one: (one.observation_shape, one.num_actions)
    if shown(trained) != shown(tested):
        raise UsageError(
            f"--test_env={test_env}: observations and number of actions are {shown(tested)}, expected {shown(trained)} "
            "as in training"
        )
    with caused_by(f"--test_env={test_env or env}"):
        k_shot.check_solvable(tested)
    with caused_by(f"--test_tasks={num_tasks}"):
        tasks = jax.eval_shape(lambda: held_out_tasks(tested, num_tasks))
        memory.check({"the number of tasks": memory.num_bytes(tasks)})
    return HeldOut(tested, parse_trials(trials), num_tasks, num_episodes, is_greedy)


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
    how = (FLAGS.test_tasks, FLAGS.test_episodes, FLAGS.greedy)
    test = parse_test(FLAGS.env, FLAGS.test_env, FLAGS.test_trials, *how)
    summary = run(config, options, test, Path(FLAGS.rule).name.removesuffix(".npz"))
    if not jax.process_index():
        print_summary(summary)
        print_test(summary["test"])


if __name__ == "__main__":
    flags.DEFINE_string("env", "toy/rule_room/main", "Environment of one trial, written in JAX.")
    flags.DEFINE_string("trials", "4", "Trials of an episode in training; 1-6 for a number that is drawn.")
    flags.DEFINE_boolean("forgetful", False, "Reset the memory at the end of each trial, in training and test.")
    flags.DEFINE_string("rule", "impala", f"Rule: {', '.join(RULES)}, {settings.DISCOVERED}.")
    flags.DEFINE_string("test_env", "", "Environment of the test; that of training if not given.")
    flags.DEFINE_string("test_trials", "1,2,4,8", "Numbers of trials that are tested.")
    flags.DEFINE_integer("test_tasks", 256, "Tasks of the test, all held out.", lower_bound=1)
    flags.DEFINE_integer("test_episodes", 8, "Episodes of each task.", lower_bound=1)
    flags.DEFINE_boolean("greedy", False, "Take the most probable action in the test, not one drawn from the policy.")
    flags.DEFINE_integer("num_devices", 0, "Split the batch over so many, 0 for no split.", lower_bound=0)
    define_process_flags()
    without = ("env", "init_meta_params", "is_frozen")
    command_line.define_flags(OnlineConfig(), seeds="0", steps="1e7", without=without, preset=preset)
    command_line.start(main)
