"""Curricula: which tasks an agent is trained on, chosen inside the program that acts and learns.

A trajectory is an episode of one task in each environment. What follows an episode's end is not learned from, nor is an
episode that was only played to find out what its task is worth. Source: AdA (Bauer et al. 2023), section 2.3 and
appendix D.5: no-op filtering, and prioritised level replay (PLR, `level_replay`).
"""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from agents.acting.in_jax import Curriculum, Policy, in_first_episode
from agents.acting.trials import play
from agents.networks.agent import Agent
from agents.settings import POSITIVE, Count, Fraction, OneOf, Positive, Settings
from agents.types import Array, Params, TargetSpec, Trajectory
from meta.updates.level_replay import (
    ACTION_MODEL,
    FITNESS,
    LEARNABILITY,
    TD_ERROR,
    VALUE_MODEL,
    Archive,
    empty_archive,
    insert_all,
    normalised,
    replay_probabilities,
    step_errors,
    successes,
)
from toy_envs.base import Environment
from toy_envs.trials import Trials

UNIFORM, NO_OP, PLR = KINDS = ("uniform", "no_op", "plr")
NUM_EPISODES = 10  # of agent and no-op, of one trial each, that a task is admitted by
# Table D.4; thresholds of returns are shares of the most that a trial can pay, 1.
DIFFERENCE, MAX_OF_NO_OP, GOOD, MAX_GOOD, MIN_BETTER, MIN_WORSE, RANGE = 0.01, 1.1, 0.4, 5, 1, 3, 0.01


@dataclasses.dataclass
class CurriculumConfig(Settings):
    """How tasks are chosen (Bauer et al. 2023, section 2.3).

    Attributes:
      kind: 'uniform', as the environment draws them; 'no_op', through the no-op filter; or 'plr', by prioritised level
        replay.
      num_train: Trials (PLR) or episodes (no-op filter) that a task is trained on before another is chosen, at least 1
        (Bauer et al. 2023, Table D.5 and appendix D.5).
      fitness: PLR: what a task is worth. 'learnability' is p (1 − p), p the share of trials that paid anything, for
        tasks that pay for success alone. Errors are means over steps: 'td_error' of |r + γ v(s′) − v(s)|, 'value_model'
        and 'action_model' of what the model of Muesli predicts of the next state's value, and of its policy, by
        Jensen-Shannon divergence.
      is_of_last_trial: PLR: whether errors are those of the last trial alone, as in AdA, and not of all trials.
      num_judged: PLR: episodes by which a new task is judged, at least 1.
      is_robust: PLR: whether the agent learns from what is replayed alone, and not from new tasks, too (Jiang et al.
        2021, robust PLR).
      capacity: PLR: tasks that the archive holds, at least 1; none is replayed before it has nine tenths (Table D.5).
      replay: PLR: probability that what is chosen is of the archive, and not a new one, above 0 to 1.
      staleness: PLR: weight of how long ago a task was chosen, next to its fitness, from 0 to 1 (Table D.5).
      temperature: PLR: a task's probability goes by 1 / rank to the power of 1 / temperature; positive.
      max_share: PLR: the largest probability of a task among those that are replayed, above 0 to 1.
    """

    kind: Annotated[str, OneOf(KINDS)] = UNIFORM
    num_train: Count = 30
    fitness: Annotated[str, OneOf(FITNESS)] = LEARNABILITY
    is_of_last_trial: bool = False
    num_judged: Count = 8
    is_robust: bool = False
    capacity: Count = 1000
    replay: Annotated[Fraction, POSITIVE] = 0.8
    staleness: Fraction = 0.2
    temperature: Positive = 1.0
    max_share: Annotated[Fraction, POSITIVE] = 0.02

    @property
    def min_size(self) -> int:
        """Tasks in the archive from which on one is replayed."""
        return -(-9 * self.capacity // 10)


class Admitted(NamedTuple):
    """The tasks that passed the no-op filter and wait, first in, first out."""

    task_ids: Array  # uint32, [B]
    size: Array  # int32


class CurriculumState(NamedTuple):
    key: Array
    task_ids: Array  # uint32, [B]
    num_trials: Array  # int32, [B], of the episode
    is_trained: Array  # bool, [B]: the episode is learned from
    is_new: Array  # bool, [B]: the task is none of the archive
    num_left: Array  # int32, [B], trials that the task is trained on, or episodes
    judged: Array  # float32, [2, B]: the sum, since the task was chosen, of what is in its fitness, and the number
    tasks: Archive | Admitted


def check_curriculum(config: CurriculumConfig, environment: Any, lengths: Mapping[str, int], spec: TargetSpec) -> None:
    """Raise a ValueError where tasks cannot be chosen as the settings say.

    Args:
      environment: of any kind.
      lengths: steps of trajectories, by the names of their settings.
      spec: of the predictions that agents make.
    """
    if config.kind == UNIFORM:
        return
    named = f"curriculum.kind is {config.kind!r}"
    if not isinstance(environment, Trials) or environment.horizon is None:
        raise ValueError(f"{named}, expected {UNIFORM!r}: the environment is none of trials of known length")
    for name, length in lengths.items():
        if length != environment.horizon:
            raise ValueError(
                f"{name} is {length}, expected {environment.horizon}: with a curriculum a trajectory is an episode"
            )
    num_tasks = len(environment.environment.task_ids)
    if config.kind == PLR:
        if config.capacity > num_tasks:
            expected = f"at most the {num_tasks} tasks there are"
            raise ValueError(f"curriculum.capacity is {config.capacity}, expected {expected}")
        needed = {TD_ERROR: {"value", "value_bins"}, VALUE_MODEL: {"model_value"}, ACTION_MODEL: {"model_policy"}}
        if config.fitness in needed and not needed[config.fitness] & set(spec):
            raise ValueError(
                f"curriculum.fitness is {config.fitness!r}, expected {LEARNABILITY!r}: agents predict "
                f"{', '.join(spec)}, and no {' or '.join(sorted(needed[config.fitness]))}"
            )
        if round(1 / config.max_share, 6) > config.min_size:
            least = f"1 / {config.min_size}, as so many tasks are replayed at least"
            raise ValueError(f"curriculum.max_share is {config.max_share}, expected at least {least}")
        if config.fitness == LEARNABILITY and not environment.environment.has_time_left:
            raise ValueError(
                f"curriculum.fitness is {LEARNABILITY!r}, expected another one: the environment does not say what time "
                "is left (`time_left`), so that trials are not told apart"
            )
    if config.kind == NO_OP and environment.environment.no_op is None:
        raise ValueError(f"{named}, expected another one: the environment has no action that does nothing")


def make_curriculum(
    config: CurriculumConfig, environment: Environment, agent: Agent, policy: Policy, discount: float
) -> Curriculum | None:
    """Make what chooses the tasks of an actor, None for a uniform choice, which is the environment's own.

    Its agents are to pass `check_curriculum`. γ is that of the errors by which PLR goes.
    """
    if config.kind == UNIFORM:
        return None
    assert isinstance(environment, Trials)
    trials, one_trial, num_tasks = environment, environment.environment, len(environment.environment.task_ids)

    def draw(key: Array, num: int) -> Array:
        first, bits = np.uint32(one_trial.task_ids.start), jax.random.bits(key, (num,))
        return first + bits % np.uint32(num_tasks)

    def init(key: Array, batch_size: int) -> CurriculumState:
        key, draw_key = jax.random.split(key)
        zeros = jnp.zeros(batch_size, jnp.int32)
        tasks: Archive | Admitted = Admitted(jnp.zeros(batch_size, jnp.uint32), jnp.zeros((), jnp.int32))
        if config.kind == PLR:
            tasks = empty_archive(config.capacity, trials.num_trials)
        judged = jnp.zeros((2, batch_size))
        return CurriculumState(key, draw(draw_key, batch_size), zeros, zeros > 0, zeros < 0, zeros, judged, tasks)

    def begin(state: CurriculumState, params: Params, env_state: Any) -> tuple[CurriculumState, Any]:
        key, draw_key, choice_key = jax.random.split(state.key, 3)
        state = state._replace(key=key)
        if config.kind == PLR:
            state = choose_by_plr(config, state, draw(draw_key, len(state.task_ids)), choice_key)
        else:
            proposed = draw(draw_key, max(1, len(state.task_ids) // 8))
            state = choose_admitted(config, state, proposed, is_admitted(params, proposed, choice_key))
        env_state = jax.vmap(trials.begin)(env_state, jax.vmap(one_trial.numbered_state)(state.task_ids))
        return state._replace(num_trials=env_state.num_trials), env_state

    def is_admitted(params: Params, task_ids: Array, key: Array) -> Array:
        tasks, keys = jax.vmap(one_trial.numbered_state)(task_ids), jax.random.split(key)
        nothing = jnp.where(jnp.arange(trials.num_actions) == one_trial.no_op, 0.0, -jnp.inf)
        idle = lambda predictions: jnp.broadcast_to(nothing, policy(predictions).shape)
        returns, of_no_op = (
            play(agent, each, params, one_trial, tasks, key, num_trials=1, num_episodes=NUM_EPISODES)[..., 0]
            for each, key in zip((policy, idle), keys, strict=True)
        )
        return passes_no_op_filter(returns, of_no_op)

    def end(state: CurriculumState, params: Params, trajectory: Trajectory) -> tuple[CurriculumState, Trajectory]:
        is_played = trajectory.valid & in_first_episode(trajectory.is_last)
        is_valid = is_played & state.is_trained
        if not isinstance(state.tasks, Archive):
            return state._replace(num_left=state.num_left - 1), trajectory._replace(valid=is_valid)
        num_left = state.num_left - jnp.where(state.is_new, 1, state.num_trials)
        archive = state.tasks
        if config.fitness == LEARNABILITY:
            found = successes(trajectory.reward, trials.is_first_of_trial(trajectory.observation[:-1]), is_played)
        else:
            is_counted = is_played & (trials.is_last_trial(trajectory.observation[:-1]) | (not config.is_of_last_trial))
            errors = step_errors(config.fitness, agent.unroll(params, trajectory), trajectory, discount)
            mean = jnp.sum(jnp.where(is_counted, errors, 0.0), axis=0) / jnp.sum(is_counted, axis=0)
            archive, mean = normalised(archive, mean, state.num_trials)
            found = jnp.stack([mean, jnp.ones_like(mean)])
        judged = state.judged + found
        mean = judged[0] / judged[1]
        fitness = mean * (1 - mean) if config.fitness == LEARNABILITY else mean
        archive = insert_all(archive, state.task_ids, jnp.where(num_left <= 0, fitness, jnp.nan), state.is_new)
        return state._replace(num_left=num_left, judged=judged, tasks=archive), trajectory._replace(valid=is_valid)

    return Curriculum(init, begin, end)


def choose_by_plr(config: CurriculumConfig, state: CurriculumState, proposed: Array, key: Array) -> CurriculumState:
    """Choose new tasks where no trial is left: of the archive, once it is full enough, or a proposed one, [B]."""
    archive, is_due, batch_size = state.tasks, state.num_left <= 0, len(proposed)
    assert isinstance(archive, Archive)
    replay_key, slot_key = jax.random.split(key)
    is_full = jnp.sum(archive.fitness > -jnp.inf) >= config.min_size
    is_replayed = is_full & jax.random.bernoulli(replay_key, config.replay, (batch_size,))
    probabilities = replay_probabilities(archive, config.staleness, config.temperature, config.max_share)
    slots = jax.random.categorical(slot_key, jnp.log(probabilities), shape=(batch_size,))
    chosen = jnp.where(is_due & is_replayed, slots, config.capacity)
    return state._replace(
        task_ids=jnp.where(is_due, jnp.where(is_replayed, archive.task_ids[slots], proposed), state.task_ids),
        is_trained=jnp.where(is_due, is_replayed | (not config.is_robust), state.is_trained),
        is_new=jnp.where(is_due, ~is_replayed, state.is_new),
        num_left=jnp.where(is_due, jnp.where(is_replayed, config.num_train, config.num_judged), state.num_left),
        judged=jnp.where(is_due, 0.0, state.judged),
        tasks=archive._replace(
            chosen_at=archive.chosen_at.at[chosen].set(archive.num_choices + 1, mode="drop"),
            num_choices=archive.num_choices + 1,
        ),
    )


def passes_no_op_filter(returns: Array, of_no_op: Array) -> Array:
    """Whether an agent can learn from tasks, [n] bool, by its returns and those of doing nothing, [n, episodes]."""
    count = lambda x: jnp.sum(x, axis=1)
    worst, best = jnp.min(of_no_op, axis=1, keepdims=True), jnp.max(of_no_op, axis=1, keepdims=True)
    is_other = (count(returns >= best + DIFFERENCE) >= MIN_BETTER) | (count(returns <= worst - DIFFERENCE) >= MIN_WORSE)
    is_varied = jnp.max(returns, axis=1) - jnp.min(returns, axis=1) >= RANGE
    return (best[:, 0] <= MAX_OF_NO_OP) & (count(returns >= GOOD) <= MAX_GOOD) & is_other & is_varied


def choose_admitted(
    config: CurriculumConfig, state: CurriculumState, proposed: Array, is_admitted: Array
) -> CurriculumState:
    """Let proposed tasks [n] that are admitted wait where there is room, and give them out where no episode is left.

    An environment for which there is none goes on with its task; it is trained on once it has an admitted one.
    """
    waiting, is_due = state.tasks, state.num_left <= 0
    assert isinstance(waiting, Admitted)
    places = jnp.where(is_admitted, waiting.size + jnp.cumsum(is_admitted) - 1, len(waiting.task_ids))
    task_ids = waiting.task_ids.at[places].set(proposed, mode="drop")
    size = jnp.minimum(waiting.size + jnp.sum(is_admitted), len(task_ids))
    turn = jnp.cumsum(is_due) - 1
    is_given = is_due & (turn < size)
    num_given = jnp.sum(is_given)
    return state._replace(
        task_ids=jnp.where(is_given, task_ids[turn], state.task_ids),
        is_trained=state.is_trained | is_given,
        num_left=jnp.where(is_given, config.num_train, state.num_left),
        tasks=Admitted(jnp.roll(task_ids, -num_given), size - num_given),
    )
