"""Lanes in which agents learn by programs side by side, and what waits for one of them (Co-Reyes et al. 2021).

Agents of an environment learn in lanes (`meta.programs.lanes`), in chunks of steps, all in one compiled program; lanes
that are done get the next programs, as data.
"""

import collections
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from agents.types import Array
from frodo.devices import gather, quick_to_compile, shared_out
from frodo.regimes.search_settings import EvolutionConfig
from frodo.regimes.target_lanes import make_target_lanes
from frodo.runs import memory
from frodo.states import is_key
from meta.programs.evaluation import LISTS, Instructions, ListName, assemble, lists_of, registers_of
from meta.programs.lanes import LaneConfig, make_lanes
from meta.programs.language import LOSSES, RANDOM, TARGETS, Language, Program, compact, parse
from toy_envs.base import Environment

BLOCK = 4  # lanes that learn side by side on a CPU: more are no faster there, and fewer are slower
LEAST = (("Q", "s"),)  # the output of a network that suffices for most random programs from Q(s)[a]
BASIC = (("Q", "s"), ("QTarget", "s_next"))  # those that suffice for most that learn


class Task(NamedTuple):
    """An environment, and the returns between which those of agents are normalised."""

    environment: Environment
    lowest: float
    highest: float


class Outcome(NamedTuple):
    """What an evaluation came to.

    Attributes:
      score: the mean normalised return of all its episodes, 0 if parameters were not finite.
      num_steps: environment steps.
      is_finite: whether parameters were.
      half: its score when half of it was done; nan where it was over before.
      is_stopped: whether it was stopped there.
    """

    score: float
    num_steps: int
    is_finite: bool
    half: float
    is_stopped: bool


class Job(NamedTuple):
    """An evaluation to be done.

    Attributes:
      record: whose program.
      task: in which environment.
      seed: the first one takes the hurdle.
      draw: the number of the random draws, of several with a seed: 0 for those that programs share.
    """

    record: int
    task: int
    seed: int
    draw: int = 0


class Kind(NamedTuple):
    """What programs of one kind are run by, in the lanes of a pool.

    Attributes:
      run: `Lanes.run`, which is compiled when the first such program comes.
      assemble: program -> Instructions.
      fits: program -> whether it is of this kind.
    """

    run: Callable[..., Any]
    assemble: Callable[[Program], Instructions]
    fits: Callable[[Program], bool]


class Pool:
    """The lanes of one environment for some kinds of programs; at first all are idle.

    Args:
      task, num: where agents live, and how many.
      init: `Lanes.init`, of all kinds.
      kinds: of programs; one is of the first that fits.
      language: of programs.
      most: environment steps of an evaluation at most.
      wanted: episodes of an evaluation, 0 where it does not end by them.
    """

    def __init__(
        self,
        task: Task,
        num: int,
        init: Callable[[Array], Any],
        kinds: Sequence[Kind],
        language: Language,
        most: int,
        wanted: int = 0,
    ):
        self._task, self._num, self._kinds, self._most, self._wanted = task, num, kinds, most, wanted
        devices = jax.devices()
        if jax.process_count() > 1 and num % len(devices):
            expected = f"a multiple of the {len(devices)} devices of all processes"
            raise ValueError(f"num_lanes or num_full_lanes is {num}, expected {expected}")
        shapes = jax.eval_shape(init, jax.random.key(0))
        memory.check({"num_lanes, num_full_lanes or what a lane has": num * memory.num_bytes(shapes)})

        def empty(is_new: Array) -> Any:
            rows = lambda x: jnp.zeros((len(is_new), *x.shape), x.dtype)
            keys = lambda x: jax.random.wrap_key_data(rows(jax.eval_shape(jax.random.key_data, x)))
            return jax.tree.map(lambda x: keys(x) if is_key(x) else rows(x), shapes)

        def renew(given: tuple[Array, Array, Any]) -> Any:
            is_new, key_data, lanes = given
            order = jnp.argsort(~is_new)

            def of_lane(i: Array, lanes: Any) -> Any:
                new = init(jax.random.wrap_key_data(key_data[order[i]]))
                return jax.tree.map(lambda x, own: x.at[order[i]].set(own), lanes, new)

            return jax.lax.fori_loop(0, jnp.sum(is_new), of_lane, lanes)

        def runs(kind: Kind) -> Callable[..., Any]:
            def run(given: tuple[Array, Instructions, Any], longest: Array, num_steps: int) -> Any:
                is_busy, instructions, lanes = given
                size, order, num_busy = block(len(is_busy)), jnp.argsort(~is_busy), jnp.sum(is_busy)

                def of_block(i: Array, lanes: Any) -> Any:
                    rows = order[jnp.minimum(i * size + jnp.arange(size), num_busy - 1)]  # filled up by the last one
                    of_rows = jax.tree.map(lambda x: x[rows], (instructions, lanes))
                    new = jax.vmap(lambda one, lane: kind.run(one, longest, lane, num_steps))(*of_rows)
                    return jax.tree.map(lambda x, own: x.at[rows].set(own), lanes, new)

                return jax.lax.fori_loop(0, -(-num_busy // size), of_block, lanes)

            def on_devices(is_busy, instructions, lanes, longest, num_steps):
                of_share = functools.partial(run, num_steps=num_steps)
                return shared_out(of_share, num, devices)((is_busy, instructions, lanes), longest)

            return jax.jit(on_devices, static_argnums=4, donate_argnums=2)

        shared = shared_out(renew, num, devices)
        self._runs = [runs(kind) for kind in kinds]
        self._renew = jax.jit(
            lambda is_new, key_data, lanes: shared((is_new, key_data, lanes)),
            donate_argnums=2,
            compiler_options=quick_to_compile(),
        )
        self.jobs: list[Job | None] = [None] * num
        self.programs = [parse(language, "r + r")] * num
        self._new: dict[int, np.ndarray] = {}
        self.shares = np.zeros(num)  # what is done of each evaluation under way
        self.halves = np.full(num, np.nan)  # its score when half was done
        self._kind_of = np.zeros(num, int)
        self._instructions = [
            jax.tree.map(lambda x: np.tile(x[None], (num, *[1] * x.ndim)), kind.assemble(self.programs[0]))
            for kind in kinds
        ]
        self.lanes: Any = jax.jit(shared_out(empty, num, devices))(np.zeros(num, bool))

    def fits(self, program: Program) -> bool:
        """Whether a program can be evaluated here."""
        return any(kind.fits(program) for kind in self._kinds)

    @property
    def free(self) -> list[int]:
        return [i for i, job in enumerate(self.jobs) if job is None]

    def assign(self, i: int, job: Job, program: Program, key: Array) -> None:
        """Begin an evaluation in a free lane."""
        self.jobs[i], self._new[i], self.halves[i] = job, np.asarray(jax.random.key_data(key)), np.nan
        self._set(i, program)

    def restore(self, lanes: Any, jobs: list[Job | None], programs: Sequence[Program], halves: Sequence[float]) -> None:
        """Go on with the lanes, jobs, programs and scores at half of another pool."""
        self.lanes, self.jobs, self.halves = lanes, list(jobs), np.array(halves)
        for i, program in enumerate(programs):
            self._set(i, program)

    def _set(self, i: int, program: Program) -> None:
        self.programs[i] = program
        which = next((i for i, kind in enumerate(self._kinds) if kind.fits(program)), 0)
        self._kind_of[i] = which
        one = self._kinds[which].assemble(program)
        for rows, row in zip(self._instructions[which], one, strict=True):
            np.asarray(rows)[i] = row

    def run(self, num_steps: int, hurdle: float = -np.inf, least: float = -np.inf) -> list[tuple[Job, Outcome]]:
        """Run the lanes that are not idle, and return the evaluations that ended, in order.

        With the first seed, one ends with what it has where its score at half is below `least`, or where it could not
        reach the hurdle any more with returns of `highest` from now on.
        """
        is_busy = np.array([job is not None for job in self.jobs])
        if not np.any(is_busy):
            return []
        if self._new:
            is_new = np.isin(np.arange(self._num), list(self._new))
            some = next(iter(self._new.values()))
            key_data = np.stack([self._new.get(i, some) for i in range(self._num)])
            self.lanes = self._renew(is_new, key_data, self.lanes)
            self._new = {}
        for which, (run, instructions) in enumerate(zip(self._runs, self._instructions, strict=True)):
            if np.any(own := is_busy & (self._kind_of == which)):
                longest = int(np.max(instructions.num[own]))
                self.lanes = run(own, instructions, self.lanes, longest, num_steps)
        names = ("num_episodes", "return_sum", "num_steps", "is_over", "is_finite")
        num, total, steps, is_over, is_finite = jax.device_get(gather([getattr(self.lanes, x) for x in names]))
        lowest, highest, wanted = self._task.lowest, self._task.highest, self._wanted
        self.shares = is_busy * np.maximum(steps / self._most, num / wanted if wanted else 0.0)
        ended = []
        for i, job in enumerate(self.jobs):
            if job is None:
                continue
            scores = (total[i] - num[i] * lowest) / (highest - lowest)  # a sum
            score = float(scores / max(1, num[i])) if is_finite[i] else 0.0
            is_hopeless = job.seed == 0 and wanted > 0 and (scores + wanted - num[i]) / wanted < hurdle
            is_half = np.isnan(self.halves[i]) and self.shares[i] >= 0.5 and not is_over[i]
            if is_half:
                self.halves[i] = score
            is_stopped = bool(is_half and job.seed == 0 and score < least)
            if is_over[i] or is_hopeless or is_stopped:
                half = float(self.halves[i])
                ended.append((job, Outcome(score, int(steps[i]), bool(is_finite[i]), half, is_stopped)))
                self.jobs[i], self.shares[i] = None, 0.0
        return ended


def block(num: int) -> int:
    """Return how many lanes of so many learn side by side: a CPU takes the next ones when these have had a chunk."""
    return min(num, BLOCK) if jax.default_backend() == "cpu" else num


def fits(program: Program, lists: tuple[ListName, ...], has_draws: bool) -> bool:
    """Whether lanes with these outputs of networks, and with or without random numbers, can evaluate a loss."""
    is_random = any(node.operator in RANDOM for node in compact(LOSSES, program))
    return set(lists_of(LOSSES, program)) <= set(lists) and (has_draws or not is_random)


def make_pools(task: Task, config: EvolutionConfig) -> list[Pool]:
    """Make the lanes of a task, those that fit fewest programs first.

    For losses some are for programs that need one or two outputs of networks and no random numbers, and others for
    all.
    """
    shown = math.prod(task.environment.observation_shape)
    if config.language == "targets":
        size = 4 * config.num_lanes * config.target_lane.batch_size * config.target_lane.unroll * shown
        memory.check({"target_lane.batch_size or unroll": size})
        functions = make_target_lanes(task.environment, config.target_lane)
        registers = {name: i for i, name in enumerate(TARGETS.inputs)}
        kind = Kind(functions.run, lambda program: assemble(TARGETS, program, registers), lambda program: True)
        return [Pool(task, config.num_lanes, functions.init, [kind], TARGETS, config.target_lane.budget)]
    lane = config.lane
    memory.check({"lane.batch_size": 8 * config.num_lanes * lane.batch_size * shown})  # S and S' of what is replayed

    def pool(num: int, *kinds: tuple[tuple[ListName, ...], bool]) -> Pool:
        init = make_lanes(task.environment, lane).init
        own = [loss_kind(task.environment, lane, *kind) for kind in kinds]
        return Pool(task, num, init, own, LOSSES, lane.max_steps, lane.num_episodes)

    return [pool(config.num_lanes, (LEAST, False), (BASIC, False)), pool(config.num_full_lanes, (LISTS, True))]


def loss_kind(environment: Environment, lane: LaneConfig, lists: tuple[ListName, ...], has_draws: bool) -> Kind:
    """Return the kind of losses that need these outputs of networks, or fewer, with or without random numbers."""
    return Kind(
        make_lanes(environment, lane, lists, has_draws).run,
        lambda program: assemble(LOSSES, program, registers_of(lists)),
        lambda program: fits(program, lists, has_draws),
    )


class Evaluator:
    """Evaluations of programs in several tasks, as many at once as there are lanes.

    Args:
      tasks: of which the first is the hurdle.
      config: of the search; no more evaluations of a task wait for a lane than there are full lanes.
      seed: of all randomness: the same job gets the same draws, whatever its program.
    Attributes:
      num_first: programs that a search begins with, so that their scores come early.
    """

    def __init__(self, tasks: Sequence[Task], config: EvolutionConfig, seed: int):
        settings = zip(tasks, config.in_tasks(len(tasks)), strict=True)
        self.pools = [make_pools(task, own) for task, own in settings]
        self._chunk, self._max_waiting, self._seed = config.chunk, config.num_full_lanes, seed
        self.num_first = block(config.num_lanes)
        self.queues: list[collections.deque[tuple[Job, Program]]] = [collections.deque() for _ in tasks]

    def submit(self, job: Job, program: Program) -> None:
        self.queues[job.task].append((job, program))

    @property
    def is_idle(self) -> bool:
        return not any(self.queues) and all(job is None for own in self.pools for pool in own for job in pool.jobs)

    @property
    def under_way(self) -> dict[int, float]:
        """What is done of the evaluations under way: of each record, the sum of their shares."""
        shares = collections.defaultdict[int, float](float)
        for pool in (pool for own in self.pools for pool in own):
            for job, share in zip(pool.jobs, pool.shares, strict=True):
                if job:
                    shares[job.record] += float(share)
        return shares

    def has_room(self, task: int) -> bool:
        """Give lanes what waits for one; say whether a lane is left, and no more waits than may."""
        self._fill(self.queues[task], self.pools[task])
        return any(pool.free for pool in self.pools[task]) and len(self.queues[task]) < self._max_waiting

    def run(self, hurdle: float = -np.inf, least: float = -np.inf) -> list[tuple[Job, Outcome]]:
        """Fill the lanes, run a chunk, and return the evaluations that ended; of the first task as `Pool.run` says."""
        ended = []
        for task, (queue, pools) in enumerate(zip(self.queues, self.pools, strict=True)):
            self._fill(queue, pools)
            for pool in pools:
                ended += pool.run(self._chunk, *((hurdle, least) if task == 0 else ()))
        return ended

    def _fill(self, queue: collections.deque[tuple[Job, Program]], pools: Sequence[Pool]) -> None:
        for _ in range(len(queue)):
            job, program = queue.popleft()
            pool = next((pool for pool in pools if pool.free and pool.fits(program)), None)
            if pool is None:
                queue.append((job, program))
            else:
                key = jax.random.fold_in(jax.random.key(self._seed), job.task * 2**16 + job.seed)
                key = jax.random.fold_in(key, job.draw) if job.draw else key
                pool.assign(pool.free[0], job, program, key)
