"""Curricula: each choice against plain loops, what is learned from, and what never enters the archive."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import frodo
from agents.acting import in_jax as acting
from agents.acting.in_jax import Actor
from agents.networks.agent import make_agent
from agents.rules.categorical import to_scalars
from agents.rules.moving_average import DECAY
from agents.types import PredictionSpec
from frodo.rules.files import config_for, population_config
from frodo.settings import presets
from frodo.settings.config import PopulationConfig
from meta.updates import curriculum, level_replay
from meta.updates.curriculum import Admitted, CurriculumConfig
from tests.toy_envs.test_trials import Corridors
from tests.trajectories import random_trajectory
from toy_envs.base import Environment
from toy_envs.catch import Catch
from toy_envs.changing import Changing
from toy_envs.rule_room import RuleRoom
from toy_envs.trials import Trials

SPEC = {"policy": PredictionSpec((5,)), "value": PredictionSpec()}
ROOM = Trials(RuleRoom("easy", 40), 3, min_trials=1)
CHANGING = Trials(Changing(RuleRoom("easy", 40), "actions", 12), 3)
DISCOUNT = 0.9


class OfKnownLength(Corridors):
    horizon = 18


class WithoutTime(OfKnownLength):
    time_left = Environment.time_left


def filled(fitness, chosen_at, num_choices):
    archive = level_replay.empty_archive(len(fitness), 2)
    return archive._replace(
        task_ids=jnp.arange(10, 10 + len(fitness)).astype(jnp.uint32),
        fitness=jnp.array(fitness, jnp.float32),
        chosen_at=jnp.array(chosen_at),
        num_choices=jnp.int32(num_choices),
    )


def test_probabilities_of_the_archive_by_hand():
    # Ranks 2, 1 and 3; to the power of 1/0.5 the weights are 1/4, 1 and 1/9. Not chosen for 4, 1 and 5 choices.
    archive = filled([0.5, 2.0, -1.0, -np.inf], [6, 9, 5, 0], 10)
    expected = 0.8 * np.array([1 / 4, 1, 1 / 9, 0]) / (1 + 1 / 4 + 1 / 9) + 0.2 * np.array([4, 1, 5, 0]) / 10
    found = level_replay.replay_probabilities(archive, staleness=0.2, temperature=0.5)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_tasks_of_equal_fitness_are_as_probable():
    archive = filled([0.5, 2.0, 0.5, 0.0, 0.5, -np.inf], [9] * 5 + [0], 9)
    found = np.asarray(level_replay.replay_probabilities(archive, 0.0, 1.0))
    weights = 1 / np.array([3, 1, 3, 5, 3, np.inf])  # ranks 2, 3 and 4 are one
    np.testing.assert_allclose(found, weights / np.sum(weights), rtol=1e-5)
    assert np.sum(level_replay.replay_probabilities(archive, 1.0, 1.0)) == pytest.approx(1.0)  # all were chosen last


def test_no_task_has_more_than_its_share_and_what_is_above_it_goes_to_the_others():
    archive = filled([5.0, 2.0, -1.0, 0.0, -np.inf], [9, 9, 9, 9, 0], 10)
    free = np.asarray(level_replay.replay_probabilities(archive, 0.0, 0.5))
    found = np.asarray(level_replay.replay_probabilities(archive, 0.0, 0.5, max_share=0.4))
    assert free[0] > 0.7 and found[0] == pytest.approx(0.4) and np.sum(found) == pytest.approx(1.0) and found[4] == 0
    room = 0.4 - free[1:4]
    np.testing.assert_allclose(found[1:4], free[1:4] + (free[0] - 0.4) * room / np.sum(room), rtol=1e-5)
    even = np.asarray(level_replay.replay_probabilities(archive, 0.0, 0.5, max_share=0.25))
    np.testing.assert_allclose(even, [0.25] * 4 + [0.0], rtol=1e-5)


def entries_of(archive):
    is_there = np.asarray(archive.fitness) > -np.inf
    task_ids, fitness = (np.asarray(x)[is_there].tolist() for x in (archive.task_ids, archive.fitness))
    return dict(zip(task_ids, fitness, strict=True))


def insert_by_hand(entries, capacity, new):
    entries = dict(entries)
    for task_id, fitness, is_new in new:
        if not np.isfinite(fitness):
            continue
        if task_id in entries:
            entries[task_id] = fitness
        elif is_new and len(entries) < capacity:
            entries[task_id] = fitness
        elif is_new and fitness > min(entries.values()):
            del entries[min(entries, key=entries.get)]
            entries[task_id] = fitness
    return entries


@pytest.mark.parametrize("seed", range(5))
def test_the_archive_keeps_the_fittest_of_what_was_new(seed):
    rng, capacity = np.random.default_rng(seed), 6
    archive, entries = level_replay.empty_archive(capacity, 1), {}
    for _ in range(4):
        task_ids, fitness = rng.integers(0, 15, 7), rng.normal(size=7).astype(np.float32)
        fitness[rng.random(7) < 0.2] = rng.choice([np.nan, np.inf, -np.inf])
        is_new = rng.random(7) < 0.7
        entries = insert_by_hand(entries, capacity, zip(task_ids.tolist(), fitness.tolist(), is_new, strict=True))
        archive = level_replay.insert_all(
            archive, jnp.array(task_ids, jnp.uint32), jnp.array(fitness), jnp.array(is_new)
        )
        assert entries_of(archive) == pytest.approx(entries) and np.sum(archive.fitness > -np.inf) == len(entries)


def test_fitness_is_compared_with_that_of_episodes_of_as_many_trials():
    archive = level_replay.empty_archive(3, 2)
    rng, moments = np.random.default_rng(0), np.zeros((2, 2))
    weights = np.zeros(2)
    for _ in range(5):
        fitness, num_trials = rng.normal(size=6) + 3, rng.integers(1, 3, 6)
        fitness[0] = np.nan
        archive, found = level_replay.normalised(archive, jnp.array(fitness, jnp.float32), jnp.array(num_trials))
        for k in (1, 2):
            own = fitness[(num_trials == k) & np.isfinite(fitness)]
            if len(own):
                moments[k - 1] = DECAY * moments[k - 1] + (1 - DECAY) * np.array([own.mean(), np.mean(own**2)])
                weights[k - 1] = DECAY * weights[k - 1] + 1 - DECAY
    mean, square = (moments / weights[:, None]).T
    expected = (fitness - mean[num_trials - 1]) / np.sqrt(square - mean**2)[num_trials - 1]
    np.testing.assert_allclose(found[1:], expected[1:], rtol=1e-3, atol=1e-3)
    assert np.isnan(found[0])


@pytest.mark.parametrize("fitness", ["td_error", "value_model", "action_model"])
def test_errors_of_steps_by_hand(fitness):
    trajectory = random_trajectory(0, 5, 3)
    rng = np.random.default_rng(1)
    made = lambda *shape: rng.normal(size=(6, 3, *shape)).astype(np.float32)
    predictions = {"policy": made(4), "value_bins": made(7), "model_value": made(4, 7), "model_policy": made(4, 4)}
    scalars = lambda x: np.asarray(to_scalars(x))
    values, expected = scalars(predictions["value_bins"]), np.zeros((5, 3))
    softmax = lambda x: np.exp(x) / np.sum(np.exp(x))
    trajectory = trajectory._replace(truncated=jnp.zeros((5, 3), bool))
    assert np.any(trajectory.discount == 0)
    for t, b in np.ndindex(5, 3):
        action, discount = int(trajectory.action[t, b]), float(trajectory.discount[t, b])
        if fitness == "td_error":
            expected[t, b] = abs(trajectory.reward[t, b] + DISCOUNT * discount * values[t + 1, b] - values[t, b])
        elif fitness == "value_model":
            model = scalars(predictions["model_value"])[t, b, action]
            expected[t, b] = abs(discount * values[t + 1, b] - model)
        elif not trajectory.is_last[t, b]:
            p, q = softmax(predictions["model_policy"][t, b, action]), softmax(predictions["policy"][t + 1, b])
            divergence = lambda p, q: np.sum(p * np.log(p / q))
            expected[t, b] = divergence(p, (p + q) / 2) / 2 + divergence(q, (p + q) / 2) / 2
    found = level_replay.step_errors(fitness, jax.tree.map(jnp.asarray, predictions), trajectory, DISCOUNT)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


def test_trials_that_paid_anything_are_counted_once_each():
    rng = np.random.default_rng(0)
    reward = rng.choice([-1.0, 0.0, 0.0, 0.0, 0.5], (12, 6)).astype(np.float32)
    is_first, is_played = rng.random((12, 6)) < 0.3, np.arange(12)[:, None] < np.array([12, 12, 9, 7, 12, 1])
    is_first[0] = True
    expected = np.zeros((2, 6))
    for b in range(6):
        starts = [t for t in range(12) if is_first[t, b] and is_played[t, b]]
        for start, end in zip(starts, [*starts[1:], 12], strict=True):
            own = [reward[t, b] for t in range(start, end) if is_played[t, b]]
            expected[:, b] += [max(own) > 0, 1]
    np.testing.assert_array_equal(level_replay.successes(*map(jnp.asarray, (reward, is_first, is_played))), expected)
    assert 0 < expected[0].sum() < expected[1].sum()


@pytest.mark.parametrize(
    ("returns", "of_no_op", "passes"),
    [
        ([0.0] * 9 + [0.5], 0.0, True),  # one is better than doing nothing
        ([0.0] * 10, 0.0, False),  # as good as doing nothing
        ([0.5] * 6 + [0.0] * 4, 0.0, False),  # six are good already
        ([0.5] * 5 + [0.0] * 5, 0.0, True),  # five are not too many
        ([0.2] * 10, 0.0, False),  # always the same
        ([0.1] * 3 + [0.3] * 7, 0.3, True),  # three are worse than doing nothing
        ([0.1] * 2 + [0.3] * 8, 0.3, False),  # two are too few
        ([0.0] * 9 + [0.3], 1.2, False),  # doing nothing is too good, by however little it can be
    ],
)
def test_the_no_op_filter_by_table_d4(returns, of_no_op, passes):
    found = curriculum.passes_no_op_filter(jnp.array([returns]), jnp.full((1, 10), of_no_op))
    assert found.tolist() == [passes]


def test_admitted_tasks_are_given_out_in_turn():
    config = CurriculumConfig("no_op", num_train=7)
    lanes = jnp.array([3, 4, 5, 6], jnp.uint32)
    waiting = Admitted(jnp.array([90, 91, 0, 0], jnp.uint32), jnp.int32(2))
    num_left, is_trained = jnp.array([0, 2, 0, 0]), jnp.array([True, True, True, False])
    judged = jnp.zeros((2, 4))
    state = curriculum.CurriculumState(
        jax.random.key(0), lanes, num_left, is_trained, ~is_trained, num_left, judged, waiting
    )
    proposed = jnp.array([50, 51, 52], jnp.uint32)
    after = curriculum.choose_admitted(config, state, proposed, jnp.array([False, False, False]))
    assert after.task_ids.tolist() == [90, 4, 91, 6] and after.num_left.tolist() == [7, 2, 7, 0]
    assert after.is_trained.tolist() == [True, True, True, False] and int(after.tasks.size) == 0
    after = curriculum.choose_admitted(config, state, proposed, jnp.array([False, True, True]))
    assert after.task_ids.tolist() == [90, 4, 91, 51] and after.is_trained.tolist() == [True] * 4
    assert int(after.tasks.size) == 1 and int(after.tasks.task_ids[0]) == 52
    full = state._replace(tasks=Admitted(waiting.task_ids, jnp.int32(4)), num_left=jnp.full(4, 2))
    after = curriculum.choose_admitted(config, full, proposed, jnp.array([True] * 3))
    assert int(after.tasks.size) == 4 and after.tasks.task_ids.tolist() == waiting.task_ids.tolist()


def due(num_left, archive):
    """A state of PLR in which tasks have so many trials left."""
    num_left = jnp.array(num_left)
    task_ids = jnp.arange(len(num_left)).astype(jnp.uint32)
    no, judged = jnp.zeros_like(num_left, bool), jnp.full((2, len(num_left)), 3.0)
    return curriculum.CurriculumState(jax.random.key(0), task_ids, num_left, no, no, num_left, judged, archive)


def test_plr_replays_by_the_probabilities_and_a_task_for_so_many_trials():
    how = dict(num_judged=3, is_robust=True, max_share=1.0)
    config = CurriculumConfig("plr", num_train=7, capacity=4, replay=0.3, staleness=0.5, temperature=0.5, **how)
    archive = filled([0.5, 2.0, -1.0, 0.0], [6, 9, 5, 0], 10)
    num = 20_000
    state = due([0] * num + [5], archive)
    proposed = jnp.arange(100, 101 + num).astype(jnp.uint32)
    after = jax.device_get(curriculum.choose_by_plr(config, state, proposed, jax.random.key(1)))
    assert after.task_ids[-1] == num and after.num_left[-1] == 5 and not after.is_trained[-1]  # has trials left
    is_replayed = after.task_ids[:-1] < 100
    assert np.mean(is_replayed) == pytest.approx(0.3, abs=0.01)
    np.testing.assert_array_equal(after.is_trained[:-1], is_replayed)
    np.testing.assert_array_equal(after.is_new[:-1], ~is_replayed)
    np.testing.assert_array_equal(after.num_left[:-1], np.where(is_replayed, 7, 3))
    assert np.all(after.judged[:, :-1] == 0) and np.all(after.judged[:, -1] == 3)
    of_both = dataclasses.replace(config, is_robust=False)
    assert np.all(curriculum.choose_by_plr(of_both, state, proposed, jax.random.key(1)).is_trained[:-1])
    np.testing.assert_array_equal(after.task_ids[:-1][~is_replayed], proposed[:-1][~is_replayed])
    shares = np.bincount(after.task_ids[:-1][is_replayed] - 10, minlength=4) / np.sum(is_replayed)
    np.testing.assert_allclose(shares, level_replay.replay_probabilities(archive, 0.5, 0.5), atol=0.02)
    np.testing.assert_array_equal(after.tasks.chosen_at, [11] * 4)
    assert after.tasks.num_choices == 11


def test_what_plr_did_not_choose_grows_stale():
    config = CurriculumConfig("plr", capacity=2, replay=1.0, staleness=0.0, temperature=0.01, max_share=1.0)
    state = due([0, 0], filled([0.5, 2.0], [6, 9], 10))
    after = curriculum.choose_by_plr(config, state, jnp.zeros(2, jnp.uint32), jax.random.key(0))
    assert after.task_ids.tolist() == [11, 11] and after.tasks.chosen_at.tolist() == [6, 11]


def errors_by_hand(trajectory, values, num_trials, is_of_last):
    """Means of errors over the last trial of each episode, or over all; a trial of this room has twelve steps."""
    reward, discount = np.asarray(trajectory.reward), DISCOUNT * np.asarray(trajectory.discount)
    error = lambda t, b: abs(reward[t, b] + discount[t, b] * values[t + 1, b] - values[t, b])
    first = lambda k: 12 * (k - 1) if is_of_last else 0
    return [np.mean([error(t, b) for t in range(first(k), 12 * k)]) for b, k in enumerate(num_trials)]


@pytest.mark.parametrize(
    ("fitness", "is_of_last_trial", "num_judged"),
    [("td_error", True, 1), ("td_error", False, 2), ("learnability", False, 3)],
)
def test_the_archive_has_the_mean_of_what_a_task_was_judged_by(fitness, is_of_last_trial, num_judged):
    how = dict(num_train=9, capacity=9, replay=0.5, max_share=1.0)  # few places: what is replayed may have lost its own
    how |= dict(fitness=fitness, is_of_last_trial=is_of_last_trial, num_judged=num_judged)
    found = played("plr", 14 * num_judged, **how)
    num_replayed, num_lost, judged = 0, 0, np.zeros((2, 8))
    for (before, *_), (state, trajectory, _, values) in zip(found, found[1:], strict=False):
        before, own, values = jax.device_get((before.curriculum, state.curriculum, values))
        is_kept = before.num_left > 0
        if before is found[0][0].curriculum or not np.any(judged):
            judged = np.asarray(before.judged)
        judged = np.where(is_kept, judged, 0.0)
        if fitness == "learnability":
            reward, lengths = np.asarray(trajectory.reward), 12 * np.asarray(own.num_trials)
            paid = [[np.max(reward[t : t + 12, b]) > 0 for t in range(0, x, 12)] for b, x in enumerate(lengths)]
            judged = judged + np.array([[sum(one), len(one)] for one in paid]).T
            fitness_of = judged[0] / judged[1] * (1 - judged[0] / judged[1])
        else:
            errors = errors_by_hand(trajectory, values, own.num_trials, is_of_last_trial)
            _, errors = level_replay.normalised(before.tasks, jnp.array(errors, jnp.float32), own.num_trials)
            judged = judged + np.stack([errors, np.ones(8)])
            fitness_of = judged[0] / judged[1]
        np.testing.assert_allclose(own.judged, judged, rtol=1e-3, atol=1e-3)
        num_left = np.where(is_kept, before.num_left, np.where(own.is_new, num_judged, 9))
        num_left = num_left - np.where(own.is_new, 1, own.num_trials)
        np.testing.assert_array_equal(own.num_left, num_left)
        is_over = num_left <= 0
        new = zip(own.task_ids[is_over].tolist(), fitness_of[is_over].tolist(), own.is_new[is_over], strict=True)
        expected = insert_by_hand(entries_of(before.tasks), 9, new)
        assert entries_of(own.tasks) == pytest.approx(expected, rel=1e-3, abs=1e-3)
        num_replayed += int(np.sum(~own.is_new))
        num_lost += len(set(own.task_ids[~own.is_new].tolist()) - set(before.tasks.task_ids.tolist()))
    assert num_replayed > num_lost > 0


def played(kind, num_rollouts, **settings):
    """Return, of an agent that acts at random, states, trajectories, numbers of episodes and values."""
    agent = make_agent(frodo.NetworkConfig("mlp", (4,), core=3), SPEC, num_actions=5)
    policy = lambda predictions: predictions["policy"]
    config = CurriculumConfig(kind, **settings)
    config.validate()
    chooser = curriculum.make_curriculum(config, ROOM, agent, policy, DISCOUNT)
    actor = Actor(ROOM, agent, policy, curriculum=chooser)
    state = acting.init_actor(ROOM, agent, jax.random.key(0), 8, chooser)
    params = jax.jit(agent.init)(jax.random.key(1), state.time_step.observation)
    step = jax.jit(lambda state: acting.rollout(actor, params, state, ROOM.horizon))
    found = []
    for _ in range(num_rollouts):
        state, trajectory, stats = step(state)
        values = level_replay.state_values(agent.unroll(params, trajectory))
        found.append((state, trajectory, stats.num_episodes, values))
    return found


@pytest.mark.parametrize("kind", ["plr", "no_op"])
def test_each_trajectory_is_an_episode_and_only_chosen_ones_are_learned_from(kind):
    settings = dict(num_judged=1, is_robust=True, max_share=1.0) if kind == "plr" else {}
    found = played(kind, 14, num_train=4, capacity=20, replay=0.5, **settings)
    num_trained, kept = 0, 0
    for (before, *_), (state, trajectory, num_episodes, _) in zip([(None,), *found], found, strict=False):
        own = state.curriculum
        assert np.all(trajectory.is_first[0]), "an episode begins with the trajectory"
        lengths = 12 * np.asarray(own.num_trials)  # a trial of this room has twelve steps
        is_played = np.arange(ROOM.horizon)[:, None] < lengths
        np.testing.assert_array_equal(trajectory.valid, is_played & np.asarray(own.is_trained))
        np.testing.assert_array_equal(np.argmax(trajectory.discount == 0, axis=0), lengths - 1)
        assert int(num_episodes) == 8, "those that follow in a trajectory are nobody's choice"
        first = jax.vmap(lambda task_id: ROOM.environment.observe(ROOM.environment.numbered_state(task_id)))
        np.testing.assert_array_equal(trajectory.observation[0][:, : 16 * 5 + 11], first(own.task_ids))
        num_trained += int(np.sum(own.is_trained))
        if before is not None:
            is_same = np.asarray(before.curriculum.num_left > 0)
            np.testing.assert_array_equal(own.task_ids[is_same], before.curriculum.task_ids[is_same])
            kept += int(np.sum(is_same))
    assert 0 < num_trained < 14 * 8 and kept > 0
    assert len({int(x) for state, *_ in found for x in state.curriculum.num_trials}) == 3
    if kind == "plr":
        for state, *_ in found:
            own = jax.device_get(state.curriculum)
            assert np.all(own.num_left[~own.is_trained] <= 0), "a new task is played once"
        sizes = [int(np.sum(state.curriculum.tasks.fitness > -np.inf)) for state, *_ in found]
        assert sizes[0] == 8 and max(sizes) <= 20 and np.all(np.diff(sizes) >= 0)
        for (before, *_), (state, *_) in zip(found, found[1:], strict=False):
            if np.sum(before.curriculum.tasks.fitness > -np.inf) < 18:
                assert not np.any(state.curriculum.is_trained), "nothing is replayed before nine tenths are there"


@pytest.mark.parametrize(
    ("curriculum_settings", "others", "env", "message"),
    [
        ({"kind": "plr"}, {}, "catch", "^curriculum.kind is 'plr', expected 'uniform': the environment is none of"),
        ({"kind": "plr", "capacity": 50}, {}, "room", "^curriculum.capacity is 50, expected at most the 40 tasks"),
        ({"kind": "plr", "capacity": 0}, {}, "room", "^curriculum.capacity is 0, expected an integer of at least 1"),
        (
            {"kind": "plr", "capacity": 40},
            {},
            "room",
            "^curriculum.max_share is 0.02, expected at least 1 / 36, as so",
        ),
        (
            {"kind": "plr", "capacity": 9, "max_share": 1.0, "fitness": "value_model"},
            {},
            "room",
            "^curriculum.fitness is 'value_model', expected 'learnability': agents predict policy, value, and no model",
        ),
        ({"kind": "prl"}, {}, "room", "^curriculum.kind is 'prl', expected one of uniform, no_op, plr"),
        ({"kind": "plr", "replay": 0.0, "capacity": 9}, {}, "room", "^curriculum.replay is 0.0, expected a positive"),
        ({"kind": "plr", "capacity": 50}, {}, "changing", "^curriculum.capacity is 50, expected at most the 40 tasks"),
        (
            {"kind": "plr", "capacity": 9},
            {"replay": frodo.ReplayConfig(8, 2, 0.0), "is_acting_interleaved": False},
            "room",
            "^curriculum.kind is 'plr' and replay.capacity is 8, expected one of the two",
        ),
        ({"kind": "plr", "capacity": 9}, {"unroll": 35}, "room", "^unroll is 35, expected 36: with a curriculum a"),
        ({"kind": "no_op"}, {}, "corridors", "^curriculum.kind is 'no_op', expected another one: the environment has"),
        (
            {"kind": "plr", "capacity": 60},
            {},
            "no_time",
            "^curriculum.fitness is 'learnability', expected another one: the environment does not say what time is",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(curriculum_settings, others, env, message):
    with pytest.raises(ValueError, match=message) as error:
        frodo.discover_online(
            {
                "room": ROOM,
                "corridors": Trials(OfKnownLength(), 2),
                "no_time": Trials(WithoutTime(), 2),
                "catch": Catch(),
                "changing": CHANGING,
            }[env],
            "impala",
            num_steps=1000,
            key=jax.random.key(0),
            curriculum=CurriculumConfig(**curriculum_settings),
            **dict(batch_size=2, unroll=36, network=frodo.NetworkConfig("mlp", (4,), core=3)) | others,
        )
    assert "\n" not in str(error.value)


def test_a_rule_is_learned_by_elsewhere_without_the_tasks_of_its_discovery():
    rule = frodo.make_rule("impala")
    rule = dataclasses.replace(rule, config=rule.config.replace(curriculum=CurriculumConfig("plr")))
    assert config_for(rule, presets.for_rule("toy/catch", "impala")).curriculum == CurriculumConfig()
    assert population_config(rule).curriculum == CurriculumConfig()
    small = dict(num_steps=4, batch_size=2, unroll=2, network=frodo.NetworkConfig("mlp", (4,)))
    assert (
        frodo.discover_online(Catch(), rule, key=jax.random.key(0), **small).learner.config.curriculum.kind == "uniform"
    )


def test_a_population_has_no_curriculum():
    config = dataclasses.replace(PopulationConfig(), curriculum=CurriculumConfig("plr"))
    with pytest.raises(ValueError, match="curriculum.kind is 'plr', expected 'uniform' in a population"):
        config.validate()
