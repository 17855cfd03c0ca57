"""Curricula: which tasks an agent is trained on, chosen inside the program that acts and learns.

A trajectory is an episode of one task in each environment. What follows an episode's end is not learned from, nor is an
episode that was only played to find out what its task is worth. Sources: AdA (Bauer et al. 2023), section 2.3 and
appendix D.5: no-op filtering, and prioritised level replay (PLR) after Jiang et al. 2021. Learnability: Rutherford et
al. 2024.
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
from agents.rules.action_values import taken, taken_vectors
from agents.rules.categorical import kl_divergence, to_scalars
from agents.rules.moving_average import MovingAverage, initial_average, normalise, update_average
from agents.settings import POSITIVE, Count, Fraction, OneOf, Positive, Settings
from agents.types import Array, Params, Predictions, TargetSpec, Trajectory, successors
from toy_envs.base import Environment
from toy_envs.trials import Trials

UNIFORM, NO_OP, PLR = KINDS = ("uniform", "no_op", "plr")
LEARNABILITY, TD_ERROR, VALUE_MODEL, ACTION_MODEL = FITNESS = (
    "learnability",
    "td_error",
    "value_model",
    "action_model",
)
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
      fitness: PLR: what a task is worth. 'learnability' is p (1 − p), p the share of trials that paid anything. Errors
        are means over steps: 'td_error' of |r + γ v(s′) − v(s)|, 'value_model' and 'action_model' of what the model of
        Muesli predicts of the next state's value, and of its policy, by Jensen-Shannon divergence.
      is_of_last_trial: PLR: whether errors are those of the last trial alone, as in AdA, and not of all trials.
      num_judged: PLR: episodes by which a new task is judged, at least 1.
      is_robust: PLR: whether the agent learns from what is replayed alone, and not from new tasks, too (Jiang et al.
        2021, robust PLR).
      capacity: PLR: tasks that the archive holds, at least 1; none is replayed before it has nine tenths (Table D.5).
      replay: PLR: probability that what is chosen is of the archive, and not a new one, above 0 to 1 (Table D.5).
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


class Archive(NamedTuple):
    """The tasks that PLR replays."""

    task_ids: Array  # uint32, [capacity]
    fitness: Array  # float32, [capacity]; -inf where there is no task yet
    chosen_at: Array  # int32, [capacity], the choice in which each was chosen last
    num_choices: Array  # int32; the choices of an iteration, of all environments that are due, count as one
    averages: MovingAverage  # of the fitness of last trials, by their place in the episode: [num_trials] each


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
    if config.kind == PLR and config.capacity > num_tasks:
        raise ValueError(f"curriculum.capacity is {config.capacity}, expected at most the {num_tasks} tasks there are")
    if config.kind == PLR:
        needed = {TD_ERROR: {"value", "value_bins"}, VALUE_MODEL: {"model_value"}, ACTION_MODEL: {"model_policy"}}
        if config.fitness in needed and not needed[config.fitness] & set(spec):
            raise ValueError(
                f"curriculum.fitness is {config.fitness!r}, expected {LEARNABILITY!r}: agents predict "
                f"{', '.join(spec)}, and no {' or '.join(sorted(needed[config.fitness]))}"
            )
        if config.max_share * config.min_size < 1:
            least = f"{1 / config.min_size:.2g}, as that many ({config.min_size}) tasks are replayed at least"
            raise ValueError(f"curriculum.max_share is {config.max_share}, expected at least {least}")
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


def state_values(predictions: Predictions) -> Array:
    """Return v(s) of predictions that have it, as numbers or in bins, [T + 1, B]."""
    return predictions["value"] if "value" in predictions else to_scalars(predictions["value_bins"])


def step_errors(fitness: str, predictions: Predictions, trajectory: Trajectory, discount: float) -> Array:
    """Return the errors of steps, [T, B], of which a fitness is the mean (Bauer et al. 2023, appendix D.5).

    |r + γ v(s′) − v(s)|; or between what the model predicts of the next state and what is predicted there: the size of
    the difference of values, the latter 0 where the episode terminated; or the Jensen-Shannon divergence of policies, 0
    where it ended. A model's predictions are of all actions.
    """
    if fitness == ACTION_MODEL:
        model = jax.nn.log_softmax(taken_vectors(predictions["model_policy"], trajectory))
        found = jax.nn.log_softmax(successors(predictions["policy"], trajectory))
        middle = jnp.logaddexp(model, found) - jnp.log(2.0)
        divergence = (kl_divergence(model, middle) + kl_divergence(found, middle)) / 2
        return jnp.where(trajectory.is_last, 0.0, divergence)
    values = state_values(predictions)
    following = trajectory.discount * successors(values, trajectory)
    if fitness == VALUE_MODEL:
        return jnp.abs(following - taken(to_scalars(predictions["model_value"]), trajectory))
    return jnp.abs(trajectory.reward + discount * following - values[:-1])


def successes(reward: Array, is_first: Array, is_played: Array) -> Array:
    """Count the trials of steps that are played in which a reward was positive, and all of them: [2, B] of [T, B]."""

    def step(carry: tuple[Array, Array], now: tuple[Array, Array, Array]) -> tuple[tuple[Array, Array], None]:
        was_paid, counts = carry
        reward, is_first, is_played = now
        was_paid &= ~is_first
        is_paid = is_played & (reward > 0) & ~was_paid  # for the first time in this trial
        return (was_paid | is_paid, counts + jnp.stack([is_paid, is_played & is_first])), None

    start = jnp.zeros(reward.shape[1:], bool), jnp.zeros((2, *reward.shape[1:]))
    return jax.lax.scan(step, start, (reward, is_first, is_played))[0][1]


def empty_archive(capacity: int, num_trials: int) -> Archive:
    zeros, nothing = jnp.zeros(capacity, jnp.int32), jnp.full(capacity, -jnp.inf)
    averages = jax.tree.map(lambda x: jnp.full(num_trials, x), initial_average())
    return Archive(zeros.astype(jnp.uint32), nothing, zeros, jnp.zeros((), jnp.int32), averages)


def normalised(archive: Archive, fitness: Array, num_trials: Array) -> tuple[Archive, Array]:
    """Count episodes' fitness, [B], among those of as many trials, [B], and return it by their mean and deviation."""
    is_of = num_trials == 1 + jnp.arange(len(archive.averages.moment1))[:, None]  # [num_trials, B]
    update = lambda average, valid: update_average(average, fitness, valid)
    averages = jax.vmap(update)(archive.averages, is_of & jnp.isfinite(fitness))
    own = jax.tree.map(lambda x: x[num_trials - 1], averages)
    return archive._replace(averages=averages), normalise(own, fitness)


def insert_all(archive: Archive, task_ids: Array, fitness: Array, is_new: Array) -> Archive:
    """Give tasks their fitness, one after another: a new one takes the place of the least fit, if it is fitter.

    A fitness that is not finite changes nothing, nor does that of a task which is not new and no longer there.
    """

    def insert(archive: Archive, one: tuple[Array, Array, Array]) -> tuple[Archive, None]:
        task_id, fitness, is_new = one
        is_there = (archive.task_ids == task_id) & (archive.fitness > -jnp.inf)
        slot = jnp.where(jnp.any(is_there), jnp.argmax(is_there), jnp.argmin(archive.fitness))
        enters = is_new & (fitness > archive.fitness[slot])
        slot = jnp.where(jnp.isfinite(fitness) & (jnp.any(is_there) | enters), slot, len(archive.fitness))
        put = lambda xs, x: xs.at[slot].set(x, mode="drop")
        chosen_at = jnp.where(jnp.any(is_there), archive.chosen_at, put(archive.chosen_at, archive.num_choices))
        return archive._replace(
            task_ids=put(archive.task_ids, task_id), fitness=put(archive.fitness, fitness), chosen_at=chosen_at
        ), None

    return jax.lax.scan(insert, archive, (task_ids, fitness, is_new))[0]


def replay_probabilities(archive: Archive, staleness: float, temperature: float, max_share: float = 1.0) -> Array:
    """(1 − s) P_fitness + s P_staleness, [capacity]; 0 where there is no task (Jiang et al. 2021, section 3).

    P_fitness ∝ rank^(−1 / temperature), P_staleness ∝ the number of choices since the task was chosen. What is above
    `max_share` goes to the other tasks, in proportion to what they have less than it.
    """
    is_there = archive.fitness > -jnp.inf
    ranks = 1 + jnp.argsort(jnp.argsort(-archive.fitness))
    of_fitness = jnp.where(is_there, (1 / ranks) ** (1 / temperature), 0.0)
    since = jnp.where(is_there, archive.num_choices - archive.chosen_at, 0)
    share = lambda x: x / jnp.maximum(jnp.sum(x), 1e-12)
    found = share((1 - staleness) * share(of_fitness) + staleness * share(since))
    room = jnp.where(is_there, jnp.maximum(0.0, max_share - found), 0.0)
    return jnp.minimum(found, max_share) + jnp.sum(jnp.maximum(0.0, found - max_share)) * share(room)


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
