"""Prioritised level replay: what tasks are worth, and the archive of those that are replayed.

Sources: Jiang et al. 2021; AdA (Bauer et al. 2023), appendix D.5. Learnability: Rutherford et al. 2024.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from agents.rules.action_values import taken, taken_vectors
from agents.rules.categorical import kl_divergence, to_scalars
from agents.rules.moving_average import MovingAverage, initial_average, normalise, update_average
from agents.types import Array, Predictions, Trajectory, successors

LEARNABILITY, TD_ERROR, VALUE_MODEL, ACTION_MODEL = FITNESS = (
    "learnability",
    "td_error",
    "value_model",
    "action_model",
)


class Archive(NamedTuple):
    """The tasks that PLR replays."""

    task_ids: Array  # uint32, [capacity]
    fitness: Array  # float32, [capacity]; -inf where there is no task yet
    chosen_at: Array  # int32, [capacity], the choice in which each was chosen last
    num_choices: Array  # int32; the choices of an iteration, of all environments that are due, count as one
    averages: MovingAverage  # of errors, by the number of trials of the episode: [num_trials] each


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
    fittest_first = jnp.sort(-archive.fitness)
    place = lambda side: jnp.searchsorted(fittest_first, -archive.fitness, side)
    ranks = (1 + place("left") + place("right")) / 2  # equal ones have their mean rank
    of_fitness = jnp.where(is_there, (1 / ranks) ** (1 / temperature), 0.0)
    since = jnp.where(is_there, archive.num_choices - archive.chosen_at + 1e-6, 0.0)  # which may be 0 for all
    share = lambda x: x / jnp.maximum(jnp.sum(x), 1e-12)
    found = share((1 - staleness) * share(of_fitness) + staleness * share(since))
    room = jnp.where(is_there, jnp.maximum(0.0, max_share - found), 0.0)
    return jnp.minimum(found, max_share) + jnp.sum(jnp.maximum(0.0, found - max_share)) * share(room)
