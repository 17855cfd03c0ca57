"""The one table: in the same rooms, what is learned there from scratch, and what an agent has that adapts in context.

An agent of `experiments.adapt` plays a room that it has never seen with θ frozen: what it gains, its memory gains, in
the first trials. The others learn there from nothing, for as long as their budget lasts. Both are shown over the
environment steps in that room, beside the explorer that is best in all trials together.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from agents.environments.names import make_environment
from experiments.comparison.findings import Findings
from experiments.results import k_shot, plots, reading
from experiments.runs import loaded_agent
from frodo import files
from frodo.logs import quantity
from frodo.regimes.scores import normalised, reference_scores
from frodo.runs.errors import UsageError
from frodo.settings.config import OnlineConfig
from toy_envs import names
from toy_envs.rule_room import KINDS, RuleRoom
from toy_envs.trials import Trials

NUM_TRIALS = 8
NUM_EPISODES = 64  # of each room, from an empty memory
AT = (1e3, 1e4, 1e5, 1e6)  # steps in a room at which a row of the table says what is had, and two trials'


class Line(NamedTuple):
    """What is had in rooms of one kind: mean normalised scores over rooms, of each seed.

    Attributes:
      kind: of the rooms.
      label: of the method or agent.
      steps: [N], environment steps in a room.
      scores: [num_seeds, N].
      steps_before: environment steps elsewhere, nan where it is not known.
      seconds_before: CPU seconds for them.
      is_in_context: whether θ is as it is.
    """

    kind: str
    label: str
    steps: np.ndarray
    scores: np.ndarray
    steps_before: float
    seconds_before: float
    is_in_context: bool


def rooms(envs: Sequence[str]) -> dict[str, dict[str, RuleRoom]]:
    """Return the rule rooms among environments, by kind and name."""
    found: dict[str, dict[str, RuleRoom]] = {}
    for env in envs:
        room = names.make(env.removeprefix("toy/")) if env.startswith("toy/") else None
        if isinstance(room, RuleRoom):
            found.setdefault(room.kind, {})[env] = room
    return found


def check(folders: Sequence[str], envs: Sequence[str]) -> None:
    """Raise a UsageError where a folder holds no agent that adapts, or there is no room that such an agent can play."""
    found = [room for own in rooms(envs).values() for room in own.values()]
    if folders and not found:
        raise UsageError(
            f"--adapted_agents={','.join(folders)}: there is no rule room among --envs, such as "
            "toy/rule_room/main/held_out/0"
        )
    for folder in folders:
        env, *_ = _trained(Path(folder))
        environment = make_environment(env, 1, 0) if env.startswith("trials/") else None
        trained = environment.environment if isinstance(environment, Trials) else None
        if not isinstance(trained, RuleRoom):
            expected = "expected trials of a rule room"
            raise UsageError(f"--adapted_agents={folder}: its agent was trained in {env}, {expected}")
        for room in found:
            if trained.observation_shape != room.observation_shape:
                raise UsageError(
                    f"--adapted_agents={folder}: its agent sees {trained.observation_shape}, rooms of the kind "
                    f"{room.kind} show {room.observation_shape}"
                )


def _trained(folder: Path) -> tuple[str, list[int], float]:
    """Return the environment, the seeds and the steps of a run that is finished."""
    try:
        env = files.from_plain(OnlineConfig, files.read_json(folder / "config.json")["config"]).env
        summary = files.read_json(folder / "summary.json")
        return env, [int(seed) for seed in summary["seeds"]], float(summary["env_steps"])
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        raise UsageError(f"--adapted_agents={folder} holds no run of experiments.adapt") from None


def lines(envs: Sequence[str], found: Findings, adapted_agents: Sequence[str]) -> list[Line]:
    """Return what is had in the rooms among environments: by methods with all of a kind, and by adapted agents."""
    by_kind = rooms(envs)
    before = {(row["environment"], row["method"]): row for row in found.costs.to_dict("records")}
    return [
        learned(label, kind, {env: found.runs[env, method] for env in own}, before[next(iter(own)), method])
        for kind, own in by_kind.items()
        for method, label in found.labels.items()
        if all((env, method) in found.runs for env in own)
    ] + [line for name in adapted_agents for line in adapted(Path(name), by_kind)]


def adapted(folder: Path, by_kind: Mapping[str, Mapping[str, RuleRoom]]) -> list[Line]:
    """Play all rooms with the agents, one of each seed, of a run of `experiments.adapt`: a line for each kind."""
    _, seeds, env_steps = _trained(folder)
    agents = [loaded_agent.load(folder, seed) for seed in seeds]
    seconds = float(reading.read(folder).columns["cpu_seconds"].max())  # of process 0, for all seeds
    found = []
    for kind, own in by_kind.items():
        room = RuleRoom(kind)
        ids = np.array([one.task_ids.start for one in own.values()], np.uint32)
        tasks = jax.jit(jax.vmap(room.numbered_state))(ids)
        returns = loaded_agent.play_trials(agents, room, tasks, NUM_TRIALS, NUM_EPISODES)
        scores = np.mean([normalised(env, returns[:, i]) for i, env in enumerate(own)], axis=0)
        before = env_steps, seconds / len(agents)
        found.append(Line(kind, f"{folder.name}, in context", _ends(kind), scores, *before, True))
    return found


def learned(label: str, kind: str, runs: Mapping[str, reading.Results], before: Mapping[str, Any]) -> Line:
    """Return the line of a method from its run in each room; `before` is its row of costs.csv.

    A row of metrics.csv is the mean since the row before, so it stands in the middle of these steps; what was had
    before the middle of the first row is not known.
    """
    curves = {env: reading.curve(run, "return") for env, run in runs.items()}
    middles = {env: (np.append(0, one.x[:-1]) + one.x) / 2 for env, one in curves.items()}
    first, last = max(x[0] for x in middles.values()), min(one.x[-1] for one in curves.values())
    steps = np.geomspace(first, last, 100)
    scores = [
        normalised(env, np.array([np.interp(steps, middles[env], y) for y in one.y])) for env, one in curves.items()
    ]
    spent, seconds = float(before["env steps before"]), float(before["CPU s before"])
    return Line(kind, label, steps, np.mean(scores, axis=0), spent, seconds, False)


def optimum(kind: str, envs: Mapping[str, RuleRoom]) -> np.ndarray:
    """Return the mean score of the explorer that is best in `NUM_TRIALS` trials together, of each, [NUM_TRIALS]."""
    scores = []
    for env, room in envs.items():
        tasks = jax.tree.map(lambda x: np.asarray(x)[None], room.initial_state(jax.random.key(0)))
        known = k_shot.references(RuleRoom(kind), tasks, (NUM_TRIALS,))
        random = reference_scores(env)[0]
        scores.append((known.optimum[NUM_TRIALS] - random) / (known.mean_oracle - random))
    return np.mean(scores, axis=0)


def _ends(kind: str) -> np.ndarray:
    """Return the environment steps after each trial, [NUM_TRIALS]."""
    return KINDS[kind].horizon * np.arange(1.0, NUM_TRIALS + 1)


def rows(lines: Sequence[Line]) -> list[dict[str, Any]]:
    """Return the table: for each line the score at so many steps in the room, mean over seeds, and what came before."""
    found = []
    for line in lines:
        row = {"rooms": line.kind, "method": line.label, "seeds": len(line.scores)}
        row |= {"steps before": line.steps_before, "CPU s before": line.seconds_before}
        ends = _ends(line.kind)
        places = {"trial 1": ends[0], f"trial {NUM_TRIALS}": ends[-1]} | {f"{quantity(x)} steps": x for x in AT}
        for name, steps in places.items():
            # What adapts stays as it was at the end.
            is_known = line.is_in_context or line.steps[0] <= steps <= 1.01 * line.steps[-1]
            for which, y in zip(("", "± "), plots.mean_and_interval(line.scores), strict=True):
                row[which + name] = float(np.interp(steps, line.steps, y)) if is_known else np.nan
        found.append(row)
    return found


def draw(folder: Path, lines: Sequence[Line], envs: Sequence[str]) -> dict[str, str]:
    """Draw the lines of each kind of rooms over the steps in a room; returns file name -> what it shows."""
    figures = {}
    for kind in dict.fromkeys(line.kind for line in lines):
        lines_there, in_kind = [line for line in lines if line.kind == kind], rooms(envs)[kind]
        best, last = optimum(kind, in_kind), max(line.steps[-1] for line in lines_there)
        with plots.new_figure((9, 5.5), folder / f"rooms_{kind}.png") as figure:
            axes = figure.subplots()
            axes.plot([*_ends(kind), last], [*best, best[-1]], color="0.35", linewidth=1.2, label="the best explorer")
            for number, line in enumerate(lines_there):
                steps, scores, style = line.steps, line.scores, plots.look(number)
                if line.is_in_context:  # after the last trial, what it had there
                    steps, scores = np.append(steps, last), np.append(scores, scores[:, -1:], axis=1)
                    style |= dict(marker="o", markersize=4, linestyle="--")
                plots.curve(axes, steps, scores, f"{line.label} ({len(scores)} seeds)", **style)
            ylabel = "mean score over rooms, 1: who knows them"
            axes.set(xscale="log", xlabel="environment steps in a room", ylabel=ylabel)
            axes.set_title(f"rooms of the kind {kind}")
            figure.legend(loc="outside lower center", ncols=2, fontsize=9)
        figures[f"rooms_{kind}.png"] = (
            f"Rooms of the kind {kind}: mean normalised score over {len(in_kind)} rooms by the environment steps in a "
            "room. With points: agents that adapt in context, with θ as it is, which end with the last of "
            f"{NUM_TRIALS} trials; band: 95 % Student-t interval of the mean, of fewer than three seeds each thinly."
        )
    return figures
