"""Acting: parameters and an environment make trajectories.

Here environment, actor and learner are parts of one jitted program (`init_actor`, `rollout`). Actor threads, for
environments on the host, are in `on_host.py`.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from agents import splitting
from agents.networks.agent import Agent
from agents.types import Array, CoreState, Params, Predictions, Trajectory
from toy_envs.base import Environment, TimeStep, step_batch

Policy = Callable[[Predictions], Array]  # predictions -> logits


Acting = TypeVar("Acting")


class EpisodeStats(NamedTuple):
    """Episodes that ended: how many, and the sum of their (unclipped, undiscounted) returns."""

    num_episodes: Array  # int32
    return_sum: Array  # float32


class ActorState(NamedTuple):
    """Where acting goes on."""

    key: Array
    env_state: Any
    time_step: TimeStep  # [B, ...]; the observation is a prepared one (`Agent.prepare`)
    core_state: CoreState
    episode_return: Array  # [B] float32, so far
    num_steps: Array  # int32, environment steps of this lifetime, up to those of the exploration
    curriculum: Any = ()  # the state of one that chooses tasks


class Curriculum(NamedTuple):
    """What chooses the tasks of an actor whose every trajectory begins an episode: `meta.updates.curriculum`.

    Attributes:
      init: key, batch size -> its state.
      begin: its state, the parameters that act, environment states [B] -> its state, environment states at the start of
        episodes of the tasks that it chose.
      end: its state, the same parameters, trajectory -> its state, the trajectory with those steps valid that are to be
        learned from.
    """

    init: Callable[[Array, int], Any]
    begin: Callable[[Any, Params, Any], tuple[Any, Any]]
    end: Callable[[Any, Params, Trajectory], tuple[Any, Trajectory]]


class Actor(NamedTuple):
    """What acts, and where; the share of random actions falls from 1 to 0 over `exploration` environment steps."""

    environment: Environment
    agent: Agent
    policy: Policy
    exploration: int = 0
    curriculum: Curriculum | None = None


class Schedule(NamedTuple):
    """How much one iteration acts: trajectories of updates, and one for validation."""

    num_trajectories: int
    num_steps: int  # of each trajectory
    num_validation_steps: int = 0  # 0 for none


def act(
    agent: Agent,
    policy: Policy,
    params: Params,
    key: Array,
    observation: Array,
    is_first: Array,
    core_state: CoreState,
    random_share: Array | None = None,
):
    """Choose actions for B environments: actions [B] int32, logits [B, A], next core state."""
    logits, core_state = logits_of(agent, policy, params, observation, is_first, core_state, random_share)
    return jax.random.categorical(key, logits).astype(jnp.int32), logits, core_state


def logits_of(
    agent: Agent,
    policy: Policy,
    params: Params,
    observation: Array,
    is_first: Array,
    core_state: CoreState,
    random_share: Array | None,
) -> tuple[Array, CoreState]:
    """Return the logits of the policy [B, A], mixed with the uniform one by a random share, and the next core state."""
    predictions, core_state = agent.step(params, observation, is_first, core_state)
    logits = policy(predictions)
    if random_share is not None:
        logits = jnp.log((1 - random_share) * jax.nn.softmax(logits) + random_share / logits.shape[-1])
    return logits, core_state


def random_share(exploration: int, num_steps: Array) -> Array | None:
    """Return the share of random actions after so many environment steps: 1 at first, 0 from `exploration` on.

    The ε of ε-greedy policies that ends at ε₁ falls from 1 to it in this way (Mnih et al. 2015). None is 0.
    """
    return jnp.maximum(0.0, 1 - num_steps / exploration) if exploration else None


def init_actor(
    environment: Environment, agent: Agent, key: Array, batch_size: int, curriculum: Curriculum | None = None
) -> ActorState:
    """Start B lifetimes of a pure environment."""
    key, env_key = jax.random.split(key)
    env_state = jax.vmap(environment.initial_state)(jax.random.split(env_key, batch_size))
    state = _at_start(environment, agent, key, env_state)
    if curriculum is None:
        return state
    return state._replace(curriculum=curriculum.init(jax.random.fold_in(key, 2), batch_size))


def split(state: ActorState) -> ActorState:
    """Split the environments over the devices of the mesh that is set."""
    of_all = ("key", "num_steps", "curriculum")
    lay = lambda name: splitting.whole if name in of_all else splitting.split
    return ActorState(**{name: lay(name)(part) for name, part in state._asdict().items()})


def rollout(
    actor: Actor, params: Params, state: ActorState, num_steps: int
) -> tuple[ActorState, Trajectory, EpisodeStats]:
    """Act for `num_steps` steps, as one scan; with a curriculum, from the start of episodes on."""
    environment, agent, policy, exploration, curriculum = actor
    batch_size = len(state.episode_return)
    chosen = state.curriculum
    if curriculum is not None:
        chosen, env_state = curriculum.begin(chosen, params, state.env_state)
        state = _at_start(environment, agent, state.key, env_state)._replace(num_steps=state.num_steps)
    key, steps_key = jax.random.split(state.key)

    def body(carry, noise):
        env_state, before, core_state, episode_return, num_steps = carry
        share = random_share(exploration, num_steps)
        num_steps = jnp.minimum(num_steps + batch_size, exploration)
        logits, core_state = logits_of(agent, policy, params, before.observation, before.is_first, core_state, share)
        action = jnp.argmax(logits + noise, axis=-1).astype(jnp.int32)
        env_state, after = step_batch(environment, env_state, action, before.truncated)
        after = after._replace(observation=agent.prepare(after.observation))
        episode_return = episode_return + after.reward
        is_over = (after.discount == 0) | after.truncated
        ended = EpisodeStats(is_over, jnp.where(is_over, episode_return, 0.0))  # summed below: no step waits for others
        carry = (env_state, after, core_state, jnp.where(is_over, 0.0, episode_return), num_steps)
        others = {name: getattr(after, name) for name in ("reward", "discount", "truncated", "valid")}
        others |= {"action": action, "behaviour_logits": logits}
        return carry, (before.observation, before.is_first, others, ended)

    carry = (state.env_state, state.time_step, state.core_state, state.episode_return, state.num_steps)
    # What actions are drawn by is drawn for all steps at once: a loop of its own at each step costs more than the step.
    gumbel = lambda key: jax.random.gumbel(key, (batch_size, environment.num_actions), float)
    carry, out = jax.lax.scan(body, carry, jax.vmap(gumbel)(jax.random.split(steps_key, num_steps)))
    observation, is_first, others, ended = out
    after_all = ActorState(key, *carry, curriculum=chosen)
    last = after_all.time_step
    trajectory = Trajectory(
        observation=jnp.concatenate([observation, last.observation[None]]),
        is_first=jnp.concatenate([is_first, last.is_first[None]]),
        core_state=state.core_state,
        **others,
    )
    if curriculum is not None:
        chosen, trajectory = curriculum.end(chosen, params, trajectory)
        after_all = after_all._replace(curriculum=chosen)
        ended = jax.tree.map(lambda x: jnp.where(in_first_episode(ended.num_episodes), x, 0), ended)
    stats = jax.tree.map(jnp.sum, ended)
    return after_all, trajectory, stats


def in_first_episode(is_last: Array) -> Array:
    """Say of which steps of a trajectory no episode ended before, [T, B], from which steps end one."""
    return jnp.cumsum(is_last, axis=0) - is_last == 0


def rollouts(
    actor: Actor,
    schedule: Schedule,
    acting: Acting,
    params_fn: Callable[[Acting], Params],
    update: Callable[[Acting, Trajectory], Acting],
    state: ActorState,
) -> tuple[ActorState, Trajectory, Trajectory | None, EpisodeStats]:
    """Act for one iteration; return trajectories stacked [M, T, B, ...], and a validation trajectory or None.

    `params_fn` takes the parameters that act out of `acting`; `update` changes it after each of the M trajectories.
    """

    def act(carry, _):
        state, acting = carry
        state, trajectory, stats = rollout(actor, params_fn(acting), state, schedule.num_steps)
        return (state, update(acting, trajectory)), (trajectory, stats)

    (state, acting), (trajectories, stats) = jax.lax.scan(act, (state, acting), None, length=schedule.num_trajectories)
    validation = None
    if schedule.num_validation_steps:
        state, validation, last = rollout(actor, params_fn(acting), state, schedule.num_validation_steps)
        stats = jax.tree.map(lambda xs, x: jnp.append(xs, x), stats, last)
    return state, trajectories, validation, jax.tree.map(jnp.sum, stats)


def restart(environment: Environment, agent: Agent, state: ActorState) -> ActorState:
    """Begin new episodes in the same environments, for another agent."""
    return _at_start(environment, agent, state.key, jax.vmap(environment.restart)(state.env_state))


def _at_start(environment: Environment, agent: Agent, key: Array, env_state: Any) -> ActorState:
    """Return a state in which the episodes, of which these are the environments' states, have just begun."""
    observation = agent.prepare(jax.vmap(environment.observe)(env_state))
    batch_size = len(observation)
    zeros, ones = (functools.partial(make, batch_size) for make in (jnp.zeros, jnp.ones))  # each an array of its own
    time_step = TimeStep(observation, zeros(jnp.float32), ones(jnp.float32), zeros(bool), zeros(bool), ones(bool))
    core_state, episode_return = agent.initial_state(batch_size), zeros(jnp.float32)
    return ActorState(key, env_state, time_step, core_state, episode_return, jnp.zeros((), jnp.int32))


def empty_trajectory(
    agent: Agent | None,
    observation: Array,
    num_steps: int,
    num_actions: int,
    make: Callable[..., Any] = jnp.zeros,
    before: tuple[int, ...] = (),
) -> Trajectory:
    """Make arrays of shape and dtype for a trajectory, of an agent's core state, too, with further axes before.

    `observation` [B, ...] is a prepared one, or stands for its shape and dtype.
    """
    batch_size = len(observation)
    steps = lambda dtype, *shape: make((*before, num_steps, batch_size, *shape), dtype)
    return Trajectory(
        observation=make((*before, num_steps + 1, *observation.shape), observation.dtype),
        is_first=make((*before, num_steps + 1, batch_size), bool),
        action=steps(jnp.int32),
        reward=steps(jnp.float32),
        discount=steps(jnp.float32),
        truncated=steps(bool),
        valid=steps(bool),
        behaviour_logits=steps(jnp.result_type(float), num_actions),
        core_state=agent.initial_state(batch_size) if agent else (),
    )
