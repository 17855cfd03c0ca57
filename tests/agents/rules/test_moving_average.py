"""The moving average against plain NumPy: its bias, what is masked, and what is normalised by it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.rules.moving_average import initial_average, normalise, root_mean_square, update_average
from tests.reference import disco as reference

RNG = np.random.default_rng(0)
XS, VALID = 3 + 2 * RNG.normal(size=(4, 5, 3)), RNG.uniform(size=(4, 5, 3)) < 0.6

pytestmark = pytest.mark.usefixtures("float64")


def test_moments_are_those_of_valid_steps_and_decay():
    average, expected = initial_average(), (0.0, 0.0, 1.0)
    for x, valid in zip(XS, VALID, strict=True):
        average = update_average(average, jnp.where(valid, x, jnp.nan), jnp.asarray(valid))
        expected = reference.average(expected, x[valid])
        np.testing.assert_allclose(average, expected, rtol=1e-12)
        np.testing.assert_allclose(normalise(average, x), reference.normalise(expected, x), rtol=1e-9)


def test_after_one_update_what_was_seen_has_mean_0_and_deviation_1_or_keeps_its_mean():
    average = update_average(initial_average(), XS[0], np.ones((5, 3), bool))
    x = normalise(average, XS[0])
    np.testing.assert_allclose((np.mean(x), np.std(x)), (0, 1), atol=1e-5)
    np.testing.assert_allclose(normalise(average, XS[0], is_centred=False), XS[0] / np.std(XS[0]), rtol=1e-5)


def test_a_quantity_that_does_not_vary_is_not_divided_by_0():
    average = update_average(initial_average(), np.full((5, 3), 1e3), np.ones((5, 3), bool))
    assert np.isfinite(normalise(average, np.full((5, 3), 1e3))).all()


@pytest.mark.parametrize("divide", [normalise, lambda average, x: x / root_mean_square(average)])
def test_where_nothing_was_valid_nothing_is_counted_and_gradients_are_finite(divide):
    nothing = jnp.zeros((5, 3), bool)
    average = update_average(initial_average(), jnp.array(XS[0]), nothing)
    assert average == initial_average()
    loss = lambda x: jnp.sum(jnp.where(nothing, divide(average, x), 0.0))
    np.testing.assert_array_equal(jax.grad(loss)(jnp.array(XS[0])), np.zeros((5, 3)))
    seen = update_average(average, jnp.array(XS[1]), jnp.array(VALID[1]))
    assert update_average(seen, jnp.array(XS[2]), nothing) == seen
