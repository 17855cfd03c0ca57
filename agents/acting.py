"""Experience: parameters and an environment make trajectories, in both runtimes.

*Fused*: environment, actor and learner are parts of one jitted program (`init_actor`, `rollout`). *Actor threads*: a
host environment is stepped by a thread which hands iterations of trajectories to the learner over a small queue
(`HostActor`).
"""

import queue
import threading
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from agents.environments import HostEnvironment
from agents.networks import Agent
from agents.types import Array, CoreState, Params, Predictions, Trajectory
from toy_envs.base import Environment, TimeStep

Policy = Callable[[Predictions], Array]  # predictions -> logits


class HasParams(Protocol):
    """Whoever has the parameters that act."""

    @property
    def params(self) -> Params: ...


Learner = TypeVar("Learner", bound=HasParams)


class EpisodeStats(NamedTuple):
    """Episodes that ended: how many, and the sum of their (unclipped, undiscounted) returns."""

    count: Array  # int32
    return_sum: Array  # float32


class ActorState(NamedTuple):
    """Where acting goes on."""

    key: Array
    env_state: Any
    time_step: TimeStep  # [B, ...], its observation as `Agent.prepare` has it
    core_state: CoreState
    episode_return: Array  # [B] float32, so far


def act(
    agent: Agent, policy: Policy, params: Params, key: Array, observation: Array, is_first: Array, core_state: CoreState
):
    """Choose actions for B environments: actions [B] int32, logits [B, A], next core state."""
    predictions, core_state = agent.step(params, observation, is_first, core_state)
    logits = policy(predictions)
    return jax.random.categorical(key, logits).astype(jnp.int32), logits, core_state


def init_actor(environment: Environment, agent: Agent, key: Array, batch_size: int) -> ActorState:
    """Start B lifetimes of a pure environment."""
    key, env_key = jax.random.split(key)
    env_state, time_step = jax.vmap(environment.init)(jax.random.split(env_key, batch_size))
    time_step = time_step._replace(observation=agent.prepare(time_step.observation))
    return ActorState(key, env_state, time_step, agent.initial_state(batch_size), jnp.zeros(batch_size, jnp.float32))


def rollout(
    environment: Environment, agent: Agent, policy: Policy, params: Params, state: ActorState, num_steps: int
) -> tuple[ActorState, Trajectory, EpisodeStats]:
    """Act for `num_steps` steps, as one scan."""
    key, steps_key = jax.random.split(state.key)

    def body(carry, key):
        env_state, before, core_state, episode_return = carry
        action, logits, core_state = act(agent, policy, params, key, before.observation, before.is_first, core_state)
        env_state, after = jax.vmap(environment.step)(env_state, action)
        after = after._replace(observation=agent.prepare(after.observation))
        episode_return = episode_return + after.reward
        is_over = (after.discount == 0) | after.truncated
        ended = EpisodeStats(jnp.sum(is_over), jnp.sum(jnp.where(is_over, episode_return, 0.0)))
        carry = (env_state, after, core_state, jnp.where(is_over, 0.0, episode_return))
        return carry, (before.observation, before.is_first, action, logits, after._replace(observation=()), ended)

    carry = (state.env_state, state.time_step, state.core_state, state.episode_return)
    carry, out = jax.lax.scan(body, carry, jax.random.split(steps_key, num_steps))
    observation, is_first, action, logits, after, ended = out
    env_state, last, core_state, episode_return = carry
    trajectory = Trajectory(
        observation=jnp.concatenate([observation, last.observation[None]]),
        is_first=jnp.concatenate([is_first, last.is_first[None]]),
        action=action,
        reward=after.reward,
        discount=after.discount,
        truncated=after.truncated,
        valid=after.valid,
        behaviour_logits=logits,
        core_state=state.core_state,
    )
    stats = jax.tree.map(jnp.sum, ended)
    return ActorState(key, env_state, last, core_state, episode_return), trajectory, stats


def rollouts(
    environment: Environment,
    agent: Agent,
    policy: Policy,
    learner: Learner,
    update: Callable[[Learner, Trajectory], Learner],
    state: ActorState,
    num_trajectories: int,
    num_steps: int,
    num_validation_steps: int,
) -> tuple[ActorState, Trajectory, Trajectory | None, EpisodeStats]:
    """Act for M trajectories, stacked [M, T, B, ...], and a validation trajectory unless it has no steps.

    The parameters that act are those of `learner`, which `update` changes after each of the M trajectories.
    """

    def act(carry, _):
        state, learner = carry
        state, trajectory, stats = rollout(environment, agent, policy, learner.params, state, num_steps)
        return (state, update(learner, trajectory)), (trajectory, stats)

    (state, learner), (trajectories, stats) = jax.lax.scan(act, (state, learner), None, length=num_trajectories)
    validation = None
    if num_validation_steps:
        state, validation, last = rollout(environment, agent, policy, learner.params, state, num_validation_steps)
        stats = jax.tree.map(lambda xs, x: jnp.append(xs, x), stats, last)
    return state, trajectories, validation, jax.tree.map(jnp.sum, stats)


def restart(environment: Environment, agent: Agent, state: ActorState) -> ActorState:
    """Begin new episodes in the same environments, for another agent."""
    env_state = jax.vmap(environment.restart)(state.env_state)
    observation = agent.prepare(jax.vmap(environment.observe)(env_state))
    batch_size = len(state.episode_return)
    no = jnp.zeros(batch_size, bool)
    time_step = TimeStep(
        observation, jnp.zeros(batch_size, jnp.float32), jnp.ones(batch_size, jnp.float32), no, no, is_first=~no
    )
    return ActorState(state.key, env_state, time_step, agent.initial_state(batch_size), jnp.zeros(batch_size))


def empty_trajectory(agent: Agent, observation: Array, num_steps: int, num_actions: int) -> Trajectory:
    """Zeros in the shapes and dtypes of a trajectory; `observation` [B, ...] is a prepared one."""
    batch_size = len(observation)
    zeros = lambda dtype, *shape: jnp.zeros((num_steps, batch_size, *shape), dtype)
    return Trajectory(
        observation=jnp.zeros((num_steps + 1, *observation.shape), observation.dtype),
        is_first=jnp.zeros((num_steps + 1, batch_size), bool),
        action=zeros(jnp.int32),
        reward=zeros(jnp.float32),
        discount=zeros(jnp.float32),
        truncated=zeros(bool),
        valid=zeros(bool),
        behaviour_logits=zeros(float, num_actions),
        core_state=agent.initial_state(batch_size),
    )


class Experience(NamedTuple):
    """What a host actor hands over: trajectories of one iteration, stacked [M, T, B, ...], and the episodes that
    ended."""

    trajectories: Trajectory
    key: Array  # the actor's random key after it
    returns: list[float]  # of the episodes that ended meanwhile


class HostActor:
    """A thread that steps a host environment and hands over iterations of `num_trajectories` trajectories.

    It acts with the newest parameters at the start of each trajectory. The queue holds one iteration, so parameters
    are at most two iterations old. Use it as a context manager: leaving it stops the thread and closes the
    environment.
    """

    def __init__(
        self,
        environment: HostEnvironment,
        agent: Agent,
        policy: Policy,
        params: Params,
        key: Array,
        num_steps: int,
        num_trajectories: int,
    ):
        self.params = params
        self._environment, self._agent, self._key = environment, agent, key
        self._shape = (num_trajectories, num_steps)
        self._queue: queue.Queue[Experience | BaseException] = queue.Queue(maxsize=1)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="actor", daemon=True)

        def step(params, key, observation, is_first, core_state):
            key, action_key = jax.random.split(key)
            observation = agent.prepare(observation)
            action, logits, next_state = act(agent, policy, params, action_key, observation, is_first, core_state)
            return key, observation, action, logits, next_state

        self._step, self._prepare = jax.jit(step), jax.jit(agent.prepare)

    def __enter__(self) -> "HostActor":
        self._thread.start()
        return self

    def __exit__(self, *exception) -> None:
        self._stop.set()
        while self._thread.is_alive():
            try:
                self._queue.get(timeout=0.1)
            except queue.Empty:
                pass
        self._environment.close()

    def get(self) -> Experience:
        """Wait for the next iteration of experience; what went wrong in the thread is raised here."""
        experience = self._queue.get()
        if isinstance(experience, BaseException):
            raise experience
        return experience

    def _run(self) -> None:
        try:
            for experience in self._iterations():
                self._queue.put(experience)
                if self._stop.is_set():
                    return
        except BaseException as error:  # the learner must not wait for ever
            self._queue.put(error)

    def _iterations(self):
        num_trajectories, num_steps = self._shape
        batch_size = self._environment.num_envs
        time_step = self._environment.reset()
        core_state = self._agent.initial_state(batch_size)
        episode_return = np.zeros(batch_size, np.float64)
        while True:
            buffer: Any = None
            returns: list[float] = []
            core_states = []
            for m in range(num_trajectories):
                params = self.params
                core_states.append(core_state)
                for t in range(num_steps):
                    key, observation, action, logits, next_state = self._step(
                        params, self._key, time_step.observation, time_step.is_first, core_state
                    )
                    if buffer is None:
                        buffer = _allocate(self._shape, observation, logits)
                    buffer.observation[m, t], buffer.is_first[m, t] = observation, time_step.is_first
                    self._key, core_state = key, next_state
                    chosen = np.asarray(action)
                    time_step = self._environment.step(chosen)
                    buffer.action[m, t], buffer.behaviour_logits[m, t] = chosen, logits
                    buffer.reward[m, t], buffer.discount[m, t] = time_step.reward, time_step.discount
                    buffer.truncated[m, t], buffer.valid[m, t] = time_step.truncated, time_step.valid
                    episode_return += time_step.reward
                    is_over = (time_step.discount == 0) | time_step.truncated
                    if is_over.any():
                        returns.extend(episode_return[is_over].tolist())
                        episode_return[is_over] = 0.0
                    if self._stop.is_set():
                        return
                buffer.observation[m, num_steps] = self._prepare(time_step.observation)
                buffer.is_first[m, num_steps] = time_step.is_first
            core_states = jax.tree.map(lambda *states: jnp.stack(states), *core_states)
            yield Experience(buffer._replace(core_state=core_states), self._key, returns)


def _allocate(shape: tuple[int, int], observation: Array, logits: Array) -> Trajectory:
    """Room for one iteration in host memory."""
    num_trajectories, num_steps = shape
    batch_size = len(observation)
    steps = lambda dtype: np.empty((num_trajectories, num_steps, batch_size), dtype)
    return Trajectory(
        observation=np.empty((num_trajectories, num_steps + 1, *observation.shape), observation.dtype),
        is_first=np.empty((num_trajectories, num_steps + 1, batch_size), bool),
        action=steps(np.int32),
        reward=steps(np.float32),
        discount=steps(np.float32),
        truncated=steps(bool),
        valid=steps(bool),
        behaviour_logits=np.empty((num_trajectories, num_steps, *logits.shape), logits.dtype),
        core_state=(),
    )
