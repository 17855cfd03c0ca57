"""Lanes in which agents learn by programs side by side, and what waits for one of them (Co-Reyes et al. 2021).

Agents of an environment learn in lanes (`meta.programs.lanes`), in chunks of steps, all in one compiled program; lanes
that are done get the next programs, as data.
"""

import collections
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from agents.types import Array
from frodo.devices import gather, shared_out
from frodo.regimes.arguments import all_finite
from frodo.regimes.learner import build_learner
from frodo.regimes.lifetimes import OnlineState, make_online_program
from frodo.regimes.search_settings import EvolutionConfig, TargetLaneConfig
from frodo.runs import memory
from meta.programs.evaluation import LISTS, Feature, Instructions, ListName, assemble, lists_of, registers_of
from meta.programs.lanes import Lanes, make_lanes
from meta.programs.language import LOSSES, Language, Program, compact, parse
from meta.programs.targets import TARGETS, Data
from toy_envs.base import Environment

BASIC = (("Q", "s"), ("QTarget", "s_next"))  # outputs of networks that suffice for most programs from Q(s)[a]


class Task(NamedTuple):
    """An environment, and the returns between which those of agents are normalised."""

    environment: Environment
    lowest: float
    highest: float


class Outcome(NamedTuple):
    """What an evaluation came to: the mean normalised return of all its episodes, 0 if parameters were not finite."""

    score: float
    num_steps: int
    is_finite: bool


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


class Pool:
    """The lanes of one environment that share a compiled program; at first all are idle.

    Args:
      task, functions, num: where agents live, what they do, and how many.
      language, registers: of programs, and what of their inputs is where.
      wanted: episodes of an evaluation, 0 where it does not end by them.
      fits: whether a program can be evaluated here.
    """

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
        self._task, self._num, self._wanted, self.fits = task, num, wanted, fits
        self._assemble = lambda program: assemble(language, program, registers)
        devices = jax.devices()
        if jax.process_count() > 1 and num % len(devices):
            expected = f"a multiple of the {len(devices)} devices of all processes"
            raise ValueError(f"num_lanes or num_full_lanes is {num}, expected {expected}")
        init = shared_out(lambda key_data: jax.vmap(functions.init)(jax.random.wrap_key_data(key_data)), num, devices)
        key_data = np.asarray(jax.random.key_data(jax.random.split(jax.random.key(0), num)))
        shapes = jax.eval_shape(init, key_data)
        memory.check({"num_lanes, num_full_lanes or what a lane has": memory.num_bytes(shapes)})

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
        self.lanes: Any = jax.jit(init)(key_data)

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


class TargetLane(NamedTuple):
    """One evaluation under way; attributes as of `meta.programs.lanes.Lane`."""

    state: OnlineState
    num_steps: Array
    num_episodes: Array
    return_sum: Array
    is_over: Array
    is_finite: Array


def make_target_lanes(environment: Environment, config: TargetLaneConfig) -> Lanes:
    """Make the functions of a lane in an environment; steps are those of all environments of its batch."""
    learner = build_learner(config.agent(), environment.num_actions, is_frozen=True)
    program = make_online_program(learner, environment)

    def init(key: Array) -> TargetLane:
        none, no = jnp.zeros((), jnp.int32), jnp.zeros((), bool)
        return TargetLane(program.init(key), none, none, jnp.zeros(()), no, ~no)

    def run(instructions: Instructions, num: Array | int, lane: TargetLane, num_steps: int) -> TargetLane:
        instructions = jax.tree.map(jnp.asarray, instructions)
        iterations = max(1, num_steps // program.env_steps)
        own = lane.state.learner._replace(meta_params=Data(instructions, jnp.asarray(num)))
        state, metrics, _ = program.run(lane.state._replace(learner=own), iterations)
        steps = lane.num_steps + program.env_steps * jnp.arange(1, iterations + 1)
        counts = lambda x: jnp.sum(jnp.where((steps <= config.budget) & ~lane.is_over, x, 0))
        finite = all_finite(state.learner.params)
        kept = state.learner._replace(meta_params=lane.state.learner.meta_params)
        return TargetLane(
            state._replace(learner=kept),
            steps[-1],
            lane.num_episodes + counts(metrics["episodes"]).astype(jnp.int32),
            lane.return_sum + counts(metrics["return_sum"]),
            lane.is_over | ~finite | (steps[-1] >= config.budget // program.env_steps * program.env_steps),
            lane.is_finite & (finite | lane.is_over),
        )

    return Lanes(init, run)


def make_pools(task: Task, config: EvolutionConfig) -> list[Pool]:
    """Make the lanes of a task, those that fit fewest programs first.

    For losses some are for programs that need two outputs of networks and no random numbers, and others for all.
    """
    shown = math.prod(task.environment.observation_shape)
    if config.language == "targets":
        size = 4 * config.num_lanes * config.target_lane.batch_size * config.target_lane.unroll * shown
        memory.check({"target_lane.batch_size or unroll": size})
        functions = make_target_lanes(task.environment, config.target_lane)
        return [Pool(task, functions, config.num_lanes, TARGETS, {name: i for i, name in enumerate(TARGETS.inputs)})]
    lane = config.lane
    memory.check({"lane.batch_size": 8 * config.num_lanes * lane.batch_size * shown})  # S and S' of what is replayed

    def pool(num: int, lists: tuple[ListName, ...], has_draws: bool) -> Pool:
        functions = make_lanes(task.environment, lane, lists, has_draws)
        suits = lambda program: fits(program, lists, has_draws)
        return Pool(task, functions, num, LOSSES, registers_of(lists), lane.num_episodes, suits)

    return [pool(config.num_lanes, BASIC, has_draws=False), pool(config.num_full_lanes, LISTS, has_draws=True)]


class Evaluator:
    """Evaluations of programs in several tasks, as many at once as there are lanes.

    Args:
      tasks: of which the first is the hurdle.
      config: of the search; no more evaluations of a task wait for a lane than there are full lanes.
      seed: of all randomness: the same job gets the same draws, whatever its program.
    """

    def __init__(self, tasks: Sequence[Task], config: EvolutionConfig, seed: int):
        settings = zip(tasks, config.in_tasks(len(tasks)), strict=True)
        self.pools = [make_pools(task, own) for task, own in settings]
        self._chunk, self._max_waiting, self._seed = config.chunk, config.num_full_lanes, seed
        self.queues: list[collections.deque[tuple[Job, Program]]] = [collections.deque() for _ in tasks]

    def submit(self, job: Job, program: Program) -> None:
        self.queues[job.task].append((job, program))

    @property
    def is_idle(self) -> bool:
        return not any(self.queues) and all(job is None for own in self.pools for pool in own for job in pool.jobs)

    def has_room(self, task: int) -> bool:
        """Give lanes what waits for one; say whether a lane is left, and no more waits than may."""
        self._fill(self.queues[task], self.pools[task])
        return any(pool.free for pool in self.pools[task]) and len(self.queues[task]) < self._max_waiting

    def run(self, hurdle: float) -> list[tuple[Job, Outcome]]:
        """Fill the lanes, run a chunk, and return the evaluations that ended."""
        ended = []
        for task, (queue, pools) in enumerate(zip(self.queues, self.pools, strict=True)):
            self._fill(queue, pools)
            for pool in pools:
                ended += pool.run(self._chunk, hurdle if task == 0 else -np.inf)
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
