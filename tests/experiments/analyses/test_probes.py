"""Probes find signals that were planted, and what is known of the future."""

import jax.numpy as jnp
import numpy as np
import pytest

from experiments.analyses import probes
from tests.trajectories import random_trajectory


def test_what_comes_is_known_up_to_the_end_of_an_episode():
    trajectory = random_trajectory(0, 6, 3)
    reward = np.zeros((6, 3))
    reward[2, 0], reward[5, 0], reward[4, 1] = -2.0, 1.0, 0.9
    ahead = probes.future(trajectory._replace(reward=reward), np.arange(21.0).reshape(7, 3))
    one, two, four = range(3)
    np.testing.assert_array_equal(ahead.is_large[:, 0, one], [0, 0, 1, 0, 0, 1])
    np.testing.assert_array_equal(ahead.is_large[:, 0, two], [0, 0, 1, 0, 1, 1])
    np.testing.assert_array_equal(ahead.is_large[:, 0, four], [0, 0, 1, 1, 1, 1])
    assert not ahead.is_large[:, 1].any()  # less than half of the largest
    np.testing.assert_array_equal(ahead.is_large_known[:, 0, four], [1, 1, 1, 0, 0, 0])
    np.testing.assert_array_equal(ahead.is_entropy_known[:, 0, one], [1, 0, 1, 1, 1, 1])
    np.testing.assert_array_equal(ahead.is_entropy_known[:, 0, two], [0, 0, 1, 1, 1, 0])
    np.testing.assert_array_equal(ahead.is_entropy_known[:, 1, two], [1, 0, 0, 0, 1, 0])  # truncated, and its reset
    assert ahead.entropy[2, 0, two] == 3 * 4


def test_probes_find_what_is_there_and_nothing_else():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 20, 6)).astype(np.float32)
    shape = (40, 20, len(probes.AHEAD))
    signal = np.sin(x[..., :1]) + 0.5 * x[..., 1:2] ** 2
    known = rng.random(shape) < 0.9
    known[..., 3] = False
    noise = rng.normal(size=shape)
    is_large = np.broadcast_to(x[..., 2:3] > 0.8, shape)
    ahead = probes.Future(np.broadcast_to(signal, shape).copy(), known, is_large, known)
    ahead.entropy[~known] = 1e3
    scores = probes.cross_validate(jnp.asarray(x), ahead, (128, 64, 32))
    kept = [0, 1, 2, 4]
    assert scores.entropy.shape == (len(probes.AHEAD), 5)
    assert (scores.entropy[kept] > 0.7).all() and scores.entropy[kept].mean() > 0.85
    assert (scores.large_reward[kept].mean(1) > scores.majority[kept].mean(1) + 0.08).all()
    assert scores.majority[kept].mean() == pytest.approx((~is_large).mean(), abs=0.02)
    assert all(np.isnan(x[3]).all() for x in scores)
    nothing = probes.cross_validate(jnp.asarray(x), probes.Future(noise, known, noise > 1, known), (128, 64, 32))
    assert abs(nothing.entropy[kept].mean()) < 0.1
    np.testing.assert_allclose(nothing.large_reward[kept].mean(), nothing.majority[kept].mean(), atol=0.03)
