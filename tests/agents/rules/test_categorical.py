"""Categorical distributions against plain NumPy in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.rules import categorical
from tests.reference import agents as reference

pytestmark = pytest.mark.usefixtures("float64")


RNG = np.random.default_rng(0)
P, Q, ACTION = RNG.normal(size=(4, 2, 3)), RNG.normal(size=(4, 2, 3)), RNG.integers(3, size=(4, 2))


def test_log_probability_is_that_of_the_action():
    expected = np.log(reference.taken(reference.probabilities(P), ACTION))
    np.testing.assert_allclose(categorical.log_probability(P, ACTION), expected, rtol=1e-12)


def test_entropy_and_divergence_are_sums_over_outcomes():
    p, q = reference.probabilities(P), reference.probabilities(Q)
    np.testing.assert_allclose(categorical.entropy(P), -np.sum(p * np.log(p), axis=-1), rtol=1e-12)
    np.testing.assert_allclose(categorical.kl_divergence(P, Q), np.sum(p * np.log(p / q), axis=-1), rtol=1e-12)
    np.testing.assert_allclose(categorical.kl_divergence(P, P + 5.0), 0, atol=1e-12)


def test_expectation_is_under_the_softmax_and_of_large_logits_finite():
    x = RNG.normal(size=(3, 2))
    np.testing.assert_allclose(categorical.expectation(P, x), reference.probabilities(P) @ x, rtol=1e-12)
    np.testing.assert_allclose(categorical.expectation(P + 1e5, x), reference.probabilities(P) @ x, rtol=1e-9)
    of = lambda fn: jax.grad(lambda p: jnp.sum(jnp.sin(fn(p))))(P)
    np.testing.assert_allclose(
        of(lambda p: categorical.expectation(p, x)), of(lambda p: jax.nn.softmax(p) @ x), rtol=1e-9, atol=1e-15
    )
