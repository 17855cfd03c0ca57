"""Acting in an environment on the host: a thread that steps it, and hands trajectories to the learner."""

import functools
import operator
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from agents.acting.in_jax import Policy, Schedule, act, empty_trajectory, random_share
from agents.environments.host import HostEnvironment, check_finite
from agents.networks.agent import Agent
from agents.types import Array, CoreState, Params, Trajectory
from toy_envs.base import TimeStep

PATIENCE = 5.0  # seconds that a step may take where the run is to stop; then it counts as one that hangs


class ActedIteration(NamedTuple):
    """What a host actor hands over: the trajectories of an iteration, or of several, and the episodes that ended."""

    trajectories: Trajectory  # [M, T, B, ...]; of several iterations one after the other
    validation: Trajectory | None  # [T', B, ...]
    generation: int  # how many agents acted before this one
    key: Array  # the actor's random key after it
    returns: list[float]  # of the episodes that ended meanwhile
    ended_in: list[int]  # the number of the trajectory in which each of them ended; M in that for validation

    def episodes(self, num_iterations: int) -> np.ndarray:
        """Return how many episodes ended in each of so many iterations, and the sums of their returns, [2, ...]."""
        size = max(1, len(self.trajectories.action) // num_iterations)
        iteration = np.minimum(np.array(self.ended_in, int) // size, num_iterations - 1)
        return np.stack([np.bincount(iteration, of, num_iterations) for of in (None, self.returns)])


@functools.lru_cache(maxsize=8)
def make_step(agent: Agent, policy: Policy, exploration: int, impl: str | None) -> Callable[..., Any]:
    """Make the function by which host actors act: compiled once for all actors and seeds of an agent.

    It takes and returns random keys, of this kind or plain ones, as numbers, as which they pass in less time, and
    returns None in place of observations that agents see as they are.
    """

    @jax.jit
    def step(params, key, observation, is_first, core_state, num_steps):
        key, action_key = jax.random.split(_typed(key, impl))
        prepared, share = agent.prepare(observation), random_share(exploration, num_steps)
        action, logits, next_state = act(agent, policy, params, action_key, prepared, is_first, core_state, share)
        return jax.random.key_data(key), None if prepared is observation else prepared, action, logits, next_state

    return step


def _typed(key_data: Array, impl: str | None) -> Array:
    return jax.random.wrap_key_data(key_data, impl=impl) if impl else key_data


class HostActor:
    """A thread that steps a host environment and hands over M trajectories at a time, and one for validation.

    It acts with the newest parameters at the start of each trajectory. One hand-over waits in the queue while the next
    one is acted, so parameters are at most two hand-overs old. Use it as a context manager: leaving it stops the
    thread; the environment stays open. After an error or Ctrl-C, a thread that hangs in a step is left behind.
    `seconds_waiting` and `seconds_waited_for` are what it has waited for the learner, and the learner for it.

    Args:
      environment, agent, policy: what acts, and where.
      schedule: what is handed over at once: an iteration, or the trajectories of several.
      params, key: those to begin with.
      exploration: environment steps over which the share of random actions falls from 1 to 0; 0 for none.
      num_steps: environment steps that this lifetime has taken before.
      is_clipped: whether rewards are clipped for learning, so that infinite ones do no harm.
    Raises:
      NotFiniteError: by `get`, where the environment shows what is not finite.
    """

    def __init__(
        self,
        environment: HostEnvironment,
        agent: Agent,
        policy: Policy,
        schedule: Schedule,
        params: Params,
        key: Array,
        exploration: int = 0,
        num_steps: int = 0,
        is_clipped: bool = False,
    ):
        self.params = params
        self._is_clipped, self._num_taken = is_clipped, 0
        self._num_steps, self._exploration = num_steps, exploration
        self._generation = 0
        self.seconds_waited_for = 0.0
        self._waited = 0.0, 0.0  # seconds in all before, and since when it waits now, 0 while it acts
        self._environment, self._agent = environment, agent
        is_typed = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
        self._key = jax.random.key_data(key)
        self._impl: Any = jax.random.key_impl(key) if is_typed else None
        self._shapes = [(schedule.num_trajectories, schedule.num_steps)]
        if schedule.num_validation_steps:
            self._shapes.append((1, schedule.num_validation_steps))
        self._queue: queue.Queue[ActedIteration | BaseException] = queue.Queue(maxsize=1)
        self._stop = threading.Event()
        self._last_seen: tuple[Array, float] = self._key, 0.0  # the key, new after each step, and since when it is so
        self._thread = threading.Thread(target=self._run, name="actor", daemon=True)
        self._step = make_step(agent, policy, exploration, self._impl)
        self._prepare: Callable[[Any], Any] = jax.jit(agent.prepare)

    def __enter__(self) -> "HostActor":
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception) -> None:
        self.stop()
        while self._thread.is_alive() and not (kind and self.hangs()):
            try:
                self._queue.get(timeout=0.1)
            except queue.Empty:
                pass

    def stop(self) -> None:
        """Let the thread stop after its step, without waiting for it."""
        self._stop.set()
        self.hangs()  # its time runs from here

    def hangs(self) -> bool:
        """Say whether the thread has been in one step for PATIENCE seconds since this was first asked."""
        if self._key is not self._last_seen[0] or not self._last_seen[1]:
            self._last_seen = self._key, time.monotonic()
        return self._thread.is_alive() and time.monotonic() - self._last_seen[1] > PATIENCE

    @property
    def seconds_waiting(self) -> float:
        before, since = self._waited
        return before + (time.monotonic() - since if since else 0.0)

    def get(self, is_stopping: Callable[[], Any] = lambda: False) -> ActedIteration:
        """Wait for the next iteration; an error of the thread is raised here.

        Raises:
          KeyboardInterrupt: where the run is to stop, as `is_stopping` says, and a step hangs.
        """
        while True:
            start = time.monotonic()
            try:
                acted = self._queue.get(timeout=0.5)
            except queue.Empty:
                if is_stopping() and self.hangs():
                    raise KeyboardInterrupt("a step of the environment hangs") from None
                if not self._thread.is_alive() and self._queue.empty():
                    raise RuntimeError("the thread that steps the environment has ended") from None
                continue
            finally:
                self.seconds_waited_for += time.monotonic() - start
            if isinstance(acted, BaseException):
                raise acted
            if acted.generation == self._generation:
                return acted

    def renew(self, params: Params) -> None:
        """Go on with a new agent; what earlier agents acted is dropped."""
        self.params = params
        self._generation += 1

    def _run(self) -> None:
        try:
            for acted in self._iterations():
                self._waited = self._waited[0], time.monotonic()
                self._queue.put(acted)
                self._waited = self.seconds_waiting, 0.0
                if self._stop.is_set():
                    return
        except BaseException as error:  # the learner must not wait for ever
            self._queue.put(error)

    def _checked(self, time_step: TimeStep) -> TimeStep:
        check_finite(time_step, self._environment.name, self._num_taken, self._is_clipped)
        self._num_taken += 1
        return time_step

    def _iterations(self):
        batch_size = self._environment.num_envs
        time_step = self._checked(self._environment.reset())
        core_state = self._agent.initial_state(batch_size)
        episode_return = np.zeros(batch_size, np.float64)
        prepared = jax.eval_shape(self._prepare, time_step.observation)
        _, seen, _, logits, _ = jax.eval_shape(
            self._step, self.params, self._key, time_step.observation, time_step.is_first, core_state, 0
        )
        if seen is None:
            self._prepare = lambda observation: observation
        generation = self._generation
        while True:
            if generation != self._generation:
                generation, core_state = self._generation, self._agent.initial_state(batch_size)
                self._num_steps = 0
            returns: list[float] = []
            ended_in: list[int] = []
            buffers = [
                empty_trajectory(None, prepared, num_steps, logits.shape[-1], np.empty, (num_trajectories,))
                for num_trajectories, num_steps in self._shapes
            ]
            core_states: list[CoreState] = []
            places = [(one, m) for one in buffers for m in range(len(one.action))]
            for number, (buffer, m) in enumerate(places):
                params = self.params
                core_states.append(core_state)
                num_steps = buffer.action.shape[1]
                filled: int | np.ndarray = 0  # steps, [B] where environments differ
                while (filled if isinstance(filled, int) else filled.max()) < num_steps:
                    key, seen, action, logits, next_state = self._step(
                        params, self._key, time_step.observation, time_step.is_first, core_state, self._num_steps
                    )
                    self._num_steps = min(self._num_steps + batch_size, self._exploration)
                    at = (m, filled) if isinstance(filled, int) else (m, filled, np.arange(batch_size))
                    buffer.observation[at] = time_step.observation if seen is None else seen
                    buffer.is_first[at] = time_step.is_first
                    self._key, core_state = key, next_state
                    chosen = np.asarray(action)
                    time_step = self._checked(self._environment.step(chosen))
                    buffer.action[at], buffer.behaviour_logits[at] = chosen, np.asarray(logits)
                    buffer.reward[at], buffer.discount[at] = time_step.reward, time_step.discount
                    buffer.truncated[at], buffer.valid[at] = time_step.truncated, time_step.valid
                    filled = filled + 1
                    if last := self._environment.last_observations:
                        filled = self._lay_in(buffer, m, filled, time_step, last)
                    episode_return += time_step.reward
                    is_over = (time_step.discount == 0) | time_step.truncated
                    if is_over.any():
                        returns.extend(episode_return[is_over].tolist())
                        ended_in.extend([number] * (len(returns) - len(ended_in)))
                        episode_return[is_over] = 0.0
                    if self._stop.is_set():
                        return
                self._end(buffer, m, filled, time_step)
            trajectories, *validations = buffers
            num = len(trajectories.action)
            stacked = jax.tree.map(lambda *states, num=num: jnp.stack(states)[:num], *core_states[: max(1, num)])
            trajectories = trajectories._replace(core_state=stacked)
            validation = None
            if validations:
                validation = jax.tree.map(operator.itemgetter(0), validations[0])._replace(core_state=core_states[num])
            key = _typed(self._key, self._impl)
            yield ActedIteration(trajectories, validation, generation, key, returns, ended_in)

    def _lay_in(
        self, buffer: Trajectory, m: int, filled: int | np.ndarray, shown: TimeStep, last: Mapping[int, np.ndarray]
    ) -> np.ndarray:
        """Lay last observations and a reset after each into trajectory m: as if environments reset in the next step.

        Returns how many steps are filled, [B]; T + 1 of an environment whose trajectory ends with a last observation.
        """
        num_steps, batch_size = buffer.action.shape[1:]
        filled = np.array(np.broadcast_to(filled, batch_size))
        lanes = np.array(list(last))
        batch: Any = np.array(shown.observation)
        batch[lanes] = list(last.values())
        check_finite(shown._replace(observation=batch), self._environment.name, self._num_taken - 1, self._is_clipped)
        buffer.observation[m, filled[lanes], lanes] = np.asarray(self._prepare(batch))[lanes]  # type: ignore[index]
        buffer.is_first[m, filled[lanes], lanes] = False  # type: ignore[index]
        for lane in lanes[filled[lanes] < num_steps]:
            _write_reset(buffer, (m, filled[lane], lane))
        filled[lanes] += 1
        return filled

    def _end(self, buffer: Trajectory, m: int, filled: int | np.ndarray, time_step: TimeStep) -> None:
        """Write the observations that trajectory m ends with; of environments with fewer steps repeat them, not valid.

        The step before these is cut as one that is truncated: it bootstraps from the observation.
        """
        num_steps, observation = buffer.action.shape[1], np.asarray(self._prepare(time_step.observation))
        parts: Any = buffer  # NumPy's arrays stand for those of JAX
        if isinstance(filled, int):
            parts.observation[m, num_steps], parts.is_first[m, num_steps] = observation, time_step.is_first
            return
        for lane, num in enumerate(filled):
            if num <= num_steps:
                parts.observation[m, num:, lane], parts.is_first[m, num:, lane] = observation[lane], False
                parts.is_first[m, num, lane] = time_step.is_first[lane]
            if num < num_steps:
                _write_reset(buffer, (m, slice(num, num_steps), lane))
                goes_on = parts.valid[m, num - 1, lane] & (parts.discount[m, num - 1, lane] > 0)
                parts.truncated[m, num - 1, lane] |= goes_on


def _write_reset(buffer: Trajectory, at: Any) -> None:
    """Write steps that no agent chose."""
    nothing = dict(action=0, reward=0.0, discount=1.0, truncated=False, valid=False, behaviour_logits=0.0)
    for name, value in nothing.items():
        getattr(buffer, name)[at] = value


def actor_keys(key: Array, num_actors: int) -> Array:
    """Return the random keys of several actors, [num_actors], or the key itself for one."""
    return key if num_actors == 1 else jax.random.split(key, num_actors)


class Waiting:
    """Which share of the time actors wait for the learner, and the learner for them."""

    def __init__(self, actors: Sequence[HostActor]):
        self._actors = actors
        self._before = self._seconds()

    def _seconds(self) -> tuple[float, float, float]:
        waited_for = sum(actor.seconds_waited_for for actor in self._actors)
        return time.monotonic(), waited_for, sum(actor.seconds_waiting for actor in self._actors)

    def shares(self) -> dict[str, float]:
        """Return both, since this was asked last: of actors their mean."""
        now = self._seconds()
        elapsed, learner, actors = (after - before for after, before in zip(now, self._before, strict=True))
        self._before = now
        return {"learner_waiting": learner / elapsed, "actors_waiting": actors / elapsed / len(self._actors)}
