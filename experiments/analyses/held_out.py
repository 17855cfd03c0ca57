"""The test of agents that adapt within an episode of several trials, with θ frozen, on tasks that are held out."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from agents.environments.names import is_pure, make_environment
from experiments.analyses import room_film
from experiments.results import k_shot, plots
from experiments.runs import loaded_agent
from frodo import files, logs
from frodo.regimes.adaptation import held_out_tasks
from frodo.regimes.k_shot import check_solvable, random_returns, references
from frodo.runs import memory
from frodo.runs.errors import UsageError, caused_by
from toy_envs.bandit import Bandit
from toy_envs.base import Environment
from toy_envs.rule_room import RuleRoom


class HeldOut(NamedTuple):
    """What is tested: the environment of one trial, for each of these numbers of trials."""

    environment: Environment
    nums_trials: tuple[int, ...]
    num_tasks: int
    num_episodes: int  # of each task
    is_greedy: bool  # in choosing actions
    is_filmed: bool


def parse(
    env: str, test_env: str, trials: str, num_tasks: int, num_episodes: int, is_greedy: bool, is_filmed: bool
) -> HeldOut:
    """Return what is tested, by the flags; a UsageError where an agent of the environment cannot be."""
    made = []
    for flag, name in {"env": env, "test_env": test_env or env}.items():
        if not is_pure(name):
            raise UsageError(f"--{flag}={name}: give an environment written in JAX, such as toy/rule_room/main")
        with caused_by(f"--{flag}"):
            made.append(make_environment(name, 1, 0))
    trained, tested = made
    assert isinstance(trained, Environment) and isinstance(tested, Environment)
    tested = tested if test_env else trained.tested
    if {trained.task_ids[0], trained.task_ids[-1]} <= set(trained.held_out_ids or ()):
        others = env.partition("/held_out")[0]
        raise UsageError(f"--env={env}: tasks that are held out are for the test, train in {others}")
    if env.startswith("xminigrid/") and env.endswith("/held_out"):
        raise UsageError(f"--env={env}: goals that are held out are for the test, train in {env[:-8]}train")
    own, expected = ((one.observation_shape, one.num_actions) for one in (tested, trained))
    if own != expected:
        what = f"observations and number of actions are {own}, expected {expected} as in training"
        raise UsageError(f"--test_env={test_env}: {what}")
    with caused_by(f"--test_env={test_env or env}"):
        check_solvable(tested)
    if is_filmed and not isinstance(tested, RuleRoom):
        raise UsageError(f"--film: only rule rooms are drawn, and the test is in {test_env or env}")
    with caused_by(f"--test_tasks={num_tasks}"):
        tasks = jax.eval_shape(lambda: held_out_tasks(tested, num_tasks))
        memory.check({"the number of tasks": memory.num_bytes(tasks)})
    if not re.fullmatch(r" *[1-9]\d{0,2} *(, *[1-9]\d{0,2} *)*", trials):
        raise UsageError(f"--test_trials={trials}: give numbers of trials from 1 to 999, such as 1,2,4,8")
    nums_trials = tuple(sorted({int(k) for k in trials.split(",")}))
    return HeldOut(tested, nums_trials, num_tasks, num_episodes, is_greedy, is_filmed)


def run(test: HeldOut, folder: Path, agents: Sequence[loaded_agent.LoadedAgent], title: str) -> dict[str, Any]:
    """Test agents of one kind, write k_shot.csv and k_shot.png to a folder, and print; returns what was found."""
    tasks = jax.jit(lambda: held_out_tasks(test.environment, test.num_tasks))()
    logs.note("test: what is possible in these tasks")
    known = references(test.environment, tasks, test.nums_trials)
    one, most = agents[0], max(test.nums_trials)
    params = one.learner.setup.acting_params(one.agent)
    random = random_returns(one.learner, params, test.environment, tasks, jax.random.key(0), most).mean(axis=0)
    found = {}
    for k in test.nums_trials:
        logs.note(f"test: {k} trial{'s' * (k > 1)}")
        returns = loaded_agent.play_trials(agents, test.environment, tasks, k, test.num_episodes, test.is_greedy)
        found[k] = k_shot.statistics(returns, known.oracle)
        if test.is_filmed and k == most and plots.can_draw():
            _film(folder / "film.gif", agents[0], test, tasks, returns[0], known.oracle)
    if plots.can_draw():
        k_shot.draw(folder / "k_shot.png", found, known, random, title)
    optimum = {k: known.optimum[k].tolist() for k in found if k in known.optimum}
    rows = [
        {"seed": agent.seed, "num_trials": k, "trial": i + 1}
        | {name: float(values[number, i]) for name, values in own.items()}
        | {"random": float(random[i])}
        | ({"optimum": optimum[k][i]} if k in optimum else {})
        for number, agent in enumerate(agents)
        for k, own in found.items()
        for i in range(k)
    ]
    files.write_csv(folder / "k_shot.csv", rows)
    of_all = {k: {name: x.tolist() for name, x in own.items()} for k, own in found.items()}
    of_all = {k: own | ({"optimum": optimum[k]} if k in optimum else {}) for k, own in of_all.items()}
    if isinstance(test.environment, Bandit):
        for k, own in found.items():
            of_all[k]["regret"] = (k * known.oracle.mean() - own["return"].sum(axis=1)).tolist()
            of_all[k]["least_regret"] = float(k * known.mean_oracle - known.optimum[k].sum())
    _print(found, of_all, random)
    logs.note(f"figure: {folder / 'k_shot.png'}")
    summary: dict[str, Any] = {"num_tasks": test.num_tasks, "is_greedy": test.is_greedy, "random": random.tolist()}
    if known.oracle.size:
        summary |= {"num_solvable": int(np.sum(known.oracle > 0)), "oracle": float(known.oracle.mean())}
        summary["one_trial_optimum"] = known.one_trial
    return summary | {str(k): entry for k, entry in of_all.items()}


def _film(
    path: Path, agent: loaded_agent.LoadedAgent, test: HeldOut, tasks: Any, returns: np.ndarray, oracle: np.ndarray
) -> None:
    """Draw an episode of the task in which the mean return rises most from the first trial to the last."""
    assert isinstance(test.environment, RuleRoom)
    i = int(np.argmax(returns[:, -1] - returns[:, 0]))
    how: dict[str, bool] = dict(is_forgetful=loaded_agent.forgets(agent.config), is_greedy=test.is_greedy)
    task = jax.tree.map(lambda x: x[i], tasks)
    frames = room_film.play(agent, test.environment, task, returns.shape[1], **how)
    room_film.write_gif(path, frames, f"Held-out room {i}, parameters frozen", float(oracle[i]))
    logs.note(f"film: {path}")


def _print(
    found: Mapping[int, Mapping[str, np.ndarray]], of_all: Mapping[int, Mapping[str, Any]], random: np.ndarray
) -> None:
    """Print statistics by trial, as means over seeds, and their spread where there are several."""
    spread = lambda x: f"{x.mean():.4f}" + (f" ± {x.std(ddof=1):.4f}" if len(x) > 1 else "")
    table = [
        {"trials": str(k), "trial": i + 1}
        | {name: spread(values[:, i]) for name, values in own.items()}
        | {"random": f"{random[i]:.4f}"}
        | {name: values[i] for name, values in of_all[k].items() if name == "optimum"}
        for k, own in found.items()
        for i in range(k)
    ]
    print(logs.table(table))
    for k, entry in of_all.items():
        if "regret" in entry:
            regrets = ", ".join(f"{regret:.4f}" for regret in entry["regret"])
            print(f"regret of {k} trials, of each seed: {regrets}; of the best explorer: {entry['least_regret']:.4f}")
