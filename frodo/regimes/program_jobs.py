"""Evaluations of programs as jobs: a worker of an executor that is free gets the next one (Co-Reyes et al. 2021)."""

import collections
import concurrent.futures
import dataclasses
import math
import pickle
import threading
from collections.abc import Sequence
from concurrent.futures import Executor, Future

from frodo.regimes.program_lanes import Evaluator, Job, Outcome, Pool, Task
from frodo.regimes.search_settings import EvolutionConfig
from frodo.runs import workers
from frodo.runs.errors import RunError
from meta.programs.language import Program, to_formula

SECONDS = 5  # that are waited for a score, before signals are looked at

_own = threading.local()  # what a worker evaluates by


class Evaluations:
    """Evaluations on an executor, as `Evaluator` has them in lanes of this process.

    What is evaluated stays in its queue until its score is there, so that a search that is stopped goes on with it.

    Args:
      tasks, config, seed: as those of `Evaluator`; no more evaluations are under way than there are lanes.
      executor: that has them.
    Raises:
      ValueError: if the environments cannot be pickled.
    """

    def __init__(self, tasks: Sequence[Task], config: EvolutionConfig, seed: int, executor: Executor):
        of_worker = dataclasses.replace(config, num_lanes=1, num_full_lanes=1)
        try:
            self._evaluator, self._executor = pickle.dumps((list(tasks), of_worker, seed)), executor
        except Exception as error:  # whatever an environment of someone else raises
            raise ValueError(f"environments cannot be pickled for the workers of an executor: {error}") from error
        self._most, self._language = config.num_lanes + config.num_full_lanes, config.kind.language
        self.num_first = self._most
        self.under_way: dict[int, float] = {}  # workers tell nothing before their scores
        self.pools: list[list[Pool]] = [[] for _ in tasks]
        self.queues: list[collections.deque[tuple[Job, Program]]] = [collections.deque() for _ in tasks]
        self._handed: dict[Future, tuple[Job, Program]] = {}

    def submit(self, job: Job, program: Program) -> None:
        self.queues[job.task].append((job, program))

    @property
    def is_idle(self) -> bool:
        return not any(self.queues)

    def has_room(self, task: int) -> bool:
        """Say whether fewer evaluations are under way, in all tasks, than may."""
        return sum(map(len, self.queues)) < self._most

    def run(self, hurdle: float = -math.inf, least: float = -math.inf) -> list[tuple[Job, Outcome]]:
        """Hand over what waits, and return the evaluations that ended, at once if some have, else within SECONDS."""
        handed = set(self._handed.values())
        for one in (x for queue in self.queues for x in queue if x not in handed):
            self._handed[workers.submit(self._executor, evaluate, self._evaluator, hurdle, least, *one)] = one
        done, _ = concurrent.futures.wait(self._handed, SECONDS, concurrent.futures.FIRST_COMPLETED)
        ended = []
        for future in done:
            job, program = self._handed.pop(future)
            try:
                ended.append((job, workers.result_of(future)))
            except Exception as error:
                if not workers.is_lost(error):
                    raise
                formula = to_formula(self._language, program)
                raise RunError(f"the evaluation of {formula} was lost with its workers, again and again") from error
            self.queues[job.task].remove((job, program))
        return sorted(ended)

    def cancel(self) -> None:
        """Let nobody evaluate anything for this search any more; what waits is handed over again by `run`."""
        for future in self._handed:
            future.cancel()
        self._handed = {}


def evaluate(evaluator: bytes, hurdle: float, least: float, job: Job, program: Program) -> Outcome:
    """Evaluate a program, on a worker, which keeps what it has compiled for the next one."""
    if getattr(_own, "of", None) != evaluator:
        _own.of, _own.evaluator = evaluator, Evaluator(*pickle.loads(evaluator))
    _own.evaluator.submit(job, program)
    while not workers.is_cancelled():
        for ended, outcome in _own.evaluator.run(hurdle, least):
            if ended == job:
                return outcome
    _own.of = None  # whose lane is not done
    raise concurrent.futures.CancelledError
