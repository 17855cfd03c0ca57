"""LPO and PPO with corrections: against formulas in NumPy, PPO bit for bit, and meta-gradients through minibatches."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from agents.networks.agent import NetworkConfig, make_agent
from agents.rule import masked_reduce
from agents.rules.ppo import DPOConfig, PPOConfig, PPOTargets, dpo, ppo
from agents.types import successors
from meta.targets import proximal
from meta.targets.disco import DiscoConfig, disco
from meta.targets.proximal import CorrectedPPOConfig, LPOConfig, corrected_ppo, lpo
from meta.targets.scalar import FrodoConfig, frodo
from meta.updates import passes
from meta.updates.gradients import MODES
from meta.updates.lifetime import Setup, init_agent_state, make_agent_step
from meta.updates.optimizers import adam
from meta.updates.outer import Outer
from meta.updates.passes import Passes
from tests.reference.proximal import corrected_losses
from tests.trajectories import random_trajectory

T, B, A = 4, 3, 3
SMALL = NetworkConfig("mlp", (4,), activation="tanh")
EPOCHS, MINIBATCHES = 2, 2
TOTAL = EPOCHS * MINIBATCHES
SHARED = dict(discount=0.9, value_cost=0.4, entropy_cost=0.1, lambda_=0.8, clip=0.3)
CORRECTED = CorrectedPPOConfig(**SHARED, drift_units=5, lstm=4, life=7, parts=proximal.PARTS)
DISCO = DiscoConfig(
    prediction_size=5, max_value=3, lstm=4, lifetime_lstm=3, action_embedding=(4, 3), without=("aux_policy",)
)
RULES = {
    "corrected_ppo": corrected_ppo(CORRECTED),
    "lpo": lpo(LPOConfig(**SHARED, drift_units=5, is_temporal=True, life=7)),
    "frodo": frodo(FrodoConfig(lstm=4, discount=0.9, entropy_cost=0.1, inputs=("reward", "next_value", "pi", "mu"))),
}


def of_predictions(state, predictions, trajectory):
    """An outer loss whose every part depends on the predictions, so that nothing of it is constant."""
    losses = jnp.sum(jnp.tanh(predictions["policy"][:-1] + jnp.arange(A)), -1)
    if "value" in predictions:
        losses += jnp.square(predictions["value"][:-1])
    return losses, state


def problem(rule, truncation=0, optimizer=None, network=SMALL):
    agent = make_agent(network, rule.spec(A), A)
    outer = Outer(lambda key, observation: (), of_predictions)
    setup = Setup(agent, rule, optimizer or adam(0.05).make(), outer, Passes(EPOCHS, MINIBATCHES, truncation))
    trajectory, validation = (random_trajectory(seed, T, B, num_actions=A) for seed in (1, 2))
    state = init_agent_state(setup, jax.random.key(0), jnp.asarray(validation.observation[0]))
    meta_params = optax.tree.random_like(jax.random.key(1), rule.random_meta_params(jax.random.key(1), A))
    meta_params = jax.tree.map(lambda x: 0.5 * x, meta_params)
    return setup, state, trajectory, validation, meta_params


def outer_loss(setup, state, trajectory, validation, meta_params, before, truncation):
    """The outer loss of η, with another one, `before`, in all minibatches but the last ones; a loop in Python.

    Minibatches are the whole trajectory with all other steps masked.
    """
    agent, rule, optimizer = setup.agent, setup.rule, setup.optimizer
    predictions = agent.unroll(state.params, trajectory)
    draws = passes.draw(jax.random.split(state.key)[1], trajectory, setup.passes).reshape(TOTAL, -1)
    params, opt_state = state.params, state.opt_state
    for i, indices in enumerate(draws):
        own = before if i < TOTAL - truncation else meta_params
        targets, _ = rule.apply(own, state.rule_state, trajectory, predictions, predictions)
        valid = trajectory.valid & jnp.zeros(T * B, bool).at[indices].set(True).reshape(T, B)
        part = trajectory._replace(valid=valid)

        def loss(params, own=own, targets=targets, part=part):
            found = agent.unroll(params, part)
            losses = rule.loss(targets, found, part)
            if rule.meta_loss:
                losses += rule.meta_loss(own, targets, found, part)
            return masked_reduce(losses, part.valid, rule.reduction)

        updates, opt_state = optimizer.update(jax.grad(loss)(params), opt_state, params)
        scale = rule.update_scale(own) if rule.update_scale else 1.0
        params = optax.tree.add_scale(params, scale, updates)
    losses, _ = of_predictions((), agent.unroll(params, validation), validation)
    return masked_reduce(losses, validation.valid, rule.reduction)


def slopes(name, truncation):
    """The outer loss, random directions in η, and its slope along each, by five points."""
    setup, state, trajectory, validation, meta_params = problem(RULES[name], 0, optax.adam(0.05))
    at = jax.jit(lambda eta: outer_loss(setup, state, trajectory, validation, eta, meta_params, truncation))
    found = []
    for seed in range(2):
        direction, h = optax.tree.random_like(jax.random.key(seed), meta_params), 1e-4
        by = lambda size, d=direction: at(optax.tree.add_scale(meta_params, size, d))
        found.append((direction, (8 * (by(h) - by(-h)) - (by(2 * h) - by(-2 * h))) / (12 * h)))
    return at(meta_params), found


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    "name, truncation",
    [
        *(("corrected_ppo", truncation) for truncation in (3, TOTAL)),
        ("lpo", 2),
        ("frodo", 1),  # of more minibatches its advantage has a constant part, v, which differences do not know
    ],
)
def test_the_meta_gradient_goes_through_the_last_minibatches(name, truncation):
    # Not the package's Adam, whose denominator is a constant in derivatives.
    setup, state, trajectory, validation, meta_params = problem(RULES[name], truncation % TOTAL, optax.adam(0.05))
    stacked = jax.tree.map(lambda x: jnp.asarray(x)[None], trajectory)
    _, gradient, metrics = jax.jit(make_agent_step(setup))(meta_params, state, stacked, validation)
    base, found = slopes(name, truncation)
    np.testing.assert_allclose(metrics["outer_loss"], base, rtol=1e-10)
    for direction, slope in found:
        assert slope != 0
        np.testing.assert_allclose(optax.tree.vdot(gradient, direction), slope, rtol=1e-6, atol=1e-9)


def meta_gradient(rule, mode, truncation=0):
    setup, state, trajectory, validation, meta_params = problem(
        rule, truncation, network=NetworkConfig("mlp", (4,), action_model=3)
    )
    stacked = jax.tree.map(lambda x: jnp.asarray(x)[None], trajectory)
    state, gradient, _ = jax.jit(make_agent_step(setup, mode))(meta_params, state, stacked, validation)
    return state, gradient


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name, modes", [("corrected_ppo", MODES), ("lpo", ("reverse", "mixed"))])
def test_all_modes_agree(name, modes):
    found = [meta_gradient(RULES[name], mode, truncation=3)[1] for mode in modes]
    for other in found[1:]:
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-7, atol=1e-12), found[0], other)


@pytest.mark.parametrize("rule", [RULES["frodo"], disco(DISCO)], ids=["frodo", "disco"])
def test_rules_of_other_forms_take_the_loop(rule):
    state, gradient = meta_gradient(rule, "mixed")
    assert state.opt_state[0].count == TOTAL
    assert 1e-6 < optax.tree.norm(gradient) < np.inf


@pytest.mark.usefixtures("float64")
def test_through_one_minibatch_it_is_the_formula():
    rate = 0.1
    setup, state, trajectory, validation, meta_params = problem(RULES["corrected_ppo"], 1, optax.sgd(rate))
    agent, rule = setup.agent, setup.rule
    stacked = jax.tree.map(lambda x: jnp.asarray(x)[None], trajectory)
    _, gradient, _ = jax.jit(make_agent_step(setup))(meta_params, state, stacked, validation)
    *first, last = passes.draw(jax.random.split(state.key)[1], trajectory, setup.passes).reshape(TOTAL, -1)
    known = jax.jit(agent.unroll)(state.params, trajectory)

    def loss(params, eta, indices):
        targets, _ = rule.apply(eta, state.rule_state, trajectory, known, known)
        valid = trajectory.valid & jnp.zeros(T * B, bool).at[indices].set(True).reshape(T, B)
        part, found = trajectory._replace(valid=valid), agent.unroll(params, trajectory)
        losses = rule.loss(targets, found, part) + rule.meta_loss(eta, targets, found, part)
        return masked_reduce(losses, valid, rule.reduction)

    def judged(params):
        losses, _ = of_predictions((), agent.unroll(params, validation), validation)
        return masked_reduce(losses, validation.valid, rule.reduction)

    of_loss, params = jax.jit(jax.grad(loss)), state.params
    step = lambda eta, params, indices: optax.tree.add_scale(
        params, -rate * rule.update_scale(eta), of_loss(params, eta, indices)
    )
    for indices in first:
        params = step(meta_params, params, indices)
    of_after = jax.jit(jax.grad(judged))(step(meta_params, params, last))
    along = lambda eta: rule.update_scale(eta) * optax.tree.vdot(of_loss(params, eta, last), of_after)
    expected = jax.tree.map(lambda x: -rate * x, jax.jit(jax.grad(along))(meta_params))  # −α ∂²L/∂η∂θ ∂J/∂θ′
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-12), gradient, expected)


def test_with_the_initial_eta_it_is_ppo_bit_for_bit():
    both = []
    for rule in (ppo(PPOConfig(**SHARED)), RULES["corrected_ppo"]):
        setup, state, *_ = problem(rule, network=NetworkConfig("mlp", (16,)))
        step, meta_params = jax.jit(make_agent_step(setup)), rule.random_meta_params(jax.random.key(3), A)
        for seed in range(100):
            trajectory = random_trajectory(seed, 1, T, B, num_actions=A)
            state, _, _ = step(meta_params, state, trajectory, None)
        both.append((state.params, state.opt_state))
    jax.tree.map(np.testing.assert_array_equal, *both)


def ratios(seed=0):
    random = np.random.default_rng(seed)
    return np.exp(random.normal(size=(T, B))), random.normal(size=(T, B))


def single_step_loss(rule, config, meta_params=None):
    """The rule's loss of steps with given ratios and advantages, without the losses of value and entropy."""
    ratio, advantage = ratios()
    trajectory = random_trajectory(0, T, B, num_actions=A)
    trajectory = jax.tree.map(jnp.asarray, trajectory._replace(valid=np.ones((T, B), bool)))
    logits = np.random.default_rng(1).normal(size=(T + 1, B, A))
    log_pi = np.asarray(jax.nn.log_softmax(logits))[:-1]
    log_pi_a = np.take_along_axis(log_pi, np.asarray(trajectory.action)[..., None], -1)[..., 0]
    zeros = jnp.zeros((T, B))
    own = PPOTargets(zeros, jnp.asarray(advantage), zeros, jnp.asarray(log_pi_a - np.log(ratio)))
    predictions = {"policy": jnp.asarray(logits), "value": jnp.zeros((T + 1, B))}
    return rule, own, predictions, trajectory


@pytest.mark.usefixtures("float64")
def test_dpo_is_its_formula():
    config = DPOConfig(entropy_cost=0.0, is_advantage_normalised=False, drift_alpha=1.7, drift_beta=0.5)
    rule, own, predictions, trajectory = single_step_loss(dpo(config), config)
    found = rule.loss(own, predictions, trajectory)
    for r, a, x in zip(*(x.ravel() for x in ratios()), np.ravel(found), strict=True):
        if a >= 0:
            drift = max(0.0, (r - 1) * a - 1.7 * np.tanh((r - 1) * a / 1.7))
        else:
            drift = max(0.0, np.log(r) * a - 0.5 * np.tanh(np.log(r) * a / 0.5))
        np.testing.assert_allclose(x, drift - r * a, rtol=1e-12)


@pytest.mark.usefixtures("float64")
def test_lpo_is_its_formula():
    config = LPOConfig(entropy_cost=0.0, is_advantage_normalised=False, drift_units=5, is_temporal=True, life=10)
    rule, own, predictions, trajectory = single_step_loss(lpo(config), config)
    eta = rule.random_meta_params(jax.random.key(0), A)
    progress = np.random.default_rng(2).uniform(size=(T, B))
    targets = proximal.LPOTargets(own, jnp.asarray(progress))
    found = rule.loss(targets, predictions, trajectory) + rule.meta_loss(eta, targets, predictions, trajectory)
    first, last = (np.asarray(x["w"]) for x in eta.values())
    for r, a, share, x in zip(*(x.ravel() for x in (*ratios(), progress)), np.ravel(found), strict=True):
        one = np.array([r - 1, (r - 1) ** 2, np.log(r), np.log(r) ** 2])
        one = np.concatenate([one, one * a])
        seen = np.concatenate([one, share * one, np.log(10) / 10 * one])
        drift = max(0.0, (np.tanh(seen @ first) @ last).item() - 1e-6)
        np.testing.assert_allclose(x, drift - r * a, rtol=1e-10)


@pytest.mark.usefixtures("float64")
def test_corrected_ppo_is_its_formula():
    rule = RULES["corrected_ppo"]
    setup, state, trajectory, _, meta_params = problem(rule)
    known = setup.agent.unroll(state.params, trajectory)
    changed = jax.tree.map(lambda x: x + 0.3, state.params)
    predictions = setup.agent.unroll(changed, trajectory)
    _, rule_state = rule.apply(meta_params, rule.init(), trajectory, known, known)
    targets, _ = rule.apply(meta_params, rule_state, trajectory, known, known)
    found = rule.loss(targets, predictions, trajectory)
    found += rule.meta_loss(meta_params, targets, predictions, trajectory)
    expected = corrected_losses(CORRECTED, meta_params, 1 / 7, trajectory, known, predictions)
    np.testing.assert_allclose(np.where(trajectory.valid, found - expected, 0), 0, atol=1e-7)  # n / N has 32 bits
    np.testing.assert_allclose(
        rule.update_scale(meta_params), np.exp(2 * np.tanh(5 * meta_params["constants"]["learning_rate"]))
    )


def test_a_drift_is_nothing_where_the_policy_is_the_one_that_acted():
    network = proximal.drift_network(LPOConfig(drift_units=6, is_temporal=True, life=5), is_zero_at_first=False)
    one = jnp.ones((2, 2))
    params = network.init(jax.random.key(0), one, one, one)
    assert not np.any(network.apply(params, 0 * one, 3 * one, 0.3 * one))
    assert np.all(network.apply(params, 0.1 * one, 3 * one, 0.3 * one))


@pytest.mark.parametrize("name", ["dpo", "lpo", "corrected_ppo"])
def test_gradients_are_finite_where_a_ratio_is_0(name):
    rule = {"dpo": dpo(DPOConfig(**SHARED))}.get(name, RULES.get(name))
    *_, trajectory, _, meta_params = problem(rule)
    logits = jnp.zeros((T + 1, B, A)).at[:, :, 0].set(200.0)
    predictions = {"policy": logits, "value": jnp.zeros((T + 1, B))}
    targets, _ = rule.apply(meta_params, rule.init(), trajectory, predictions, predictions)

    def total(predictions):
        losses = rule.loss(targets, predictions, trajectory)
        if rule.meta_loss:
            losses += rule.meta_loss(meta_params, targets, predictions, trajectory)
        return jnp.sum(losses)

    assert all(np.isfinite(x).all() for x in jax.tree.leaves(jax.grad(total)(predictions)))


def test_the_life_goes_from_0_to_1_and_stays():
    rule = RULES["corrected_ppo"]
    setup, state, trajectory, _, meta_params = problem(rule)
    predictions = setup.agent.unroll(state.params, trajectory)
    rule_state, found = rule.init(), []
    for _ in range(9):
        targets, rule_state = rule.apply(meta_params, rule_state, trajectory, predictions, predictions)
        found.append(targets.progress.max())
    np.testing.assert_allclose(found, [min(1, i / 7) for i in range(9)], rtol=1e-6)
    without = corrected_ppo(dataclasses.replace(CORRECTED, life=0))
    assert not np.any(without.apply(meta_params, rule_state, trajectory, predictions, predictions)[0].progress)


def test_corrections_of_targets_are_within_their_bound_and_settings_in_their_ranges():
    rule = corrected_ppo(dataclasses.replace(CORRECTED, parts=("targets", "settings")))
    setup, state, trajectory, _, meta_params = problem(rule)
    predictions = setup.agent.unroll(state.params, trajectory)
    large = jax.tree.map(lambda x: 100 * x, meta_params)
    at = lambda eta: rule.apply(eta, rule.init(), trajectory, predictions, predictions)[0]
    changed, none = at(large), at(jax.tree.map(jnp.zeros_like, large))
    only_targets = dataclasses.replace(CORRECTED, parts=("targets",))
    moved = corrected_ppo(only_targets).apply(large, rule.init(), trajectory, predictions, predictions)[0]
    values, td_error = predictions["value"], lambda v: trajectory.reward + 0.9 * trajectory.discount * v - values[:-1]
    errors = np.asarray(td_error(successors(values, trajectory)))[trajectory.valid]
    unit = np.sqrt(np.mean(np.square(errors)))
    for name in ("value", "advantage"):
        change = np.abs(getattr(moved.own, name) - getattr(none.own, name))[trajectory.valid] / unit
        assert 0.1 < change.max() < 1 + 1e-5
    settings = {name: getattr(CORRECTED, name) + x[0, 0] for name, x in changed.settings.items()}
    assert 0 < settings["entropy_cost"] <= 0.1 * np.exp(3.001)
    assert 0 < settings["clip"] <= 0.3 * np.exp(1.001)
    assert 0 <= settings["lambda_"] < 1
    assert all(not np.any(x) for x in none.settings.values())
