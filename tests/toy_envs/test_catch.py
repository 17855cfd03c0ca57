"""Catch against plain loops, and its exact values against published and enumerated ones."""

import jax
import numpy as np
import pytest

from tests.reference import toy_envs as reference
from tests.toy_envs.stepping import run
from toy_envs.catch import Catch


def test_episodes_are_those_of_a_plain_loop():
    catch, num_episodes = Catch(rows=5, columns=4), 6
    state, first = catch.init(jax.random.key(3))
    actions = np.random.default_rng(0).integers(0, 3, num_episodes * 4)
    _, steps, _ = run(catch, state, actions)
    shown = np.concatenate([first.observation[None], steps.observation])
    is_end = np.arange(len(actions)) % 4 == 3
    pellets = set()
    for episode in range(num_episodes):
        at = slice(4 * episode, 4 * episode + 4)
        pellet = int(np.argmax(shown[at.start][0]))
        pellets.add(pellet)
        observations, rewards = reference.catch_episode(5, 4, pellet, actions[at])
        np.testing.assert_array_equal(shown[at], observations)
        np.testing.assert_array_equal(steps.reward[at], rewards)
    assert len(pellets) > 1
    np.testing.assert_array_equal(steps.is_first, is_end)
    np.testing.assert_array_equal(steps.discount, np.where(is_end, 0.0, 1.0))
    assert np.all(steps.valid) and not np.any(steps.truncated)


def test_pellets_are_uniform_over_columns_and_the_paddle_starts_in_the_centre():
    catch = Catch()
    state = jax.vmap(catch.initial_state)(jax.random.split(jax.random.key(0), 11_000))
    counts = np.bincount(state.pellet, minlength=11)
    assert counts.shape == (11,) and np.all(np.abs(counts - 1000) < 150)  # five standard deviations
    assert np.all(state.paddle == 5) and np.all(state.row == 0)


def test_all_observations_are_indexed_by_row_pellet_and_paddle():
    observations = Catch(rows=4, columns=3).all_observations()
    assert observations.shape == (3, 3, 3, 4, 3)
    for row, pellet, paddle in np.ndindex(3, 3, 3):
        expected = reference.catch_observation(4, 3, row, pellet, paddle)
        np.testing.assert_array_equal(observations[row, pellet, paddle], expected)


def test_expected_return_of_any_policy_is_the_sum_over_all_episodes():
    catch = Catch(rows=5, columns=4)
    probabilities = np.random.default_rng(1).dirichlet(np.ones(3), (4, 4, 4))
    expected = reference.catch_expected_return(5, 4, probabilities)
    assert float(catch.expected_return(probabilities)) == pytest.approx(expected, abs=1e-6)


def test_expected_return_of_the_uniform_and_the_optimal_policy():
    catch = Catch()
    uniform = np.full((5, 11, 11, 3), 1 / 3)
    # The paddle ends in a random column, and the pellet is there with probability 1/11 whichever it is.
    assert float(catch.expected_return(uniform)) == pytest.approx(-1 + 2 / 11, abs=1e-6)
    pellet, paddle = np.meshgrid(np.arange(11), np.arange(11), indexing="ij")
    chase = np.broadcast_to(np.eye(3)[np.sign(pellet - paddle) + 1], (5, 11, 11, 3))
    assert float(catch.expected_return(chase)) == 1.0
    assert float(catch.expected_return(chase[..., ::-1])) == pytest.approx(
        -1 + 2 / 11, abs=1e-6
    )  # flees, unless overhead


def test_look_ahead_bound_by_hand_and_by_enumeration():
    assert [Catch().look_ahead_bound(n) for n in range(7)] == pytest.approx(
        [-9 / 11, -5 / 11, -1 / 11, 3 / 11, 7 / 11, 1.0, 1.0]
    )
    # Boards without a middle column; on one all columns are in reach.
    for rows, columns in ((4, 8), (5, 2)):
        for num_moves in range(rows):
            expected = reference.catch_look_ahead_bound(rows, columns, num_moves)
            assert Catch(rows, columns).look_ahead_bound(num_moves) == pytest.approx(expected)
