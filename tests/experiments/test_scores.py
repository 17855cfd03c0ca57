"""Normalised scores, and aggregates of them."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rliable import library, metrics

from experiments import statistics
from experiments.files import UsageError
from experiments.scores import normalised, reference_scores
from toy_envs.grid_worlds import GridWorld, make_world


def test_human_normalised_scores_are_those_of_the_published_formula():
    random, human = -20.7, 14.6  # Pong, DQN Zoo
    returns = np.array([[-21.0, 3.5], [14.6, 20.0]])
    np.testing.assert_allclose(normalised("atari/pong", returns), (returns - random) / (human - random), rtol=1e-12)
    np.testing.assert_allclose(normalised("atari/Pong", returns), normalised("atari/pong", returns))
    assert reference_scores("atari/Pong") == (random, human)


def test_scores_of_toys_run_from_random_to_best():
    assert reference_scores("toy/catch") == pytest.approx((-9 / 11, 1))
    assert reference_scores("bsuite/catch/7") == pytest.approx((-0.6, 1))
    assert normalised("toy/catch/5x5", np.array([-0.6, 0.2, 1.0])) == pytest.approx([0, 0.5, 1], abs=1e-6)
    for env in ("toy/random_walk", "toy/grid_world/1", "bsuite/deep_sea/0", "envpool/Acrobot-v1"):
        with pytest.raises(UsageError, match=f"{env}.*toy/grid_world/<an even number>"):
            normalised(env, np.zeros(1))


@pytest.mark.parametrize("index", [0, 8, 48])
def test_random_play_in_a_grid_world_is_what_acting_gives(index):
    environment, num = GridWorld(index), 4000

    def episode(key):
        state, _ = environment.init(key)

        def body(carry, key):
            state, total, is_going = carry
            state, step = environment.step(state, jax.random.randint(key, (), 0, 5))
            total += is_going * step.reward
            return (state, total, is_going * (step.discount != 0) * ~step.truncated), None

        keys = jax.random.split(jax.random.fold_in(key, 1), int(make_world(index).horizon))
        return jax.lax.scan(body, (state, 0.0, jnp.ones(())), keys)[0][1]

    returns = np.asarray(jax.jit(jax.vmap(episode))(jax.random.split(jax.random.key(0), num)))
    random, best = reference_scores(f"toy/grid_world/{index}")
    assert abs(returns.mean() - random) < 4 * returns.std() / np.sqrt(num)
    assert returns.max() >= best - 1e-3 or best > random


def test_statistics_are_those_of_rliable_and_the_same_every_time():
    rng = np.random.default_rng(0)
    scores = {name: rng.normal(shift, 0.3, (5, 4)) for name, shift in (("a", 0.2), ("b", 0.6))}
    for name, own in statistics.aggregates(scores).items():
        assert own["IQM"].value == metrics.aggregate_iqm(scores[name])
        assert own["median"].value == metrics.aggregate_median(scores[name])
        assert own["optimality gap"].value == metrics.aggregate_optimality_gap(scores[name])
        assert all(x.low < x.value < x.high for x in own.values())
    trimmed = np.sort(scores["a"].ravel())[5:-5]  # the middle half of twenty runs
    assert statistics.aggregates(scores)["a"]["IQM"].value == pytest.approx(trimmed.mean())
    (better,) = statistics.improvements(scores, "a").values()
    wins = [np.mean([x > y for x, y in itertools.product(scores["b"][:, e], scores["a"][:, e])]) for e in range(4)]
    assert better.value == pytest.approx(np.mean(wins)) and better.low < better.value <= better.high <= 1
    taus = np.linspace(-1, 2, 7)
    profile = statistics.profiles(scores, taus)["b"]
    np.testing.assert_allclose(profile.value, library.create_performance_profile(scores, taus, reps=2)[0]["b"])
    assert np.all(np.diff(profile.value) <= 0) and np.all(profile.low <= profile.high)
    again = statistics.aggregates(scores)
    assert str(again) == str(statistics.aggregates(scores))
