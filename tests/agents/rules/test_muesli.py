"""Muesli: policy targets by hand, targets and losses against loops, its limits, and where gradients flow."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.rule import masked_reduce
from agents.rules.action_values import taken_vectors
from agents.rules.categorical import to_scalars, two_hot_loss
from agents.rules.muesli import MuesliConfig, ahead, cmpo_logits, muesli, reached
from tests.reference import agents as basics
from tests.reference import muesli as reference
from tests.trajectories import random_trajectory

T, B, A, K = 6, 4, 3, 3
CONFIG = MuesliConfig(
    discount=0.9,
    lambda_=0.8,
    clip=0.7,
    model_steps=K,
    max_value=2,
    cmpo_cost=0.6,
    model_policy_cost=0.5,
    value_cost=0.4,
    reward_cost=0.3,
)
RULE = muesli(CONFIG)

pytestmark = pytest.mark.usefixtures("float64")


def drawn(seed=0):
    """A trajectory, predictions of agent and slow copy, and those of the agent's model along K taken actions."""
    trajectory, rng = random_trajectory(seed, T, B, num_actions=A), np.random.default_rng(seed + 100)
    spec = RULE.spec(A)
    draw = lambda: {name: rng.normal(size=(T + 1, B, *one.axes(A))) for name, one in spec.items()}
    own, slow = draw(), draw()
    of_model = {name: rng.normal(size=(T + 1, B, K, *x.shape)) for name, x in spec.items() if x.is_per_action}
    return trajectory, own, slow, own | of_model


def targets_and_loss(rule, trajectory, own, slow, along, average=None):
    def both(own, slow, along):
        targets, new = rule.apply({}, rule.init() if average is None else average, trajectory, own, slow)
        return targets, rule.loss(targets, along, trajectory), new

    return jax.tree.map(np.asarray, jax.jit(both)(own, slow, along))


# Numbers as distributions


def test_bins_are_whole_numbers_of_the_transformed_number():
    logits = np.random.default_rng(0).normal(size=(4, 7))
    np.testing.assert_allclose(to_scalars(logits), reference.scalars(logits), rtol=1e-8)
    for x, one in zip((0.0, -1.3, 5.2, 400.0), logits, strict=True):  # the last one is beyond the bins
        np.testing.assert_allclose(two_hot_loss(x, one), reference.two_hot_loss(x, one), rtol=2e-5)
    sure = jnp.log(jnp.array([0, 0, 1e-9, 1 - reference.h(1.5) + 1e-9, reference.h(1.5), 0, 0]) + 1e-30)
    np.testing.assert_allclose(to_scalars(sure), 1.5, rtol=1e-6)


# Policy targets


def test_a_policy_target_by_hand():
    # ½ e¹, ¼ e⁰·⁵ and ¼ e⁻¹: the first and the last advantage are clipped
    target = jax.nn.softmax(cmpo_logits(jnp.log(jnp.array([0.5, 0.25, 0.25])), jnp.array([3.0, 0.5, -7.0]), 1.0))
    weights = np.array([1.3591409, 0.4121803, 0.0919699])
    np.testing.assert_allclose(target, weights / 1.8632911, rtol=1e-6)


def test_without_advantages_the_policy_target_is_the_prior():
    trajectory, own, slow, along = drawn()
    config = MuesliConfig(discount=0.9, clip=0.0, model_steps=1, max_value=2)
    along |= {name: x[:, :, :1] for name, x in along.items() if x.ndim > 3}
    targets, _, _ = targets_and_loss(muesli(config), trajectory, own, slow, along)
    np.testing.assert_allclose(targets.policy[:, :, 0], slow["policy"][:-1], rtol=1e-12)


# Targets and losses


@pytest.mark.parametrize("seed", [0, 1])
def test_targets_and_losses_agree_with_loops(seed):
    trajectory, own, slow, along = drawn(seed)
    average, known_average = RULE.init(), (0.0, 1.0)
    for _ in range(2):  # the second update begins with the average of the first
        targets, losses, average = targets_and_loss(RULE, trajectory, own, slow, along, average)
        known = reference.Known(trajectory, slow, CONFIG.discount, CONFIG.lambda_, known_average)
        known_average = known.average
        np.testing.assert_allclose((average.moment2, average.decay_product), known_average, rtol=1e-7)
        valid = trajectory.valid
        np.testing.assert_allclose(targets.value[valid, 0], known.returns[valid], rtol=1e-7)
        expected = (known.returns - known.v[:-1]) / known.scale
        np.testing.assert_allclose(targets.advantage[valid], expected[valid], rtol=1e-6)
        for t, b in np.argwhere(valid):
            target = basics.probabilities(targets.policy[t, b, 0])
            np.testing.assert_allclose(target, known.policy_target(t, b, CONFIG.clip), rtol=1e-7)
        expected = reference.loss(trajectory, known, own, along, CONFIG)
        np.testing.assert_allclose(losses[valid], expected[valid], rtol=2e-5, atol=1e-5)
        slow = {name: 0.5 * x for name, x in slow.items()}
    normalised = [np.abs(known.q[t, b] - known.v[t, b]) / known.scale for t, b in np.argwhere(valid)]
    assert np.min(normalised) < CONFIG.clip < np.max(normalised)


def test_states_ahead_are_those_of_the_same_episode():
    # Terminates at step 1; is truncated at step 2, with a reset at 3; an unknown successor at step 0; goes on.
    expected = {
        0: ["1100", "1000", "1111", "1110", "1100", "1000"],
        1: ["1110", "1100", "1000", "0000", "1100", "1000"],
        2: ["1000", "1111", "1111", "1110", "1100", "1000"],
        3: ["1111", "1111", "1111", "1110", "1100", "1000"],
    }
    found = reached(random_trajectory(0, T, B), K + 1)
    for b, rows in expected.items():
        assert ["".join(str(int(x)) for x in row) for row in found[:, b]] == rows
    x = np.arange(6.0)[:, None]
    np.testing.assert_array_equal(ahead(x, 3)[:, 0], [[0, 1, 2], [1, 2, 3], [2, 3, 4], [3, 4, 5], [4, 5, 0], [5, 0, 0]])


def test_on_policy_with_lambda_1_values_are_moved_to_returns():
    """Of a policy without chance Retrace is then the Monte Carlo return, whatever q̂ is."""
    trajectory, own, slow, along = drawn()
    sure = 40.0 * np.eye(A)[trajectory.action]  # one action is all but certain: V(s) is q of the one that was taken
    trajectory = trajectory._replace(behaviour_logits=sure)
    slow["policy"][:-1] = sure
    rule = muesli(MuesliConfig(discount=0.9, lambda_=1.0, model_steps=K, max_value=2))
    targets, _, _ = targets_and_loss(rule, trajectory, own, slow, along)
    for b, start, end in ((0, 0, 2), (2, 1, T)):  # whole episodes
        for t in range(start, end):
            expected = sum(0.9 ** (s - t) * trajectory.reward[s, b] for s in range(t, end))
            np.testing.assert_allclose(targets.value[t, b, 0], expected, rtol=1e-9)


def test_one_step_ahead_is_the_one_step_model():
    """With K = 1 the model's losses are those of its predictions at the taken action."""
    trajectory, own, slow, _ = drawn()
    rule = muesli(
        MuesliConfig(discount=0.9, lambda_=0.8, model_steps=1, max_value=2, cmpo_cost=0.0, model_policy_cost=0.0)
    )
    names = [name for name in own if name.startswith("model")]
    taken = {name: np.take_along_axis(own[name][:-1], trajectory.action[..., None, None], 2) for name in names}
    taken = {name: np.concatenate([x, x[-1:]]) for name, x in taken.items()}
    targets, losses, _ = targets_and_loss(rule, trajectory, own, slow, own | taken)
    of = lambda name: taken_vectors(own[name], trajectory)
    ends = trajectory.discount == 0
    goes_on = ~trajectory.is_last & np.append(trajectory.valid[1:], np.zeros((1, B), bool), axis=0)
    returns = np.where(ends, 0, np.append(targets.value[1:, :, 0], np.zeros((1, B)), axis=0))
    expected = two_hot_loss(trajectory.reward, of("model_reward"))
    expected += 0.25 * (ends | goes_on) * two_hot_loss(returns, of("model_value"))
    expected += 0.25 * two_hot_loss(targets.value[:, :, 0], own["value_bins"][:-1])
    ratio = np.minimum(1, basics.importance_ratios(own["policy"], trajectory))
    log_pi = np.log(basics.taken(basics.probabilities(own["policy"][:-1]), trajectory.action))
    expected -= ratio * targets.advantage * log_pi
    np.testing.assert_allclose(losses[trajectory.valid], np.asarray(expected)[trajectory.valid], rtol=1e-8)


# Gradients


def test_gradient_flow():
    trajectory, own, slow, along = drawn()
    targets, _, _ = targets_and_loss(RULE, trajectory, own, slow, along)

    def loss(along, targets):
        return masked_reduce(RULE.loss(targets, along, trajectory), trajectory.valid, RULE.reduction)

    def through_targets(along, own, slow):
        return loss(along, RULE.apply({}, RULE.init(), trajectory, own, slow)[0])

    direct = jax.jit(jax.grad(loss))(along, targets)
    through, of_own, of_slow = jax.jit(jax.grad(through_targets, argnums=(0, 1, 2)))(along, own, slow)
    assert not any(np.any(x) for x in jax.tree.leaves((of_own, of_slow)))  # targets are constants
    is_reached = np.asarray(reached(trajectory, K + 1))
    is_ended = is_reached * np.asarray(ahead(trajectory.discount == 0, K + 1))
    flows = {
        "policy": trajectory.valid,
        "value_bins": trajectory.valid,
        "model_reward": is_reached[..., :-1],
        "model_value": is_reached[..., 1:] + is_ended[..., :-1],
        "model_policy": is_reached[..., 1:],
    }
    assert set(direct) == set(flows)
    for name, gradient in direct.items():
        np.testing.assert_allclose(through[name], gradient, rtol=1e-10, atol=1e-14)
        size = np.abs(np.asarray(gradient)).max(axis=-1)
        np.testing.assert_array_equal(
            size[:-1] > 0, flows[name] * trajectory.valid.reshape(T, B, *[1] * (size.ndim - 2))
        )
        np.testing.assert_array_equal(size[-1], 0)


def test_the_ratio_of_the_policy_gradient_is_a_clipped_constant():
    trajectory, own, slow, along = drawn()
    config = MuesliConfig(0.9, model_steps=K, max_value=2, cmpo_cost=0.0)
    rule = muesli(config)
    targets, _, _ = targets_and_loss(rule, trajectory, own, slow, along)
    of_policy = lambda policy: jnp.sum(rule.loss(targets, along | {"policy": policy}, trajectory))
    gradient = jax.jit(jax.grad(of_policy))(own["policy"])
    ratios = basics.importance_ratios(own["policy"], trajectory)
    assert np.min(ratios) < 1 < np.max(ratios)
    for t, b in np.argwhere(trajectory.valid):
        of_log = np.eye(A)[trajectory.action[t, b]] - basics.probabilities(own["policy"][t, b])
        expected = -min(1, ratios[t, b]) * targets.advantage[t, b] * of_log
        np.testing.assert_allclose(gradient[t, b], expected, rtol=1e-8, atol=1e-12)


# Settings


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"clip": -1.0}, "^clip is -1.0, expected a number of at least 0$"),
        ({"model_steps": 0}, "^model_steps is 0, expected an integer of at least 1$"),
        ({"max_value": 0}, "^max_value is 0, expected an integer of at least 1$"),
        ({"lambda_": 1.1}, "^lambda_ is 1.1, expected a number from 0 to 1$"),
        ({"discount": -0.1}, "^discount is -0.1, expected a number from 0 to 1$"),
        ({"target_decay": float("nan")}, "^target_decay is nan, expected a number from 0 to 1$"),
        ({"cmpo_cost": -1.0}, "^cmpo_cost is -1.0, expected a number of at least 0$"),
        ({"model_policy_cost": -1.0}, "^model_policy_cost is -1.0, expected a number of at least 0$"),
        ({"value_cost": -1.0}, "^value_cost is -1.0, expected a number of at least 0$"),
        ({"reward_cost": float("nan")}, "^reward_cost is nan, expected a number of at least 0$"),
    ],
    ids=str,
)
def test_a_bad_setting_is_named(settings, message):
    MuesliConfig().validate()
    with pytest.raises(ValueError, match=message):
        MuesliConfig(**settings).validate()
