"""The evolution regime: programs are varied, and kept by how well fresh agents learn by them (Co-Reyes et al. 2021).

Regularised evolution (Real et al. 2019; Algorithm 2 of the paper): the best of a few members drawn at random is varied,
its child becomes a member, and the oldest member goes. Children are evaluated in *lanes* (`meta.programs.lanes`), which
run in chunks of steps, all of an environment in one compiled program; lanes that are done get the next programs, as
data. Or they are jobs of an executor (`program_jobs`). The first environment is the hurdle: a program that does too
badly there, with its first seed, sees no other, and no more seeds. Its first training ends at half, too, where its
score so far is low among those of earlier programs. One whose score is near the best gets more seeds before it counts,
as the best of many scores is lucky.

A program whose gradient is that of an earlier one, whatever its formula, is not evaluated; or, as in the paper, one
whose outputs are. It takes the earlier one's place in the population, with its age: were it a young member, copies of
one program would never grow old, and fill the population. Programs without a gradient are no members.
"""

import collections
import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from typing import Any

import numpy as np

from agents.validation import check_count
from frodo.logs import note
from frodo.regimes.program_jobs import Evaluations
from frodo.regimes.program_lanes import Evaluator, Job, Outcome, Task
from frodo.regimes.search_settings import MAX_SEEDS, EvolutionConfig
from meta.programs.equivalence import EQUIVALENCES, SAME, Rows
from meta.programs.generation import mutate, random_program
from meta.programs.language import Node, Program, compact

COUNTED = (
    "proposals",
    "equal gradients",
    "equal outputs",
    "without gradient",
    "evaluated",
    "stopped at half",
    "cut at the hurdle",
    "confirmed",
    "not finite",
)
VERSION = 5  # of how programs are scored and distinguished, random numbers and all; before 4 by other probes
MIN_HALVES = 20  # scores at half, from which a training is stopped by its rank
NEAR = 0.1  # the share of scores that are near the best
ALL_NOT_FINITE = 10  # programs, of which it is said
MAX_KNOWN = 10_000  # proposals in a row that are nothing new


class Exhausted(Exception):
    """A search meets nothing new any more."""


@dataclasses.dataclass
class Record:
    """A program that was evaluated, or is being so.

    Attributes:
      number: in the order of proposals.
      parent: the number of the record whose program was varied; None for a random program.
      scores: of each task that it saw, so far a score for each seed, in the order in which they ended.
      score: the sum over tasks of the medians over seeds, as the mean of a few is that of the luckiest; None until all
        are known.
      num_steps: environment steps of its agents.
      num_trainings: agents that were trained, or will be.
      is_finite: whether the parameters of all its agents were.
      half: the score of its first agent when half of the training was done; None where it did not come so far.
    """

    number: int
    program: Program
    parent: int | None = None
    scores: dict[int, list[float]] = dataclasses.field(default_factory=dict)
    score: float | None = None
    num_steps: int = 0
    num_trainings: int = 0
    is_finite: bool = True
    half: float | None = None


def _program(nodes: Sequence[Sequence[Any]]) -> Program:
    """Read a program from what JSON made of it."""
    return tuple(Node(operator, tuple(arguments), value) for operator, arguments, value in nodes)


class Evolution:
    """A search under way, in lanes of this process or on an executor.

    Attributes:
      records: all programs that were evaluated, or are being so.
      members: the population, the oldest first: programs, each with the number of the record that has its score, no
        two with the same.
      counts: proposals, of them those equal to a record in their gradients, those with the outputs of an earlier
        proposal (by a hash, as in the paper), and those without a gradient; evaluations, of them stopped at half,
        and cut at the hurdle; those whose score is, or was, to be confirmed by more seeds.
    """

    def __init__(self, tasks: Sequence[Task], config: EvolutionConfig, seed: int, executor: Executor | None = None):
        config.validate()
        if not tasks:
            raise ValueError("tasks are empty, expected at least one environment to evaluate programs in")
        check_count("seed", seed, 0)
        self.config, self._tasks = config, list(tasks)
        self._trainings = [(task, seed) for task in range(len(self._tasks)) for seed in range(config.num_seeds)]
        self._rng = np.random.default_rng(seed)
        self._seed, self._executor = seed, executor
        self.empty_lanes()
        self._start = config.parse_start()
        self._known = {name: Rows() for name in EQUIVALENCES}
        self._hashes: set[str] = set()  # of the outputs of all proposals
        self.records: list[Record] = []
        self.members: collections.deque[tuple[Program, int]] = collections.deque(maxlen=config.population_size)
        self.counts = collections.Counter[str]()

    @property
    def best(self) -> Record | None:
        scored = [record for record in self.records if record.score is not None]
        return max(scored, key=lambda record: (record.score, -record.number), default=None)

    def step(self, num_programs: int) -> None:
        """Propose programs for lanes that wait, as long as fewer than `num_programs` were, and run a chunk.

        A search begins with few programs, and has one more under way for each that was evaluated.

        Raises:
          Exhausted: if MAX_KNOWN proposals in a row were equal to earlier ones, or without a gradient.
        """
        num_programs = min(num_programs, self._evaluator.num_first + 2 * self.counts["evaluated"])
        while len(self.records) < num_programs and self._evaluator.has_room(0):
            if not any(self._propose() for _ in range(MAX_KNOWN)):
                raise Exhausted(
                    f"{MAX_KNOWN:,} programs in a row were equal to one of the {len(self.records)} before, or without "
                    "a gradient: the search has found what its start and mutations reach"
                )
        hurdle = self.config.hurdle if len(self._trainings) > 1 else -np.inf
        for job, outcome in self._evaluator.run(hurdle, self._least_half()):
            self._collect(job, outcome)

    def empty_lanes(self) -> None:
        """Drop what is being evaluated: the search itself cannot go on then."""
        how = self._tasks, self.config, self._seed
        self._evaluator = Evaluations(*how, self._executor) if self._executor else Evaluator(*how)

    def cancel(self) -> None:
        """Stop what an executor evaluates."""
        if isinstance(self._evaluator, Evaluations):
            self._evaluator.cancel()

    @property
    def is_idle(self) -> bool:
        return self._evaluator.is_idle

    @property
    def num_done(self) -> float:
        """Programs that were evaluated, and the shares of those under way."""
        under_way = self._evaluator.under_way
        trained = lambda record: sum(map(len, record.scores.values())) + under_way.get(record.number, 0.0)
        share = lambda record: min(1.0, trained(record) / len(self._trainings))  # what confirms it is not counted
        return self.counts["evaluated"] + sum(share(x) for x in self.records if x.score is None)

    def rescore(
        self, programs: Sequence[Program], seeds: Sequence[int], on_chunk: Callable[[int], None] = lambda num: None
    ) -> tuple[np.ndarray, int]:
        """Evaluate programs in all tasks, by the lanes of a search that is idle.

        Args:
          programs, seeds: what is evaluated, with which seeds: all programs have the same draws, which no program of
            the search had.
          on_chunk: called after each chunk of steps with the number of scores that are there.
        Returns:
          scores [programs, tasks, seeds], and the environment steps of all agents.
        Raises:
          ValueError: a seed is above 65,535, where the draws of another task begin.
        """
        if max(seeds) >= MAX_SEEDS:
            raise ValueError(f"seeds go up to {max(seeds)}, expected numbers up to {MAX_SEEDS - 1}")
        scores, num_steps = np.full((len(programs), len(self._tasks), len(seeds)), np.nan), 0
        for i, program in enumerate(programs):
            for task in range(len(self._tasks)):
                for seed in seeds:
                    self._evaluator.submit(Job(i, task, seed), program)
        while not self.is_idle:
            for job, outcome in self._evaluator.run():
                scores[job.record, job.task, list(seeds).index(job.seed)] = outcome.score
                num_steps += outcome.num_steps
            on_chunk(int(np.sum(np.isfinite(scores))))
        return scores, num_steps

    def _propose(self) -> bool:
        """Propose a program; returns whether it is new, and is evaluated."""
        self.counts["proposals"] += 1
        is_first = self.counts["proposals"] <= self.config.population_size or not self.members
        if is_first or self._rng.random() >= self.config.mutation_share:
            program, parent = random_program(self.config.kind.language, self._rng, self._start), None
        else:
            drawn = self._rng.choice(len(self.members), min(self.config.tournament_size, len(self.members)), False)
            score_of = lambda member: self.records[member[1]].score or 0.0
            varied, parent = max((self.members[i] for i in drawn), key=score_of)
            program = mutate(self.config.kind.language, self._rng, varied, self.config.num_frozen)
        own = self._fingerprints_of(program)
        outputs_hash = hashlib.blake2b((np.round(own["output"], 4) + 0.0).tobytes(), digest_size=8).hexdigest()
        self.counts["equal outputs"] += outputs_hash in self._hashes
        self._hashes.add(outputs_hash)
        if np.max(np.abs(own["gradient"])) < SAME:
            self.counts["without gradient"] += 1
            return False
        same = {name: known.same(own[name]) for name, known in self._known.items()}
        self.counts["equal gradients"] += same["gradient"] is not None
        if (number := same[self.config.equivalence]) is None:
            record = Record(len(self.records), program, parent)
            self._remember(record, own)
            self._submit(record, self._trainings[:1])
            return True
        for i, member in enumerate(self.members):
            if member[1] == number:
                self.members[i] = program, number
        return False

    def _fingerprints_of(self, program: Program) -> dict[str, np.ndarray]:
        kind = self.config.kind
        return kind.fingerprints(compact(kind.language, program), self.config.lane.ends)

    def _remember(self, record: Record, fingerprints: Mapping[str, np.ndarray]) -> None:
        self.records.append(record)
        for name, known in self._known.items():
            known.append(fingerprints[name])

    @property
    def lanes(self) -> list[list[Any]]:
        """The lanes of each pool of each task, which the next chunk changes in place."""
        return [[pool.lanes for pool in own] for own in self._evaluator.pools]

    def state(self) -> tuple[list[list[Any]], dict[str, Any]]:
        """Return all that the search goes on from: the lanes, and the rest as what JSON can hold."""
        evaluator = self._evaluator
        told = {
            "version": VERSION,
            "operators": list(self.config.kind.language.operators),
            "rng": self._rng.bit_generator.state,
            "records": [dataclasses.asdict(record) for record in self.records],
            "members": list(self.members),
            "counts": dict(self.counts),
            "hashes": sorted(self._hashes),
            "queues": [list(queue) for queue in evaluator.queues],
            "pools": [[(pool.jobs, pool.programs, list(pool.halves)) for pool in own] for own in evaluator.pools],
        }
        return self.lanes, json.loads(json.dumps(told))

    def restore(self, lanes: list[list[Any]], told: Mapping[str, Any]) -> None:
        """Go on from a state of a search with the same tasks and settings.

        Raises:
          ValueError: if an earlier version began it, which scored or distinguished programs in another way, or its
            language had other operators, which its random numbers choose among.
        """
        if told.get("version") != VERSION:
            raise ValueError("an earlier version began this search, and scored programs in another way: begin anew")
        had, has = told["operators"], list(self.config.kind.language.operators)
        if had != has:
            other = sorted(set(had) ^ set(has)) or [x for x, y in zip(had, has, strict=True) if x != y]
            raise ValueError(f"this search had other operators, or in another order: {', '.join(other)}")
        self._rng.bit_generator.state = told["rng"]
        self.counts, self._hashes = collections.Counter(told["counts"]), set(told["hashes"])
        for record in told["records"]:
            scores = {int(task): scores for task, scores in record["scores"].items()}
            own = Record(**record | {"program": _program(record["program"]), "scores": scores})
            self._remember(own, self._fingerprints_of(own.program))
        self.members.extend((_program(program), number) for program, number in told["members"])
        for queue, jobs in zip(self._evaluator.queues, told["queues"], strict=True):
            queue.extend((Job(*job), _program(program)) for job, program in jobs)
        for pools, all_lanes, own in zip(self._evaluator.pools, lanes, told["pools"], strict=True):
            for pool, of_pool, (jobs, programs, halves) in zip(pools, all_lanes, own, strict=True):
                pool.restore(of_pool, [job and Job(*job) for job in jobs], [_program(x) for x in programs], halves)

    def _submit(self, record: Record, trainings: Sequence[tuple[int, int]]) -> None:
        """Let a record's program be trained, with draws of its own: its luck is not its children's."""
        record.num_trainings += len(trainings)
        for task, seed in trainings:
            record.scores.setdefault(task, [])
            self._evaluator.submit(Job(record.number, task, seed, draw=record.number + 1), record.program)

    def _collect(self, job: Job, outcome: Outcome) -> None:
        record = self.records[job.record]
        record.scores[job.task].append(outcome.score)
        record.num_steps += outcome.num_steps
        record.is_finite &= outcome.is_finite
        if (job.task, job.seed) == (0, 0) and np.isfinite(outcome.half):
            record.half = outcome.half
        if sum(len(scores) for scores in record.scores.values()) < record.num_trainings:
            return
        total = sum(float(np.median(scores)) for scores in record.scores.values())
        is_first = record.num_trainings == 1 < len(self._trainings)
        is_cut = is_first and not (outcome.score >= self.config.hurdle and record.is_finite)
        is_done = is_cut or outcome.is_stopped or not record.is_finite
        if is_first and not is_done:
            self._submit(record, self._trainings[1:])
            return
        if not is_done and record.num_trainings == len(self._trainings) and self._is_near_the_best(total):
            num = self.config.num_seeds
            more = range(num, num + self.config.num_confirming)
            self._submit(record, [(task, seed) for task in range(len(self._tasks)) for seed in more])
            self.counts["confirmed"] += 1
            return
        self.counts["evaluated"] += 1
        self.counts["stopped at half"] += outcome.is_stopped
        self.counts["cut at the hurdle"] += is_cut and not outcome.is_stopped
        self.counts["not finite"] += not record.is_finite
        if self.counts["evaluated"] == self.counts["not finite"] == ALL_NOT_FINITE:
            note(
                f"all agents of the first {ALL_NOT_FINITE} programs ended with parameters that are not finite: what "
                "the environments show may not be, or learning_rate is too large"
            )
        record.score = total if record.is_finite else 0.0
        self.members.append((record.program, record.number))

    def _is_near_the_best(self, score: float) -> bool:
        """Say whether a score is to be confirmed: above all but the best NEAR of earlier ones, cut or not.

        A score that equals theirs is not, as where many programs have the least or the highest one.
        """
        scores = [record.score for record in self.records if record.score is not None]
        return self.config.num_confirming > 0 and (not scores or score > float(np.quantile(scores, 1 - NEAR)))

    def _least_half(self) -> float:
        """Return the score at half of a training below which it is stopped: by rank among those of earlier programs."""
        halves = [record.half for record in self.records if record.half is not None]
        return float(np.quantile(halves, self.config.stopped_share)) if len(halves) >= MIN_HALVES else -np.inf
