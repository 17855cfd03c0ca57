"""What a meta-network sees: columns by name, and zeros where a step is not valid."""

import jax
import numpy as np

from meta.targets import inputs
from tests.trajectories import random_trajectory

GAMMA, T, B = 0.9, 6, 4


def test_inputs_are_what_their_names_say_and_zero_where_a_step_is_not_valid():
    trajectory = random_trajectory(0, T, B)
    values, next_values, moved, log_pi, log_mu = np.random.default_rng(0).normal(size=(5, T, B))
    context = inputs.InputContext(trajectory, GAMMA, values, next_values, moved, log_pi, log_mu)
    td_error = trajectory.reward + GAMMA * trajectory.discount * next_values - moved
    expected = {
        "reward": trajectory.reward,
        "discount": GAMMA * trajectory.discount,
        "next_value": np.where(trajectory.discount == 0, 0, next_values),
        "value": values,
        "td_error": td_error,
        "pi": np.exp(log_pi),
        "mu": np.exp(log_mu),
        "log_pi": log_pi,
    }
    assert set(expected) == set(inputs.INPUTS)
    with jax.enable_x64(True):
        seen = inputs.features(tuple(expected), context)
        unit = inputs.td_error_size(context)
        in_units = inputs.features(tuple(expected), context.in_units(unit))
    for i, column in enumerate(expected.values()):
        np.testing.assert_allclose(seen[..., i], np.where(trajectory.valid, column, 0), rtol=1e-12)
    np.testing.assert_allclose(unit, np.sqrt(np.mean(td_error[trajectory.valid] ** 2)), rtol=1e-5)
    is_divided = [name in ("reward", "next_value", "value", "td_error") for name in expected]
    np.testing.assert_allclose(in_units, np.where(is_divided, seen / unit, seen), rtol=1e-12)
