"""Action values: the taken action's entry, the ε-greedy policy, and refused shapes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.rules import action_values
from agents.rules.q_learning import QLearningConfig, q_learning
from tests.reference import agents as reference
from tests.trajectories import random_trajectory

pytestmark = pytest.mark.usefixtures("float64")


def test_epsilon_greedy_policy_takes_the_best_action_but_for_epsilon():
    q = np.array([[1.0, 3.0, 2.0, -1.0], [5.0, 5.0, 0.0, 1.0]])
    logits = action_values.epsilon_greedy_logits(q, 0.2)
    probabilities = [[0.05, 0.85, 0.05, 0.05], [0.45, 0.45, 0.05, 0.05]]  # ties are shared
    np.testing.assert_allclose(jax.nn.softmax(logits), probabilities, rtol=1e-6)
    expected = [0.85 * 3 + 0.05 * 2, 0.9 * 5 + 0.05]
    np.testing.assert_allclose(action_values.expected_values(q, logits), expected, rtol=1e-6)
    np.testing.assert_allclose(q_learning(QLearningConfig(epsilon=0.2)).policy({"q": q}), logits)


def test_no_gradient_flows_through_the_epsilon_greedy_policy():
    q = np.random.default_rng(0).normal(size=(5, 3))
    gradient = jax.grad(lambda q: jnp.sum(action_values.epsilon_greedy_logits(q, 0.2) * np.arange(3)))(q)
    np.testing.assert_array_equal(gradient, 0)


def test_the_entry_of_the_taken_action_is_picked():
    trajectory = random_trajectory(0, 5, 4)
    q, z = np.random.default_rng(0).normal(size=(6, 4, 3)), np.random.default_rng(1).normal(size=(6, 4, 3, 2))
    expected = reference.taken(q[:-1], trajectory.action)
    np.testing.assert_array_equal(action_values.taken(q, trajectory), expected)
    targets = np.ones((5, 4))
    np.testing.assert_allclose(action_values.squared_error(targets, q, trajectory), 0.5 * (1 - expected) ** 2)
    picked = action_values.taken_vectors(z, trajectory)
    np.testing.assert_array_equal(picked, reference.taken(z[:-1], trajectory.action))
    # Where a prediction was made for the taken action alone, it is the only one.
    np.testing.assert_array_equal(action_values.taken_vectors(z[:, :, 2:], trajectory), z[:-1, :, 2])


@pytest.mark.parametrize(
    ("fn", "shape", "message"),
    [
        (action_values.taken, (5, 4, 3), r"^values has the shape \[5, 4, 3\], expected \[6, 4, \*\]$"),
        (action_values.taken, (6, 4), r"^values has the shape \[6, 4\], expected \[6, 4, \*\]$"),
        (action_values.taken, (6, 4, 3, 7), r"^values has the shape \[6, 4, 3, 7\], expected \[6, 4, \*\]$"),
        (action_values.taken_vectors, (6, 4, 3), r"^x has the shape \[6, 4, 3\], expected \[6, 4, \*, \*\]$"),
        (action_values.taken_vectors, (5, 4, 3, 2), r"^x has the shape \[5, 4, 3, 2\], expected \[6, 4, \*, \*\]$"),
    ],
)
def test_other_shapes_are_refused_by_name(fn, shape, message):
    with pytest.raises(ValueError, match=message):
        fn(np.zeros(shape), random_trajectory(0, 5, 4))
