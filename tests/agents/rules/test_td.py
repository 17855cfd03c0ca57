"""TD(λ) against loops in float64."""

import jax
import numpy as np
import pytest

from agents.rule import masked_reduce
from agents.rules.td import TDLambdaConfig, only_action, td_lambda
from tests.reference import agents as reference
from tests.trajectories import random_trajectory

GAMMA = 0.9

pytestmark = pytest.mark.usefixtures("float64")


@pytest.mark.parametrize("lambda_", [0.0, 0.4, 1.0])
def test_td_lambda_moves_values_to_the_lambda_return(lambda_):
    trajectory, values = random_trajectory(3, 7, 4), np.random.default_rng(103).normal(size=(8, 4))
    rule = td_lambda(TDLambdaConfig(GAMMA, lambda_))
    predictions = {"value": values}
    targets, state = rule.apply({}, (), trajectory, predictions, predictions)
    expected, _ = reference.vtrace(trajectory, values, np.ones_like(values[1:]), GAMMA, lambda_)
    np.testing.assert_allclose(targets, expected, rtol=1e-12)
    assert state == () and rule.init() == ()
    loss = masked_reduce(rule.loss(targets, predictions, trajectory), trajectory.valid, rule.reduction)
    squares = [(expected[t, b] - values[t, b]) ** 2 for t, b in np.argwhere(trajectory.valid)]
    np.testing.assert_allclose(loss, np.mean(squares), rtol=1e-12)
    np.testing.assert_array_equal(rule.policy(predictions), np.zeros((8, 4, 1)))


def test_where_there_is_one_action_it_is_taken():
    logits = only_action({"value": np.ones((2, 3))})
    np.testing.assert_array_equal(jax.nn.softmax(logits), np.ones((2, 3, 1)))
