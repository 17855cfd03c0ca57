"""Returns against loops in float64, their limits, what must not cross the end of an episode, and refused shapes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.rules import returns
from tests.reference import agents as reference
from tests.trajectories import random_trajectory

GAMMA = 0.9
vtrace = jax.jit(returns.vtrace)

pytestmark = pytest.mark.usefixtures("float64")


def drawn(seed, num_steps=7, batch_size=4):
    """A trajectory, values [T + 1, B] and importance ratios [T, B], some above 1."""
    rng = np.random.default_rng(seed + 100)
    trajectory = random_trajectory(seed, num_steps, batch_size)
    return trajectory, rng.normal(size=(num_steps + 1, batch_size)), rng.lognormal(size=(num_steps, batch_size))


# V-trace


@pytest.mark.parametrize("lambda_", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("seed", [0, 1])
def test_vtrace_agrees_with_loops(seed, lambda_):
    trajectory, values, rho = drawn(seed)
    assert np.any(rho > 1) and np.any(rho < 1)
    actual = vtrace(trajectory, values, rho, GAMMA, lambda_)
    for x, y in zip(actual, reference.vtrace(trajectory, values, rho, GAMMA, lambda_), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("alpha", [0.0, 0.6])
def test_leaky_vtrace_agrees_with_loops(alpha):
    trajectory, values, rho = drawn(0)
    assert trajectory.is_successor_unknown.any()
    actual = vtrace(trajectory, values, rho, GAMMA, 0.7, alpha=alpha)
    for x, y in zip(actual, reference.vtrace(trajectory, values, rho, GAMMA, 0.7, alpha), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-12, atol=1e-12)


def test_leaky_vtrace_without_a_leak_is_vtrace():
    trajectory, values, rho = drawn(1)
    expected, found = (vtrace(trajectory, values, rho, GAMMA, 0.7, **own) for own in ({}, {"alpha": jnp.ones(())}))
    for x, y in zip(found, expected, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-12)


def test_on_policy_lambda_1_is_monte_carlo_up_to_the_end_of_the_episode():
    trajectory, values, _ = drawn(0)
    targets, advantages = vtrace(trajectory, values, np.ones_like(values[1:]), GAMMA, 1.0)
    r, v = trajectory.reward, values
    # Column 0 terminates at step 1; column 3 goes on past the last step.
    np.testing.assert_allclose(targets[:2, 0], [r[0, 0] + GAMMA * r[1, 0], r[1, 0]])
    powers = GAMMA ** np.arange(7)
    np.testing.assert_allclose(targets[0, 3], powers @ r[:, 3] + GAMMA**7 * v[7, 3])
    # Column 1 is truncated at step 2, and bootstraps there from the episode's own last observation.
    np.testing.assert_allclose(targets[0, 1], powers[:3] @ r[:3, 1] + GAMMA**3 * v[3, 1])
    np.testing.assert_allclose(advantages, np.where(trajectory.valid, targets - values[:-1], 0), atol=1e-12)


def test_on_policy_lambda_0_is_one_step():
    trajectory, values, _ = drawn(0)
    targets, advantages = vtrace(trajectory, values, np.ones_like(values[1:]), GAMMA, 0.0)
    one_step = trajectory.reward + GAMMA * trajectory.discount * reference.successors(trajectory, values)
    np.testing.assert_allclose(targets, np.where(trajectory.valid, one_step, values[:-1]), rtol=1e-12)
    np.testing.assert_allclose(advantages, targets - values[:-1], atol=1e-12)


@pytest.mark.parametrize("lambda_", [0.0, 0.7, 1.0])
def test_a_truncated_step_bootstraps_and_cuts(lambda_):
    trajectory, values, rho = drawn(0)
    targets, _ = vtrace(trajectory, values, np.ones_like(rho), GAMMA, lambda_)
    np.testing.assert_allclose(targets[2, 1], trajectory.reward[2, 1] + GAMMA * values[3, 1], rtol=1e-12)
    # It does so by itself, and not for the step that follows.
    followed = trajectory._replace(valid=np.ones_like(trajectory.valid))
    np.testing.assert_array_equal(vtrace(followed, values, np.ones_like(rho), GAMMA, lambda_)[0][2, 1], targets[2, 1])


def test_a_step_that_is_not_valid_has_its_value_as_target_and_no_advantage():
    trajectory, values, rho = drawn(0)
    targets, advantages = vtrace(trajectory, values, rho, GAMMA, 1.0)
    assert np.sum(~trajectory.valid) == 1
    np.testing.assert_allclose(np.asarray(targets)[~trajectory.valid], values[:-1][~trajectory.valid], rtol=1e-12)
    np.testing.assert_array_equal(np.asarray(advantages)[~trajectory.valid], 0)


def last_step_of_episode(trajectory, t, b):
    while t < len(trajectory.reward) - 1 and not trajectory.is_last[t, b]:
        t += 1
    return t


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_nothing_leaks_across_the_end_of_an_episode(seed):
    trajectory, values, rho = drawn(seed)
    before = [np.asarray(x) for x in vtrace(trajectory, values, rho, GAMMA, 0.9)]
    for b in range(4):
        for t in range(7):
            end = last_step_of_episode(trajectory, t, b)
            # The value of the observation after the end counts only where the episode's last one is known.
            is_bootstrapped = trajectory.valid[end, b] and trajectory.discount[end, b] == 1
            is_bootstrapped &= not trajectory.is_successor_unknown[end, b]
            reward, other_values, other_rho = trajectory.reward.copy(), values.copy(), rho.copy()
            reward[end + 1 :, b] = 1e6
            other_rho[end + 1 :, b] = 1e6
            other_values[end + 1 + is_bootstrapped :, b] = -1e6
            if not trajectory.valid[end, b]:
                reward[end, b] = other_rho[end, b] = 1e6
            after = vtrace(trajectory._replace(reward=reward), other_values, other_rho, GAMMA, 0.9)
            for x, y in zip(before, after, strict=True):
                np.testing.assert_array_equal(x[t, b], np.asarray(y)[t, b], err_msg=f"{t}, {b}")


def test_values_and_rewards_within_the_episode_do_count():
    trajectory, values, rho = drawn(0)
    for t, b in ((0, 0), (0, 1), (3, 3)):
        end = last_step_of_episode(trajectory, t, b)
        reward = trajectory.reward.copy()
        reward[end, b] += 1
        changed = vtrace(trajectory._replace(reward=reward), values, rho, GAMMA, 0.9)[0]
        assert abs(changed[t, b] - vtrace(trajectory, values, rho, GAMMA, 0.9)[0][t, b]) > 1e-3


@pytest.mark.parametrize("lambda_", [0.0, 0.4, 1.0])
def test_lambda_returns_are_v_trace_on_policy(lambda_):
    trajectory, values, _ = drawn(3)
    actual = returns.lambda_returns(trajectory, values, GAMMA, lambda_)
    expected = reference.vtrace(trajectory, values, np.ones_like(values[1:]), GAMMA, lambda_)
    for x, y in zip(actual, expected, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-12, atol=1e-12)


def test_importance_ratios_are_of_the_taken_actions():
    trajectory, _, _ = drawn(1)
    logits = np.random.default_rng(0).normal(size=(8, 4, 3))
    actual = returns.importance_ratios(logits, trajectory)
    np.testing.assert_allclose(actual, reference.importance_ratios(logits, trajectory), rtol=1e-12)


# Retrace


@pytest.mark.parametrize("lambda_", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("seed", [0, 1])
def test_retrace_agrees_with_loops(seed, lambda_):
    trajectory, v, rho = drawn(seed)
    rng = np.random.default_rng(seed)
    q, retrace = rng.normal(size=(8, 4, 3)), jax.jit(returns.retrace)
    # As it is; truncated steps that are followed by valid ones; and steps that are not valid wherever.
    for valid in (trajectory.valid, np.ones((7, 4), bool), rng.uniform(size=(7, 4)) < 0.7):
        changed = trajectory._replace(valid=valid)
        expected = reference.retrace(changed, q, v, rho, GAMMA, lambda_)
        actual = np.asarray(retrace(changed, q, v, rho, GAMMA, lambda_))
        np.testing.assert_allclose(actual[valid], expected[valid], rtol=1e-12)


# Shapes


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"values": (7, 4)}, r"^values has the shape \[7, 4\], expected \[8, 4\]$"),
        ({"values": (8, 4, 1)}, r"^values has the shape \[8, 4, 1\], expected \[8, 4\]$"),
        ({"rho": (8, 4)}, r"^rho has the shape \[8, 4\], expected \[7, 4\]$"),
        ({"rho": ()}, r"^rho has the shape \[\], expected \[7, 4\]$"),
        ({"target_q": (8, 4)}, r"^target_q has the shape \[8, 4\], expected \[8, 4, \*\]$"),
        ({"target_q": (7, 4, 3)}, r"^target_q has the shape \[7, 4, 3\], expected \[8, 4, \*\]$"),
        ({"target_v": (8, 4, 3)}, r"^target_v has the shape \[8, 4, 3\], expected \[8, 4\]$"),
    ],
    ids=str,
)
def test_other_shapes_are_refused_by_name(change, message):
    trajectory, _, _ = drawn(0)
    shapes = {"values": (8, 4), "rho": (7, 4), "target_q": (8, 4, 3), "target_v": (8, 4)} | change
    x = {name: np.zeros(shape) for name, shape in shapes.items()}
    calls = [
        lambda: returns.vtrace(trajectory, x["values"], x["rho"], GAMMA, 1.0),
        lambda: returns.lambda_returns(trajectory, x["values"], GAMMA, 1.0),
        lambda: returns.retrace(trajectory, x["target_q"], x["target_v"], x["rho"], GAMMA, 1.0),
    ]
    (name,) = change
    for call, names in zip(calls, ("values rho", "values", "target_q target_v rho"), strict=True):
        if name in names.split():
            with pytest.raises(ValueError, match=message):
                call()
        else:
            call()
