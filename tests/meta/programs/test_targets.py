"""Programs as targets: the hand-made ones at every kind of episode end, η, and its gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.rules.returns import importance_ratios, lambda_returns, vtrace
from frodo.regimes.learner import build_learner
from frodo.settings import presets
from meta.programs.equivalence import SAME
from meta.programs.generation import random_program
from meta.programs.language import TARGETS, parse, to_formula
from meta.programs.targets import FORMULAS, TargetProgramConfig, assembled, fingerprint, probe, target_program
from tests.trajectories import random_trajectory

GAMMA = 0.9

pytestmark = pytest.mark.usefixtures("float64")


def drawn(num_steps=8, batch_size=4):
    rng = np.random.default_rng(3)
    values, logits = rng.normal(size=(num_steps + 1, batch_size)), rng.normal(size=(num_steps + 1, batch_size, 3))
    return random_trajectory(2, num_steps, batch_size), jnp.asarray(values), jnp.asarray(logits)


def made(formula, trajectory, values, logits, is_data=False):
    rule = target_program(TargetProgramConfig(GAMMA, formula=formula, is_data=is_data))
    predictions = {"value": values, "policy": logits}
    meta_params = rule.random_meta_params(jax.random.key(0), 3)
    return rule.apply(meta_params, rule.init(), trajectory, predictions, predictions)[0]


@pytest.mark.parametrize("name", list(FORMULAS))
def test_formulas_of_hand_made_targets_are_these_at_ends_of_episodes_too(name):
    trajectory, values, logits = drawn()
    found = made(FORMULAS[name], trajectory, values, logits)
    expected = {
        "n_step_return": lambda: lambda_returns(trajectory, values, GAMMA, 1.0),
        "lambda_return": lambda: lambda_returns(trajectory, values, GAMMA, 0.95),
        "vtrace": lambda: vtrace(trajectory, values, importance_ratios(logits, trajectory), GAMMA, 0.95),
    }[name]()[0]
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    assert found.dtype == np.float64


def test_a_program_without_gamma_sees_nothing_of_what_follows_an_end():
    trajectory, values, logits = drawn()
    found = made("r + v_next + G_next", trajectory, values, logits)
    np.testing.assert_allclose(found[1, 0], trajectory.reward[1, 0])  # terminates
    np.testing.assert_allclose(found[2, 1], trajectory.reward[2, 1] + 2 * values[3, 1])  # truncated, its own last state
    np.testing.assert_allclose(found[3, 1], values[3, 1])  # the reset step
    by_hand = trajectory.reward[0, 0] + values[1, 0] + found[1, 0]
    np.testing.assert_allclose(found[0, 0], by_hand)
    np.testing.assert_allclose(found[-1, 1], trajectory.reward[-1, 1] + 2 * values[-1, 1])


def test_constants_are_eta_and_the_metagradient_reaches_them():
    trajectory, values, logits = drawn()
    rule = target_program(TargetProgramConfig(GAMMA, formula=FORMULAS["lambda_return"]))
    predictions = {"value": values, "policy": logits}
    meta_params = rule.random_meta_params(jax.random.key(0), 3)
    assert meta_params == {"program": {"constants": jnp.array([0.95])}}

    def total(lambda_):
        given = {"program": {"constants": jnp.reshape(lambda_, 1)}}
        return jnp.sum(rule.apply(given, (), trajectory, predictions, predictions)[0])

    for lambda_ in (0.95, 0.3):
        np.testing.assert_allclose(
            total(lambda_), jnp.sum(lambda_returns(trajectory, values, GAMMA, lambda_)[0]), rtol=1e-9
        )
    slope = (total(0.5 + 1e-5) - total(0.5 - 1e-5)) / 2e-5
    assert abs(slope) > 0.1
    np.testing.assert_allclose(jax.grad(total)(0.5), slope, rtol=1e-6)


def test_programs_as_data_give_the_same_and_are_mapped_over():
    trajectory, values, logits = drawn()
    rng = np.random.default_rng(0)
    programs = [parse(TARGETS, x) for x in FORMULAS.values()] + [random_program(TARGETS, rng) for _ in range(40)]
    formulas = [to_formula(TARGETS, program) for program in programs]
    data = jax.tree.map(lambda *x: jnp.stack(x), *map(assembled, programs))
    data = data._replace(num=jnp.max(data.num))
    rule = target_program(TargetProgramConfig(discount=GAMMA, is_data=True))
    predictions = {"value": values, "policy": logits}
    axes = data._replace(instructions=0, num=None)
    apply = jax.vmap(lambda one: rule.apply(one, (), trajectory, predictions, predictions)[0], in_axes=(axes,))
    for formula, found in zip(formulas, apply(data), strict=True):
        np.testing.assert_allclose(found, made(formula, trajectory, values, logits), rtol=1e-9, err_msg=formula)
        assert np.all(np.isfinite(found))


@pytest.mark.parametrize(
    "one,other,is_same",
    [
        ("r + gamma * G_next", "G_next * gamma + r", True),
        ("r + gamma * G_next", "r + 0.99 * G_next", True),  # what follows an end is 0 anyway
        ("v + (r - v)", "r + 0 * v", True),
        ("v + 0.5 * (r - v)", "r + 0 * v", False),  # beside the entropy's gradient the size counts
        ("r + gamma * G_next", "v + 0.5 * (r + gamma * G_next - v)", False),  # the factor's powers weigh what follows
        (FORMULAS["vtrace"], FORMULAS["lambda_return"], False),
        ("r + 0 * v", "v - (r - v)", False),
    ],
)
def test_targets_are_equal_where_the_errors_are(one, other, is_same):
    first, second = (fingerprint(assembled(parse(TARGETS, x))) for x in (one, other))
    assert (np.max(np.abs(first - second)) < SAME) == is_same
    assert np.max(np.abs(fingerprint(assembled(parse(TARGETS, "v + 0 * r"))))) < 1e-9


def test_targets_are_told_apart_by_what_they_are_at_ends_of_every_kind_too():
    trajectory, _, logits = probe()
    assert np.any(trajectory.discount[:-1] == 0) and not np.all(trajectory.valid)
    assert np.any(trajectory.truncated[:-1] & (trajectory.discount[:-1] > 0))
    ratios = importance_ratios(logits, trajectory)
    assert np.any(ratios > 1.1) and np.any(ratios < 0.9)


def test_losses_are_frodos():
    trajectory, values, logits = drawn()
    rule = target_program(TargetProgramConfig(value_cost=0.3, entropy_cost=0.2))
    predictions = {"value": values, "policy": logits}
    found, _ = rule.apply(rule.random_meta_params(None, 3), (), trajectory, predictions, predictions)
    loss = rule.loss(found, predictions, trajectory)
    log_pi = np.asarray(jax.nn.log_softmax(logits))
    for t, b in np.ndindex(loss.shape):
        delta = found[t, b] - values[t, b]
        own = log_pi[t, b]
        entropy = -np.sum(np.exp(own) * own)
        expected = -delta * own[trajectory.action[t, b]] + 0.3 * 0.5 * delta**2 - 0.2 * entropy
        np.testing.assert_allclose(loss[t, b], expected, rtol=1e-9)
    assert rule.metrics(found, predictions, trajectory)["target_difference"] > 0  # γ is the rule's, 0.99
    assert rule.is_target_constant


@pytest.mark.parametrize(
    "formula,message",
    [
        ("Q(v)", "no operator|no name"),
        ("v[r]", r"^formula: x\[y\] is nothing that this language has$"),
        ("r + gama * G_next", "'gama' is no name"),
        ("max(r, normal())", "'normal' is no operator: there are max, min,"),
    ],
)
def test_a_bad_formula_is_refused(formula, message):
    with pytest.raises(ValueError, match=message):
        TargetProgramConfig(formula=formula).validate()


def test_a_program_as_data_is_not_learned():
    config = presets.for_rule("toy/catch", "target_program")
    with pytest.raises(ValueError, match="'target_program' has nothing to learn with these settings: keep it as it is"):
        build_learner(config.replace(rule=config.rule.replace(is_data=True)), 3)
