"""Self-tuned rules: losses beside loops in float64, ranges, inputs, heads and known values."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from meta.targets.self_tuned import COSTS, TUNED, SelfTunedConfig, self_tuned
from tests.reference import agents as reference
from tests.trajectories import random_trajectory
from toy_envs.discounting_chain import DiscountingChain

T, B, A = 5, 4, 3
TRAJECTORY = random_trajectory(0, T, B, num_actions=A)
VALID = TRAJECTORY.valid
CONFIG = SelfTunedConfig(discount=0.9, lambda_=0.7, policy_cost=0.8, value_cost=0.4, entropy_cost=0.2, alpha=0.6)

pytestmark = pytest.mark.usefixtures("float64")


def predictions_of(rule, seed=1):
    rng = np.random.default_rng(seed)
    return {name: rng.normal(size=(T + 1, B, *one.axes(A))) for name, one in rule.spec(A).items()}


def expected_loss(
    predictions, suffix, *, discount, lambda_, policy_cost, value_cost, entropy_cost, alpha, is_corrected=True
):
    own = {name: predictions[name + suffix] for name in ("policy", "value")}
    rho = reference.importance_ratios(own["policy"], TRAJECTORY) if is_corrected else np.ones((T, B))
    target, advantage = reference.vtrace(TRAJECTORY, own["value"], rho, discount, lambda_, alpha)
    costs = value_cost, entropy_cost
    return reference.actor_critic_loss(target, policy_cost * advantage, own, TRAJECTORY.action, *costs)


def loss_of(rule, meta_params, predictions, state=None):
    state = rule.init() if state is None else state
    targets, state = rule.apply(meta_params, state, TRAJECTORY, predictions, predictions)
    return rule.loss(targets, predictions, TRAJECTORY), rule.metrics(targets, predictions, TRAJECTORY), state


def sigmoid(x):
    return 1 / (1 + np.exp(-np.asarray(x)))


@pytest.mark.parametrize("heads", [0, 2])
def test_the_loss_agrees_with_loops_at_any_eta(heads):
    config = dataclasses.replace(CONFIG, heads=heads, discount_range=(0.5, 1.0), cost_range=(0.1, 2.0))
    rule, rng = self_tuned(config), np.random.default_rng(3)
    predictions = predictions_of(rule)
    meta_params = {name: rng.normal(size=1 + heads) for name in TUNED}
    losses, metrics, _ = loss_of(rule, meta_params, predictions)
    expected = np.zeros((T, B))
    for head in range(1 + heads):
        settings = {}
        for name, x in meta_params.items():
            low, high = ({"discount": (0.5, 1.0)} | dict.fromkeys(COSTS, (0.1, 2.0))).get(name, (0.0, 1.0))
            settings[name] = low + (high - low) * sigmoid(x[head])
        expected += expected_loss(predictions, f"_{head}" if head else "", **settings)
        for name, value in settings.items():
            of_head = f"_{head}" if head else ""
            np.testing.assert_allclose(metrics[f"eta_{name.rstrip('_')}{of_head}"], value, rtol=1e-12)
    np.testing.assert_allclose(losses[VALID], expected[VALID], rtol=1e-10)


@pytest.mark.parametrize("is_corrected", [True, False])
def test_what_is_not_tuned_stays_and_the_others_begin_as_given(is_corrected):
    rule = self_tuned(dataclasses.replace(CONFIG, tuned=("entropy_cost",), is_corrected=is_corrected))
    meta_params = rule.random_meta_params(jax.random.key(0), A)
    assert list(meta_params) == ["entropy_cost"]
    predictions = predictions_of(rule)
    losses, _, _ = loss_of(rule, meta_params, predictions)
    settings = {name: getattr(CONFIG, name) for name in TUNED} | {"is_corrected": is_corrected}
    np.testing.assert_allclose(losses[VALID], expected_loss(predictions, "", **settings)[VALID], rtol=1e-10)


def test_settings_begin_within_a_hundredth_of_their_ends():
    rule = self_tuned(SelfTunedConfig(lambda_=1.0, discount=0.0, alpha=1.0))
    metrics = loss_of(rule, rule.random_meta_params(jax.random.key(0), A), predictions_of(rule))[1]
    for name, value in {"lambda": 0.99, "discount": 0.01, "alpha": 0.99}.items():
        np.testing.assert_allclose(metrics[f"eta_{name}"], value)


def test_a_network_sees_the_last_mean_rewards_the_newest_at_the_end():
    config = dataclasses.replace(
        CONFIG, tuned=("entropy_cost", "alpha"), eta_inputs=("mean_rewards",), history=3, eta_hidden=4
    )
    rule = self_tuned(config)
    meta_params = rule.random_meta_params(jax.random.key(0), A)
    predictions, state = predictions_of(rule), jnp.array([1.0, 2.0, 3.0])
    _, metrics, new = loss_of(rule, meta_params, predictions, state)
    newest = np.sum(TRAJECTORY.reward * VALID) / np.sum(VALID)
    np.testing.assert_allclose(new, [2.0, 3.0, newest], rtol=1e-12)
    (w1, b1), (w2, b2) = ((layer["w"], layer["b"]) for layer in meta_params.values())
    out = np.maximum(np.asarray(new) @ w1 + b1, 0) @ w2 + b2
    begun = [np.log(x / (1 - x)) for x in (0.2, 0.6)]
    for i, name in enumerate(("entropy_cost", "alpha")):
        np.testing.assert_allclose(metrics[f"eta_{name}"], sigmoid(out[i] + begun[i]), rtol=1e-10)


def test_known_values_take_the_place_of_learned_ones():
    config = SelfTunedConfig(tuned=("discount",), discount=0.95, discount_range=(0.9, 1.0), lambda_=0.0)
    known, rng = dataclasses.replace(config, known_values="toy/discounting_chain/3"), np.random.default_rng(0)
    chain = np.array([[-1, 0, 3, 4], [2, 0, 3, 4], [2, 0, 3, -1], [2, -1, 3, 1], [1, 2, 3, 1], [1, 2, 3, 1]])
    time = rng.integers(1, 100, size=chain.shape) * (chain >= 0)
    trajectory = random_trajectory(0, T, B, num_actions=5)._replace(observation=np.stack([chain, time / 100], axis=-1))
    rule = self_tuned(known)
    predictions = {"policy": rng.normal(size=(T + 1, B, 5)), "value": np.full((T + 1, B), np.nan)}
    values = DiscountingChain().true_values(
        jnp.asarray(trajectory.observation), jax.nn.softmax(predictions["policy"]), 0.95
    )
    meta_params = rule.random_meta_params(jax.random.key(0), 5)
    targets, _ = rule.apply(meta_params, (), trajectory, predictions, predictions)
    of_values = {**predictions, "value": values}
    expected, _ = self_tuned(config).apply(meta_params, (), trajectory, of_values, of_values)
    np.testing.assert_allclose(targets.advantage, expected.advantage, rtol=1e-5)
    found = rule.with_known_values(meta_params, predictions, trajectory, 1.0)
    np.testing.assert_allclose(found["value"], values, rtol=1e-5)
    undiscounted = DiscountingChain().true_values(
        jnp.asarray(trajectory.observation), jax.nn.softmax(predictions["policy"]), 1.0
    )
    np.testing.assert_allclose(found["outer_value"], undiscounted, rtol=1e-5)
    # v of the rule's γ has no gradient to η.
    total = lambda meta_params: jnp.sum(rule.with_known_values(meta_params, predictions, trajectory, 1.0)["value"])
    assert jax.grad(total)(meta_params)["discount"] == 0


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"discount_range": (1.0, 0.9)}, "discount_range is (1.0, 0.9), expected two finite numbers, the smaller one"),
        ({"cost_range": (-1.0, 0.9)}, "cost_range is (-1.0, 0.9), expected numbers of at least 0"),
        ({"discount_range": (0.0, 2.0)}, "discount_range is (0.0, 2.0), expected numbers from 0 to 1"),
        ({"discount": 0.8, "discount_range": (0.9, 1.0)}, "discount is 0.8, expected one of its range, from 0.9"),
        ({"tuned": ()}, "tuned is (), expected one or more"),
        ({"tuned": ("gamma",)}, "tuned is 'gamma'"),
        ({"eta_inputs": ("reward",)}, "eta_inputs is 'reward'"),
        ({"eta_inputs": ("mean_rewards",) * 2}, "eta_inputs is ('mean_rewards', 'mean_rewards'), expected each once"),
        ({"history": 0}, "history is 0"),
        ({"history": 2.5}, "history is 2.5, expected an integer of at least 1"),
        ({"known_values": "toy/discounting_chain/3", "heads": 1}, "known_values is 'toy/discounting_chain/3', heads 1"),
        ({"is_corrected": False}, f"tuned is {TUNED} and is_corrected False, expected no alpha"),
        ({"cost_range": ("0", "1")}, "cost_range is ('0', '1'), expected"),
    ],
)
def test_bad_settings_are_refused_by_name(settings, message):
    with pytest.raises(ValueError) as error:
        SelfTunedConfig(**settings).validate()
    assert str(error.value).startswith(message), error.value
