"""PPO: targets, ratio, both clips and normalised advantages against loops written from the papers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.rules.ppo import PPOConfig, PPOTargets, ppo
from tests.reference import agents as reference
from tests.trajectories import random_trajectory

GAMMA, LAMBDA, CLIP = 0.9, 0.8, 0.2
CONFIG = PPOConfig(discount=GAMMA, lambda_=LAMBDA, clip=CLIP, value_cost=0.3, entropy_cost=0.2)
T, B, A = 6, 4, 3

pytestmark = pytest.mark.usefixtures("float64")


def drawn(seed=0):
    trajectory, rng = random_trajectory(seed, T, B, num_actions=A), np.random.default_rng(seed + 100)
    policy = np.concatenate([trajectory.behaviour_logits, np.zeros((1, B, A))]) + 0.3 * rng.normal(size=(T + 1, B, A))
    return trajectory, {"policy": policy, "value": rng.normal(size=(T + 1, B))}


def test_targets_are_generalised_advantages_and_their_sums_with_the_values():
    trajectory, predictions = drawn()
    targets, _ = ppo(CONFIG).apply({}, (), trajectory, predictions, predictions)
    v = predictions["value"]
    after = reference.successors(trajectory, v)
    for t, b in np.argwhere(trajectory.valid):  # Eq. 11 of Schulman et al. 2017, summed forwards to an episode's end
        advantage, weight = 0.0, 1.0
        for s in range(t, T):
            if not trajectory.valid[s, b]:
                break
            discount = GAMMA * trajectory.discount[s, b]
            advantage += weight * (trajectory.reward[s, b] + discount * after[s, b] - v[s, b])
            if trajectory.truncated[s, b]:
                break
            weight *= discount * LAMBDA
        np.testing.assert_allclose(targets.advantage[t, b], advantage, rtol=1e-10)
        np.testing.assert_allclose(targets.value[t, b], v[t, b] + advantage, rtol=1e-10)
    np.testing.assert_array_equal(targets.old_value, v[:-1])


@pytest.mark.parametrize("is_value_clipped", [False, True])
@pytest.mark.parametrize("is_advantage_normalised", [False, True])
def test_the_loss_agrees_with_loops(is_value_clipped, is_advantage_normalised):
    config = PPOConfig(
        GAMMA, 0.3, 0.2, "mean", LAMBDA, CLIP, is_value_clipped, is_advantage_normalised=is_advantage_normalised
    )
    trajectory, predictions = drawn()
    rng = np.random.default_rng(7)
    log_mu = ppo(config).apply({}, (), trajectory, predictions, predictions)[0].log_mu
    targets = PPOTargets(*(rng.normal(size=(T, B)) for _ in range(3)), log_mu)
    loss = ppo(config).loss(targets, predictions, trajectory)
    of_valid = targets.advantage[trajectory.valid]
    mean, std = (of_valid.mean(), of_valid.std()) if is_advantage_normalised else (0.0, 1.0)
    ratios, is_far = [], []
    for t, b in np.ndindex(T, B):
        pi = reference.probabilities(predictions["policy"][t, b])
        mu = reference.probabilities(trajectory.behaviour_logits[t, b])
        action, v, old = trajectory.action[t, b], predictions["value"][t, b], targets.old_value[t, b]
        advantage, ratio = (targets.advantage[t, b] - mean) / std, pi[action] / mu[action]
        clipped = min(max(ratio, 1 - CLIP), 1 + CLIP)
        expected = -min(ratio * advantage, clipped * advantage)  # Eq. 7
        error = (targets.value[t, b] - v) ** 2
        if is_value_clipped:
            near = old + min(max(v - old, -CLIP), CLIP)
            error = max(error, (targets.value[t, b] - near) ** 2)
        expected += 0.3 * 0.5 * error + 0.2 * np.sum(pi * np.log(pi))
        np.testing.assert_allclose(loss[t, b], expected, rtol=1e-6)
        ratios.append(ratio)
        is_far.append(abs(v - old) > CLIP)
    assert min(ratios) < 1 - CLIP and max(ratios) > 1 + CLIP and 0 < np.mean(is_far) < 1


def test_where_nothing_has_moved_the_gradient_is_that_of_the_actor_critic():
    """The ratio is 1 and v that of the targets: the first update of a pass is one of A2C with λ."""
    trajectory, predictions = drawn()
    predictions["policy"][:-1] = trajectory.behaviour_logits
    config = PPOConfig(GAMMA, 0.3, 0.2, "mean", LAMBDA, CLIP, is_advantage_normalised=False)
    rule = ppo(config)
    targets, _ = rule.apply({}, (), trajectory, predictions, predictions)
    gradient = jax.grad(lambda p: jnp.sum(rule.loss(targets, p, trajectory)))(predictions)

    def actor_critic(p):
        log_pi = jax.nn.log_softmax(p["policy"][:-1])
        log_pi_a = jnp.take_along_axis(log_pi, trajectory.action[..., None], -1)[..., 0]
        value_loss = 0.15 * jnp.square(targets.value - p["value"][:-1])
        return jnp.sum(-targets.advantage * log_pi_a + value_loss + 0.2 * jnp.sum(jnp.exp(log_pi) * log_pi, -1))

    for name, expected in jax.grad(actor_critic)(predictions).items():
        np.testing.assert_allclose(gradient[name], expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("clip", [0.0, -1.0])
def test_a_bad_setting_is_named(clip):
    with pytest.raises(ValueError, match=f"^clip is {clip}, expected a positive number$"):
        PPOConfig(clip=clip).validate()
