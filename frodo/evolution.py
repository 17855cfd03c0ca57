"""The evolution regime: programs are varied, and kept by how well fresh agents learn by them (Co-Reyes et al. 2021).

Regularised evolution (Real et al. 2019; Algorithm 2 of the paper): the best of a few members drawn at random is varied,
its child becomes a member, and the oldest member goes. Children are evaluated in *lanes* (`meta.lanes`), which run in
chunks of steps, all of an environment in one compiled program; lanes that are done get the next programs, as data. The
first environment is the hurdle: a program that does too badly there, with its first seed, sees no other, and no more
seeds.

A program whose gradient is that of an earlier one, whatever its formula, gets the earlier one's score; or, as in the
paper, one whose outputs are.
"""

import collections
import dataclasses
import functools
import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from agents.types import Array
from agents.validation import check_choice
from frodo.devices import gather, shared_out
from frodo.rules import with_prefix
from frodo.target_lanes import TargetLaneConfig, make_target_lanes
from meta.lanes import LaneConfig, Lanes, make_lanes
from meta.program_evaluation import (
    LISTS,
    Feature,
    Instructions,
    ListName,
    assemble,
    fingerprint,
    lists_of,
    outputs,
    registers_of,
)
from meta.program_generation import mutate, random_program
from meta.program_language import FORMULAS, LOSSES, Language, Node, Program, compact, parse, parse_setting
from meta.target_programs import FORMULAS as OF_TARGETS
from meta.target_programs import TARGETS, assembled
from meta.target_programs import fingerprint as target_fingerprint
from toy_envs.base import Environment

BASIC = (("Q", "s"), ("QTarget", "s_next"))  # the outputs of networks that most programs use
COUNTED = (
    "proposals",
    "equal gradients",
    "equal outputs",
    "without gradient",
    "evaluated",
    "cut at the hurdle",
    "not finite",
)
SAME = 1e-4  # fingerprints that differ by less are of one program, those that are less of one without a gradient
MAX_KNOWN = 10_000  # proposals in a row that are nothing new
LENGTHS = ("num_episodes", "max_steps", "exploration")  # settings of a lane that may differ between environments
EQUIVALENCES = ("gradient", "output")  # what programs are told apart by


class Exhausted(Exception):
    """A search meets nothing new any more."""


class Task(NamedTuple):
    """An environment, and the returns between which those of agents are normalised."""

    environment: Environment
    lowest: float
    highest: float


@dataclasses.dataclass
class EvolutionConfig:
    """Settings of a search; population, tournament and mutation are the paper's."""

    language: str = "losses"  # of value-based agents, or "targets" of actor-critics
    population_size: int = 300
    tournament_size: int = 25
    mutation_share: float = 0.95  # of proposals; the others are new random programs
    start: str = "Q(s)[a]"  # a formula, or the name of one, that all first programs begin with; "" for nothing
    num_frozen: int = 2  # nodes of it that no mutation changes
    hurdle: float = 0.6  # the first seed's score in the first environment from which a program gets all others
    equivalence: str = "gradient"  # or "output", as in the paper: programs equal in that have one score
    num_seeds: int = 1  # agents of an evaluation in an environment
    num_lanes: int = 32  # of an environment, for programs that need no more than Q(s) and Q_targ(s_next)
    num_full_lanes: int = 8  # of an environment, for all programs; with start="" most need one
    chunk: int = 1000  # steps of all lanes between two looks at them
    num_episodes: tuple[int, ...] = ()  # in each environment; () for lane.num_episodes in all
    max_steps: tuple[int, ...] = ()  # the same, of lane.max_steps
    exploration: tuple[int, ...] = ()  # the same, of lane.exploration
    lane: LaneConfig = dataclasses.field(default_factory=LaneConfig)
    target_lane: TargetLaneConfig = dataclasses.field(default_factory=TargetLaneConfig)

    @property
    def kind(self) -> "Kind":
        return KINDS[self.language]

    def validate(self) -> None:
        """Raise a ValueError that names the first bad setting, its value and what was expected."""
        check_choice("language", self.language, KINDS)
        for name in ("population_size", "tournament_size", "num_seeds", "num_lanes", "num_full_lanes", "chunk"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, expected an integer of at least 1")
        if self.tournament_size > self.population_size:
            raise ValueError(
                f"tournament_size is {self.tournament_size}, expected at most population_size ({self.population_size})"
            )
        if not 0 <= self.mutation_share <= 1:
            raise ValueError(f"mutation_share is {self.mutation_share}, expected a number from 0 to 1")
        check_choice("equivalence", self.equivalence, EQUIVALENCES)
        num = min(len(self.parse_start()), self.kind.language.max_nodes - 1)
        if not 0 <= self.num_frozen <= num:
            raise ValueError(f"num_frozen is {self.num_frozen}, expected 0 to {num}, by the nodes of start")
        if not math.isfinite(self.hurdle):
            raise ValueError(f"hurdle is {self.hurdle}, expected a number")
        for name in LENGTHS:
            if getattr(self, name) and self.language != "losses":
                raise ValueError(f"{name} is {getattr(self, name)}, expected none: targets have target_lane.budget")
            if any(value < 1 for value in getattr(self, name)):
                raise ValueError(f"{name} is {getattr(self, name)}, expected integers of at least 1")
        with_prefix("lane", self.lane.validate)
        with_prefix("target_lane", self.target_lane.validate)

    def in_tasks(self, num: int) -> "list[EvolutionConfig]":
        """Return the settings for each of `num` environments.

        Raises:
          ValueError: if another number of them have lengths of their own.
        """
        given = {name: getattr(self, name) for name in LENGTHS if getattr(self, name)}
        for name, values in given.items():
            if len(values) != num:
                raise ValueError(f"{name} is {values}, expected a number for each of {num} environments, or none")
        lanes = [dataclasses.replace(self.lane, **{name: own[i] for name, own in given.items()}) for i in range(num)]
        return [dataclasses.replace(self, lane=lane) for lane in lanes]

    def parse_start(self) -> Program:
        kind = self.kind
        return parse_setting("start", kind.language, self.start, kind.formulas) if self.start else ()


class Outcome(NamedTuple):
    """What an evaluation came to: the mean normalised return of all its episodes, 0 if parameters were not finite."""

    score: float
    num_steps: int
    is_finite: bool


class Job(NamedTuple):
    """An evaluation to be done: which record's program, in which task, with which seed."""

    record: int
    task: int
    seed: int


@dataclasses.dataclass
class Record:
    """A program that was evaluated, or is being so.

    Attributes:
      number: in the order of proposals.
      parent: the number of the record whose program was varied; None for a random program.
      scores: of each task that it saw, so far a score for each seed, in the order in which they ended.
      score: the sum over tasks of the mean scores; None until all are known.
      num_steps: environment steps of its agents.
      is_finite: whether the parameters of all its agents were.
      waiting: equal programs that will be members when the score is known.
    """

    number: int
    program: Program
    parent: int | None = None
    scores: dict[int, list[float]] = dataclasses.field(default_factory=dict)
    score: float | None = None
    num_steps: int = 0
    is_finite: bool = True
    waiting: list[Program] = dataclasses.field(default_factory=list)


class Pool:
    """The lanes of one environment that share a compiled program."""

    def __init__(
        self,
        task: Task,
        functions: Lanes,
        num: int,
        language: Language,
        registers: Mapping[Feature, int],
        wanted: int = 0,
        fits: Callable[[Program], bool] = lambda program: True,
    ):
        """Make idle lanes.

        Args:
          task, functions, num: where agents live, what they do, and how many.
          language, registers: of programs, and what of their inputs is where.
          wanted: episodes of an evaluation, 0 where it does not end by them.
          fits: whether a program can be evaluated here.
        """
        self._task, self._num, self._wanted, self.fits = task, num, wanted, fits
        self._assemble = lambda program: assemble(language, program, registers)
        devices = jax.devices()
        if jax.process_count() > 1 and num % len(devices):
            raise ValueError(f"{num} lanes, expected a multiple of the {len(devices)} devices of all processes")
        init = shared_out(lambda key_data: jax.vmap(functions.init)(jax.random.wrap_key_data(key_data)), num, devices)

        def run(instructions: Instructions, longest: Array, lanes: Any, num_steps: int) -> Any:
            longest = jnp.broadcast_to(longest, (num,))

            def of_share(given):
                instructions, longest, lanes = given
                step = lambda one, lane: functions.run(one, longest[0], lane, num_steps)
                return jax.vmap(step)(instructions, lanes)

            return shared_out(of_share, num, devices)((instructions, longest, lanes))

        def renew(lanes: Any, key_data: Array, is_new: Array) -> Any:
            choose = lambda new, old: jnp.where(jnp.reshape(is_new, (-1, *[1] * (old.ndim - 1))), new, old)
            return jax.tree.map(choose, init(key_data), lanes)

        self._run = jax.jit(run, static_argnums=3, donate_argnums=2)
        self._renew = jax.jit(renew, donate_argnums=0)
        self.jobs: list[Job | None] = [None] * num
        nothing = parse(language, "r + r")
        self.programs = [nothing] * num
        self._new: dict[int, np.ndarray] = {}
        rows = self._assemble(nothing)
        self._instructions = jax.tree.map(lambda x: np.tile(x[None], (num, *[1] * x.ndim)), rows)
        self.lanes: Any = jax.jit(init)(np.asarray(jax.random.key_data(jax.random.split(jax.random.key(0), num))))

    @property
    def free(self) -> list[int]:
        return [i for i, job in enumerate(self.jobs) if job is None]

    def assign(self, i: int, job: Job, program: Program, key: Array) -> None:
        """Begin an evaluation in a free lane."""
        self.jobs[i], self._new[i] = job, np.asarray(jax.random.key_data(key))
        self._set(i, program)

    def restore(self, lanes: Any, jobs: list[Job | None], programs: Sequence[Program]) -> None:
        """Go on with the lanes, jobs and programs of another pool."""
        self.lanes, self.jobs = lanes, list(jobs)
        for i, program in enumerate(programs):
            self._set(i, program)

    def _set(self, i: int, program: Program) -> None:
        self.programs[i] = program
        one = self._assemble(program)
        for rows, row in zip(self._instructions, one, strict=True):
            np.asarray(rows)[i] = row

    def run(self, num_steps: int, hurdle: float = -np.inf) -> list[tuple[Job, Outcome]]:
        """Run all lanes, and return the evaluations that ended, in order.

        With the first seed, one that could not reach the hurdle any more with returns of `highest` from now on ends
        with what it has.
        """
        if all(job is None for job in self.jobs):
            return []
        if self._new:
            is_new = np.isin(np.arange(self._num), list(self._new))
            some = next(iter(self._new.values()))
            key_data = np.stack([self._new.get(i, some) for i in range(self._num)])
            self.lanes = self._renew(self.lanes, key_data, is_new)
            self._new = {}
        longest = max(int(self._instructions.num[i]) for i, job in enumerate(self.jobs) if job)
        self.lanes = self._run(self._instructions, longest, self.lanes, num_steps)
        names = ("num_episodes", "return_sum", "num_steps", "is_over", "is_finite")
        num, total, steps, is_over, is_finite = jax.device_get(gather([getattr(self.lanes, x) for x in names]))
        lowest, highest, wanted = self._task.lowest, self._task.highest, self._wanted
        ended = []
        for i, job in enumerate(self.jobs):
            if job is None:
                continue
            scores = (total[i] - num[i] * lowest) / (highest - lowest)  # a sum
            is_hopeless = job.seed == 0 and wanted > 0 and (scores + wanted - num[i]) / wanted < hurdle
            if is_over[i] or is_hopeless:
                score = float(scores / max(1, num[i])) if is_finite[i] else 0.0
                ended.append((job, Outcome(score, int(steps[i]), bool(is_finite[i]))))
                self.jobs[i] = None
        return ended


def fits(program: Program, lists: tuple[ListName, ...], has_draws: bool) -> bool:
    """Whether lanes with these outputs of networks, and with or without random numbers, can evaluate a loss."""
    is_random = any(node.operator in ("Normal", "Uniform") for node in compact(LOSSES, program))
    return set(lists_of(LOSSES, program)) <= set(lists) and (has_draws or not is_random)


def _loss_pools(task: Task, config: "EvolutionConfig") -> list[Pool]:
    """Lanes for programs that need two outputs of networks, and fewer for all programs."""

    def pool(num: int, lists: tuple[ListName, ...], has_draws: bool) -> Pool:
        functions, wanted = make_lanes(task.environment, config.lane, lists, has_draws), config.lane.num_episodes
        suits = lambda program: fits(program, lists, has_draws)
        return Pool(task, functions, num, LOSSES, registers_of(lists), wanted, suits)

    return [pool(config.num_lanes, BASIC, has_draws=False), pool(config.num_full_lanes, LISTS, has_draws=True)]


def _target_pools(task: Task, config: "EvolutionConfig") -> list[Pool]:
    functions = make_target_lanes(task.environment, config.target_lane)
    return [Pool(task, functions, config.num_lanes, TARGETS, {name: i for i, name in enumerate(TARGETS.inputs)})]


def _loss_fingerprints(program: Program) -> dict[str, Array]:
    instructions = assemble(LOSSES, program, registers_of(LISTS))
    return {"gradient": fingerprint(instructions), "output": outputs(instructions)}


def _target_fingerprints(program: Program) -> dict[str, Array]:
    found = target_fingerprint(assembled(program))
    return {"gradient": found, "output": found}


@functools.lru_cache(maxsize=10_000)
def _fingerprints(language: str, program: Program) -> dict[str, np.ndarray]:
    """Return what a compact program is told apart by; kept, as most mutations change nodes that nothing depends on."""
    return jax.device_get(KINDS[language].fingerprints(program))


class _Rows:
    """Vectors of one length, to look up which is nearest."""

    def __init__(self):
        self._rows, self._num = np.zeros((0, 0)), 0

    def append(self, row: np.ndarray) -> None:
        if self._num == len(self._rows):
            more = np.zeros((max(64, self._num), len(row)), row.dtype)
            self._rows = np.concatenate([self._rows, more]) if self._num else more
        self._rows[self._num] = row
        self._num += 1

    def nearest(self, row: np.ndarray) -> tuple[int, float]:
        """Return the number of the nearest one, by the largest difference, and the distance; of several the first."""
        distance = np.max(np.abs(self._rows[: self._num] - row), axis=1)
        found = int(np.argmin(distance))
        return found, float(distance[found])


class Kind(NamedTuple):
    """What is searched for.

    Attributes:
      language: of the programs.
      formulas: known programs by name.
      pools: task, its settings -> lanes, those that fit fewest programs first.
      fingerprints: program -> what it is told apart by, of EQUIVALENCES; "gradient" is about 0 without one.
    """

    language: Language
    formulas: Mapping[str, str]
    pools: Callable[[Task, EvolutionConfig], list[Pool]]
    fingerprints: Callable[[Program], dict[str, Array]]


KINDS = {
    "losses": Kind(LOSSES, FORMULAS, _loss_pools, _loss_fingerprints),
    "targets": Kind(TARGETS, OF_TARGETS, _target_pools, _target_fingerprints),
}


class Evaluator:
    """Evaluations of programs in several tasks, as many at once as there are lanes.

    Args:
      tasks: the first is the hurdle.
      seed: of the agents; all programs get the same keys.
    """

    def __init__(self, tasks: Sequence[Task], config: EvolutionConfig, seed: int):
        self._config, self._seed = config, seed
        self.queues: list[collections.deque[tuple[Job, Program]]] = [collections.deque() for _ in tasks]
        self.pools = [
            config.kind.pools(task, own) for task, own in zip(tasks, config.in_tasks(len(tasks)), strict=True)
        ]

    def submit(self, job: Job, program: Program) -> None:
        self.queues[job.task].append((job, program))

    @property
    def is_idle(self) -> bool:
        return not any(self.queues) and all(job is None for own in self.pools for pool in own for job in pool.jobs)

    def has_room(self, task: int) -> bool:
        """Give lanes what waits for one; say whether a lane is left, and no more waits than one round of full lanes."""
        self._fill(self.queues[task], self.pools[task])
        return any(pool.free for pool in self.pools[task]) and len(self.queues[task]) < self._config.num_full_lanes

    def run(self, hurdle: float) -> list[tuple[Job, Outcome]]:
        """Fill the lanes, run a chunk, and return the evaluations that ended."""
        ended = []
        for task, (queue, pools) in enumerate(zip(self.queues, self.pools, strict=True)):
            self._fill(queue, pools)
            for pool in pools:
                ended += pool.run(self._config.chunk, hurdle if task == 0 else -np.inf)
        return ended

    def _fill(self, queue: collections.deque[tuple[Job, Program]], pools: Sequence[Pool]) -> None:
        for _ in range(len(queue)):
            job, program = queue.popleft()
            pool = next((pool for pool in pools if pool.free and pool.fits(program)), None)
            if pool is None:
                queue.append((job, program))
            else:
                key = jax.random.fold_in(jax.random.key(self._seed), job.task * 2**16 + job.seed)
                pool.assign(pool.free[0], job, program, key)


def _program(nodes: Sequence[Sequence[Any]]) -> Program:
    """Read a program from what JSON made of it."""
    return tuple(Node(operator, tuple(arguments), value) for operator, arguments, value in nodes)


class Evolution:
    """A search under way.

    Attributes:
      records: all programs that were evaluated, or are being so.
      members: the population, the oldest first: programs, each with the number of the record that has its score.
      counts: proposals, of them those equal to a record in their gradients, those with the outputs of an earlier
        proposal (by a hash, as in the paper), and those without a gradient; evaluations, of them cut at the hurdle.
    """

    def __init__(self, tasks: Sequence[Task], config: EvolutionConfig, seed: int):
        config.validate()
        self.config, self._tasks = config, list(tasks)
        self._trainings = [(task, seed) for task in range(len(self._tasks)) for seed in range(config.num_seeds)]
        self._rng = np.random.default_rng(seed)
        self._evaluator = Evaluator(tasks, config, seed)
        self._start = config.parse_start()
        self._kind = config.kind
        self._known = {name: _Rows() for name in EQUIVALENCES}
        self._hashes: set[str] = set()  # of the outputs of all proposals
        self.records: list[Record] = []
        self.members: collections.deque[tuple[Program, int | None]] = collections.deque(maxlen=config.population_size)
        self.counts = collections.Counter[str]()

    @property
    def best(self) -> Record | None:
        scored = [record for record in self.records if record.score is not None]
        return max(scored, key=lambda record: (record.score, -record.number), default=None)

    @property
    def all_counts(self) -> dict[str, int]:
        """The counts by name, 0 where nothing was counted yet."""
        return {name: self.counts[name] for name in COUNTED}

    def step(self, num_programs: int) -> None:
        """Propose programs for lanes that wait, as long as fewer than `num_programs` were, and run a chunk.

        Raises:
          Exhausted: if MAX_KNOWN proposals in a row were equal to earlier ones, or without a gradient.
        """
        while len(self.records) < num_programs and self._evaluator.has_room(0):
            num_records = len(self.records)
            for _ in range(MAX_KNOWN):
                self._propose()
                if len(self.records) > num_records:
                    break
            else:
                raise Exhausted(
                    f"{MAX_KNOWN:,} programs in a row were equal to one of the {num_records} before, or without a "
                    "gradient: the search has found what its start and mutations reach"
                )
        for job, outcome in self._evaluator.run(self.config.hurdle if len(self._trainings) > 1 else -np.inf):
            self._collect(job, outcome)

    @property
    def is_idle(self) -> bool:
        return self._evaluator.is_idle

    def rescore(
        self, programs: Sequence[Program], seeds: Sequence[int], on_chunk: Callable[[int], None] = lambda num: None
    ) -> np.ndarray:
        """Evaluate programs in all tasks, by the lanes of a search that is idle.

        Args:
          programs, seeds: what is evaluated, with which seeds; the search's own are those below `num_seeds`.
          on_chunk: called after each chunk of steps with the number of scores that are there.
        Returns:
          scores [programs, tasks, seeds].
        """
        scores = np.full((len(programs), len(self._tasks), len(seeds)), np.nan)
        for i, program in enumerate(programs):
            for task in range(len(self._tasks)):
                for seed in seeds:
                    self._evaluator.submit(Job(i, task, seed), program)
        while not self.is_idle:
            for job, outcome in self._evaluator.run(-np.inf):
                scores[job.record, job.task, list(seeds).index(job.seed)] = outcome.score
            on_chunk(int(np.sum(np.isfinite(scores))))
        return scores

    def _propose(self) -> None:
        self.counts["proposals"] += 1
        is_first = self.counts["proposals"] <= self.config.population_size or not self.members
        if is_first or self._rng.random() >= self.config.mutation_share:
            program, parent = random_program(self._kind.language, self._rng, self._start), None
        else:
            drawn = self._rng.choice(len(self.members), min(self.config.tournament_size, len(self.members)), False)
            varied, parent = max((self.members[i] for i in drawn), key=self._score_of)
            program = mutate(self._kind.language, self._rng, varied, self.config.num_frozen)
        own = self._fingerprints_of(program)
        outputs_hash = hashlib.blake2b((np.round(own["output"], 4) + 0.0).tobytes(), digest_size=8).hexdigest()
        self.counts["equal outputs"] += outputs_hash in self._hashes
        self._hashes.add(outputs_hash)
        if np.max(np.abs(own["gradient"])) < SAME:
            self.counts["without gradient"] += 1
            self.members.append((program, None))
            return
        equal = {name: self._equal(name, own[name]) for name in EQUIVALENCES}
        self.counts["equal gradients"] += equal["gradient"] is not None
        if (found := equal[self.config.equivalence]) is not None:
            self._join(program, found)
            return
        self._remember(own)
        record = Record(len(self.records), program, parent, waiting=[program])
        self.records.append(record)
        self._submit(record, self._trainings[:1])

    def _fingerprints_of(self, program: Program) -> dict[str, np.ndarray]:
        return _fingerprints(self.config.language, compact(self._kind.language, program))

    def _equal(self, equivalence: str, own: np.ndarray) -> Record | None:
        """Return the record that is nearest, if it counts as the same."""
        if not self.records:
            return None
        nearest, distance = self._known[equivalence].nearest(own)
        return self.records[nearest] if distance < SAME else None

    def _remember(self, own: Mapping[str, np.ndarray]) -> None:
        for name, known in self._known.items():
            known.append(own[name])

    @property
    def lanes(self) -> list[list[Any]]:
        """The lanes of each pool of each task, which the next chunk changes in place."""
        return [[pool.lanes for pool in own] for own in self._evaluator.pools]

    def state(self) -> tuple[list[list[Any]], dict[str, Any]]:
        """Return all that the search goes on from: the lanes, and the rest as what JSON can hold."""
        evaluator = self._evaluator
        told = {
            "rng": self._rng.bit_generator.state,
            "records": [dataclasses.asdict(record) for record in self.records],
            "members": list(self.members),
            "counts": dict(self.counts),
            "hashes": sorted(self._hashes),
            "queues": [list(queue) for queue in evaluator.queues],
            "pools": [[(pool.jobs, pool.programs) for pool in own] for own in evaluator.pools],
        }
        return self.lanes, json.loads(json.dumps(told))

    def restore(self, lanes: list[list[Any]], told: Mapping[str, Any]) -> None:
        """Go on from a state of a search with the same tasks and settings."""
        self._rng.bit_generator.state = told["rng"]
        self.counts, self._hashes = collections.Counter(told["counts"]), set(told["hashes"])
        for record in told["records"]:
            scores = {int(task): scores for task, scores in record["scores"].items()}
            programs = {"program": _program(record["program"]), "waiting": [_program(x) for x in record["waiting"]]}
            self.records.append(Record(**record | programs | {"scores": scores}))
            self._remember(self._fingerprints_of(self.records[-1].program))
        self.members.extend((_program(program), number) for program, number in told["members"])
        for queue, jobs in zip(self._evaluator.queues, told["queues"], strict=True):
            queue.extend((Job(*job), _program(program)) for job, program in jobs)
        for pools, all_lanes, own in zip(self._evaluator.pools, lanes, told["pools"], strict=True):
            for pool, of_pool, (jobs, programs) in zip(pools, all_lanes, own, strict=True):
                pool.restore(of_pool, [job and Job(*job) for job in jobs], [_program(x) for x in programs])

    def _score_of(self, member: tuple[Program, int | None]) -> float:
        score = None if member[1] is None else self.records[member[1]].score
        return -np.inf if score is None else score

    def _join(self, program: Program, record: Record) -> None:
        if record.score is None:
            record.waiting.append(program)
        else:
            self.members.append((program, record.number))

    def _submit(self, record: Record, trainings: Sequence[tuple[int, int]]) -> None:
        for task, seed in trainings:
            record.scores.setdefault(task, [])
            self._evaluator.submit(Job(record.number, task, seed), record.program)

    def _collect(self, job: Job, outcome: Outcome) -> None:
        record = self.records[job.record]
        record.scores[job.task].append(outcome.score)
        record.num_steps += outcome.num_steps
        record.is_finite &= outcome.is_finite
        num_scores = sum(len(scores) for scores in record.scores.values())
        is_first = num_scores == 1 < len(self._trainings)
        is_cut = is_first and not (outcome.score >= self.config.hurdle and record.is_finite)
        if is_first and not is_cut:
            self._submit(record, self._trainings[1:])
        if num_scores < len(self._trainings) and not is_cut:
            return
        total = sum(float(np.mean(scores)) for scores in record.scores.values())
        self.counts["evaluated"] += 1
        self.counts["cut at the hurdle"] += is_cut
        self.counts["not finite"] += not record.is_finite
        record.score = total if record.is_finite else 0.0
        for program in record.waiting:
            self.members.append((program, record.number))
        record.waiting = []
