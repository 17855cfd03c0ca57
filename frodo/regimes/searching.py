"""The evolution regime as a call: a search for programs, its finalists with fresh seeds, and their rules."""

import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from agents.environments.adapt import as_environment
from agents.validation import check_count, check_type
from frodo import devices, files
from frodo.logs import Progress, note
from frodo.regimes.evolution import COUNTED, Evolution, Exhausted, Record
from frodo.regimes.program_lanes import Task
from frodo.regimes.scores import task_of
from frodo.regimes.search_settings import SEEDS_OF_FINALISTS, EvolutionConfig
from frodo.rules.files import Origin, Rule
from frodo.runs.driver import Advanced, Driven, Regime, drive, go_on_or_end
from frodo.runs.errors import RunError, caused_by
from frodo.runs.run import opened
from frodo.runs.signals import Signals
from frodo.settings import presets
from frodo.settings.config import AgentConfig
from frodo.settings.registry import replace
from meta.programs.lanes import LaneConfig
from meta.programs.language import parse, to_formula
from meta.programs.latex import to_latex
from meta.programs.simplify import Simplified, try_to_simplify
from meta.updates.optimizers import adam
from toy_envs.base import Environment

OF_TOYS: dict[str, Any] = dict(
    hurdle=0.1,
    num_seeds=3,
    num_lanes=24,
    num_full_lanes=12,
    chunk=300,
    lane=LaneConfig(
        hidden=(32, 32),
        learning_rate=5e-3,
        ends="values",
        exploration=200,
        target_period=50,
        capacity=20_000,
        batch_size=16,
        num_episodes=300,
    ),
)


class Finalist(NamedTuple):
    """One of the best programs of a search, with scores of fresh seeds.

    Attributes:
      rule: the program as a rule, with agents as those of the search.
      formula, latex: the program as text.
      simplified: the same by SymPy, for reading (`meta.programs.simplify`); None without it, or where it fails.
      score: of the search.
      scores: of fresh seeds, [environments, seeds].
      number: of its record.
    """

    rule: Rule
    formula: str
    latex: str
    simplified: Simplified | None
    score: float
    scores: np.ndarray
    number: int


class Evolved(NamedTuple):
    """What a search found.

    Attributes:
      best: the finalists, the best first by the sum over environments of the medians of `scores`.
      metrics: of every row, [rows] each: best_score, env_steps, and counts.
      search: the search, with all programs as `search.records`.
      of_nothing: scores of agents that learn nothing, with the finalists' fresh seeds, [environments, seeds].
    """

    best: list[Finalist]
    metrics: dict[str, np.ndarray]
    search: Evolution
    of_nothing: np.ndarray

    @property
    def rule(self) -> Rule:
        """The best program as a rule; a ValueError where none was evaluated."""
        if not self.best:
            raise ValueError("no program has a score yet")
        return self.best[0].rule

    def save(self, path: Path | str) -> None:
        """Write the best program as a rule, as `Rule.save`."""
        self.rule.save(path)


class Searches(Regime):
    """A search for programs, in chunks of steps of all lanes; a checkpoint bears the number of chunks.

    Args:
      tasks, names: the environments, of which the first is the hurdle.
      config, seed: of the search.
      num_programs: that are evaluated.
      executor: that has the evaluations; None for lanes of this process.
    """

    unit = "programs"

    def __init__(
        self,
        tasks: Sequence[Task],
        names: Sequence[str],
        config: EvolutionConfig,
        seed: int,
        num_programs: int,
        executor: Executor | None = None,
    ):
        self.search, self._has_lanes = Evolution(tasks, config, seed, executor), executor is None
        self.total, self._names, self._seed = num_programs, tuple(names), seed
        self.rows: list[dict[str, Any]] = []

    def init(self) -> list[list[Any]]:
        return self.search.lanes

    def begin(self, state: list[list[Any]], step: int, driven: Driven) -> list[list[Any]]:
        self._driven = driven
        if self._has_lanes:
            note(f"compiling the lanes of {', '.join(self._names)}")
        if step:
            told = json.loads(devices.tell(json.dumps(driven.told)))
            self.rows = told.pop("rows", [])
            with caused_by("--resume"):
                self.search.restore(state, told)
        return self.search.lanes

    def is_over(self, state: Any, step: int) -> bool:
        return len(self.search.records) >= self.total and self.search.is_idle

    def done(self, step: int) -> float:
        return self.search.num_done

    def advance(self, state: Any, step: int) -> Advanced:
        search = self.search
        try:
            search.step(self.total)
        except Exhausted as error:
            if not search.records:
                raise RunError(str(error)) from None
            note(f"{error}; the finalists are of what was found")
            self.total = len(search.records)
            search.step(self.total)  # no proposals: lanes go on to their ends
        best, step = search.best, step + 1
        env_steps = sum(record.num_steps for record in search.records)
        row: dict[str, Any] = {"seed": self._seed, "update": step, "env_steps": env_steps, "env_frames": env_steps}
        row |= {"best_score": float("nan") if best is None else best.score}
        row |= {name: search.counts[name] for name in COUNTED}
        self.rows.append(row)
        return Advanced(search.lanes, step, [row], "" if best is None else self._text(best))

    def _text(self, best: Record) -> str:
        """Say how fast the search is, how much it met before, and what is best."""
        counts, formula = self.search.counts, to_formula(self.search.config.kind.language, best.program)
        known = counts["proposals"] - len(self.search.records)
        num_cut = counts["stopped at half"] + counts["cut at the hurdle"]
        speed = f"{counts['evaluated'] / self._driven.clock.cpu_seconds() * 3600:,.0f} an hour of CPU time, "
        return (
            f"{speed * self._has_lanes}{known / counts['proposals']:.0%} nothing new, "
            f"{num_cut / max(1, counts['evaluated']):.0%} cut, best {best.score:.3f}: {formula}"
        )

    def close(self, *exception: Any) -> None:
        self.search.cancel()

    def told(self) -> Any:
        if self._driven.run:
            self._write_programs(self._driven.run.folder / "programs.csv")
        return self.search.state()[1] | {"rows": self.rows}

    def _write_programs(self, path: Path) -> None:
        """Write all records, in the order of their proposals; those that did not see an environment have no score."""
        language, records = self.search.config.kind.language, self.search.records
        median = lambda scores: float(np.median(scores)) if scores else None
        rows = [
            {"number": x.number, "parent": x.parent, "score": x.score}
            | {"env_steps": x.num_steps, "is_finite": x.is_finite}
            | {f"score/{env}": median(x.scores.get(i)) for i, env in enumerate(self._names)}
            | {"formula": to_formula(language, x.program)}
            for x in records
        ]
        files.write_csv(path, rows)

    def result(self, end: Callable[[int], None], cpu_seconds: float | None = None) -> Evolved:
        """Evaluate the best programs with fresh seeds, and return what was found; `end` is given a signal's number."""
        search, config = self.search, self.search.config
        scored = sorted((x for x in search.records if x.score is not None), key=lambda x: (-(x.score or 0), x.number))
        finalists = scored[: config.num_finalists]
        seeds = range(SEEDS_OF_FINALISTS, SEEDS_OF_FINALISTS + config.num_final_seeds)
        if not search.is_idle:  # a callback ended it
            search.empty_lanes()
        note(f"{len(finalists)} finalists, {len(seeds)} fresh seeds")
        nothing = parse(config.kind.language, config.kind.nothing)
        programs = [*(record.program for record in finalists), nothing]
        trainings = Progress(len(programs) * len(self._names) * len(seeds), unit="trainings")
        with contextlib.closing(self), Signals() as signals:

            def on_chunk(num: int) -> None:
                trainings.update(num)
                if signals.number:
                    end(signals.number)
                    raise KeyboardInterrupt

            (*again, of_nothing), num_steps = search.rescore(programs, seeds, on_chunk)
        num_steps += sum(record.num_steps for record in search.records)
        language = config.kind.language
        best = [
            Finalist(
                rule_of(config, self._names, record, num_steps, cpu_seconds),
                to_formula(language, record.program),
                to_latex(language, record.program),
                try_to_simplify(language, record.program),
                record.score or 0.0,
                scores,
                record.number,
            )
            for record, scores in zip(finalists, again, strict=True)
        ]
        best.sort(key=lambda one: -total(one.scores))
        if not best:
            note("no program has a score yet")
        elif total(best[0].scores) <= total(of_nothing):
            note(
                f"with fresh seeds nothing found is better than agents that learn nothing: {total(best[0].scores):.3f} "
                f"and {total(of_nothing):.3f}"
            )
        metrics = {name: np.array([row[name] for row in self.rows]) for name in (self.rows or [{}])[0]}
        return Evolved(best, metrics, search, of_nothing)


def total(scores: np.ndarray) -> float:
    """Return the sum over environments of the medians over seeds, [environments, seeds]."""
    return float(np.sum(np.median(scores, axis=-1)))


def rule_of(
    config: EvolutionConfig, names: Sequence[str], record: Record, num_steps: int, cpu_seconds: float | None
) -> Rule:
    """Return a program as a rule, with the agents of the search, and what the search cost, its finalists included."""
    formula = to_formula(config.kind.language, record.program)
    if config.language == "targets":
        found = Rule("target_program", config.target_lane.agent(formula))
    else:
        found = Rule("program", _dqn(config, names, formula))
    meta_params = found.update_rule.random_meta_params(jax.random.key(0), 2)
    return dataclasses.replace(found, meta_params=meta_params, origin=Origin(tuple(names), num_steps, cpu_seconds))


def _dqn(config: EvolutionConfig, names: Sequence[str], formula: str) -> AgentConfig:
    lane = config.in_tasks(len(names))[0].lane
    agent = presets.for_rule(names[0], "program").agent_only()
    own = {name: getattr(lane, name) for name in ("discount", "ends", "epsilon", "target_period")}
    return agent.replace(
        rule=agent.rule.replace(formula=formula, **own),
        network=dataclasses.replace(agent.network, hidden=lane.hidden),
        optimizer=adam(lane.learning_rate),
        exploration=lane.exploration,
        replay=dataclasses.replace(agent.replay, capacity=lane.capacity, batch_size=lane.batch_size),
    )


def evolve(
    environments: Mapping[str, Any] | Sequence[str],
    language: str = "losses",
    *,
    num_programs: int,
    seed: int = 0,
    bounds: Mapping[str, tuple[float, float]] | None = None,
    folder: Path | str | None = None,
    callbacks: Sequence[Any] = (),
    executor: Executor | None = None,
    **settings: Any,
) -> Evolved:
    """Evolve an objective: vary programs, and keep those by which fresh agents learn best (Co-Reyes et al. 2021).

    Args:
      environments: names of pure environments, or a mapping from names to environments; the first is the hurdle.
      language: 'losses' of value-based agents, or 'targets' of actor-critics.
      num_programs: how many programs are evaluated.
      seed: of the search and its agents.
      bounds: for each name, the returns that count as 0 and as 1. Environments with known bounds need none.
      folder: as that of `discover_online`.
      callbacks: as those of `discover_online`; there is a row for each chunk of steps.
      executor: of `concurrent.futures`, with processes as workers. A free worker evaluates the next program, so scores
        come in another order each time, and two searches with one seed differ. The rule then has no `cpu_seconds`.
        None evaluates all programs in this process.
      **settings: fields of `EvolutionConfig`, such as num_finalists and num_final_seeds. Their defaults are those of
        `EvolutionConfig`, but for losses in toys alone, which have short trainings of small agents.
    Returns:
      The finalists, the best first, metrics of every row, and the search itself.
    Raises:
      ValueError: naming what is not known, bad, or does not fit, such as an environment that no such agent can act in.
      TypeError: if an environment is of no kind that is known.
    """
    check_count("num_programs", num_programs)
    check_count("seed", seed, 0)
    if isinstance(environments, str):
        raise ValueError(f"environments is {environments!r}, expected a list of names, or a mapping to environments")
    check_type("environments", environments, Mapping | Sequence, "names of environments, or a mapping to environments")
    named = environments if isinstance(environments, Mapping) else {name: name for name in environments}
    tasks = [_task(name, environment, (bounds or {}).get(name)) for name, environment in named.items()]
    config = replace("a search", settings_for(language, named), settings)
    config.validate()
    regime = Searches(tasks, list(named), config, seed, num_programs, executor)
    about = {"environments": ", ".join(named), "seed": str(seed)}
    why = "a search ends with its finalists"
    with opened(folder, "evolve", language, config, num_programs, about, "num_programs", why_as_long=why) as run:
        stopped = drive(regime, run, callbacks)
        go_on_or_end(stopped, run)
        end = lambda number: go_on_or_end(stopped._replace(signal=number), run)
        return regime.result(end, run.clock.cpu_seconds() if run and not executor else None)


def settings_for(language: str, names: Iterable[str]) -> EvolutionConfig:
    """Return the settings of a search in these environments: losses begin with Q(s)[a], targets with nothing.

    Where all environments are toys, agents that learn by losses are small, and three of them score a program.
    """
    config = EvolutionConfig(language=language)
    if language == "targets":
        return dataclasses.replace(config, start="", num_frozen=0, chunk=25_600)
    return dataclasses.replace(config, **OF_TOYS) if all(name.startswith("toy/") for name in names) else config


def _task(name: str, environment: Any, bounds: tuple[float, float] | None) -> Task:
    if environment == name and bounds is None:
        return task_of(name)
    environment = as_environment(environment)
    if not isinstance(environment, Environment):
        raise ValueError(f"environment {name!r} is stepped on the host, expected one in JAX, in which lanes live")
    if bounds is None:
        raise ValueError(
            f"environment {name!r} has no bounds that are known, expected some: bounds={{{name!r}: (0, 1)}}"
        )
    return Task(environment, *bounds)
