"""η fitted to hand-made targets: the targets against loops, what is made up, how well it fits, and what is refused."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.types import check_trajectory
from meta.targets import fitting
from meta.targets.hand_made import TARGETS
from meta.targets.scalar import FrodoConfig
from tests.reference import frodo as reference
from tests.trajectories import random_trajectory

RELATIVE = FrodoConfig(
    lstm=8, discount=0.9, vtrace_lambda=0.8, is_relative=True, inputs=("td_error", "discount", "pi", "mu")
)
KINDS = {
    "actor_critic": RELATIVE,
    "value_based": FrodoConfig(
        kind="value_based",
        lstm=8,
        discount=0.9,
        epsilon=0.3,
        is_relative=True,
        inputs=("td_error", "discount", "reward", "next_value"),
    ),
    "prediction": FrodoConfig(
        kind="prediction", lstm=8, discount=0.9, is_relative=True, inputs=("td_error", "discount")
    ),
}


def predictions_of(kind: str, num_actions: int = 3) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    shapes = {"policy": (7, 4, num_actions), "value": (7, 4), "q": (7, 4, num_actions)}
    names = {"actor_critic": ("policy", "value"), "value_based": ("q",), "prediction": ("value",)}[kind]
    return {name: rng.normal(size=shapes[name]) for name in names}


CASES = [(kind, target) for kind in KINDS for target in TARGETS if (kind == "actor_critic") >= (target == "vtrace")]


@pytest.mark.parametrize(("kind", "target"), CASES)
def test_targets_are_those_of_loops(kind, target):
    """V-trace weighs by min(1, ρ); λ-returns and n-step returns by 1; the last has λ = 1."""
    config, num_actions = KINDS[kind], 1 if kind == "prediction" else 3
    with jax.enable_x64(True):
        trajectory, predictions = random_trajectory(0, 6, 4, num_actions=num_actions), predictions_of(kind, num_actions)
        case = reference.Case("frodo", config, None)
        known = reference.with_greedy({name: jnp.asarray(x) for name, x in predictions.items()}, lambda x: x)
        values, logits = reference.values_of(known, case), reference.policy_logits(known, case)
        log_pi, _ = reference.log_probability(logits[:-1], trajectory.action)
        log_mu, _ = reference.log_probability(trajectory.behaviour_logits, trajectory.action)
        rho = jnp.exp(log_pi - log_mu) if target == "vtrace" else jnp.ones_like(log_pi)
        lambda_ = 1.0 if target == "n_step_return" else config.vtrace_lambda
        expected, _ = reference.vtrace(trajectory, values, rho, 0.9, lambda_)
        made = fitting.hand_made(target, config, trajectory, known)
        valid = trajectory.valid
        np.testing.assert_allclose(made[valid], expected[valid], rtol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_made_up_is_a_trajectory_with_everything_in_it(kind):
    config = KINDS[kind]
    trajectory, predictions = jax.jit(functools.partial(fitting.make_up, config=config))(jax.random.key(0))
    check_trajectory(trajectory)
    assert trajectory.reward.shape == (fitting.NUM_STEPS, fitting.BATCH_SIZE)
    valid, over = np.asarray(trajectory.valid), np.asarray((trajectory.discount == 0) | trajectory.truncated)
    is_first, after = np.asarray(trajectory.is_first[1:]), np.append(np.zeros_like(over[:1]), over[:-1], axis=0)
    at_once = np.all(is_first == over, axis=0)
    np.testing.assert_array_equal(is_first[:, ~at_once], after[:, ~at_once])
    assert 0.3 < at_once.mean() < 0.8 and not np.any(trajectory.is_successor_unknown & valid)
    assert not np.any((trajectory.discount == 0) & trajectory.truncated)
    at_once, later = ~valid & np.asarray(trajectory.truncated), ~valid[1:] & over[:-1]
    assert at_once.any() and later.any() and (valid & np.asarray(trajectory.truncated)).any()
    # A step that is not valid is truncated itself, with a reset at once, or it follows the end of an episode.
    np.testing.assert_array_equal(
        ~valid[1:] & ~np.asarray(trajectory.truncated[1:]), later & ~np.asarray(trajectory.truncated[1:])
    )
    rewards = np.abs(np.asarray(trajectory.reward)).max(axis=0)
    assert rewards.max() > 3 * np.median(rewards) > 0
    assert set(predictions) == set(predictions_of(kind))


def test_policies_are_on_and_off_mu():
    def distance(is_on_policy: bool):
        trajectory, predictions = fitting.make_up(jax.random.key(0), RELATIVE, is_on_policy=is_on_policy)
        return np.abs(predictions["policy"][:-1] - trajectory.behaviour_logits).max(axis=(0, 2))

    assert not distance(True).any()
    assert 0.1 < np.mean(distance(False) == 0) < 0.4


@pytest.mark.parametrize("is_relative", [True, False])
def test_a_fit_explains_most_and_less_where_it_was_not_fitted(monkeypatch, is_relative):
    monkeypatch.setattr(fitting, "NUM_UPDATES", 300)
    inputs = RELATIVE.inputs if is_relative else ("reward", "discount", "next_value", "value", "pi", "mu")
    config = dataclasses.replace(RELATIVE, lstm=16, is_relative=is_relative, inputs=inputs)
    fit = jax.jit(functools.partial(fitting.fit, "vtrace", config))
    meta_params = fit(jax.random.key(0))
    made_up = fitting.make_up(jax.random.key(1), config, batch_size=256)
    explained = fitting.variance_explained("vtrace", config, meta_params, *made_up)
    assert (0.75 if is_relative else 0.5) < explained < 1
    assert fitting.variance_explained("n_step_return", config, meta_params, *made_up) < explained


def test_relative_targets_do_not_depend_on_the_unit_of_rewards():
    trajectory, predictions = fitting.make_up(jax.random.key(0), RELATIVE)
    meta_params = fitting.frodo(RELATIVE).random_meta_params(jax.random.key(1), 3)
    apply = lambda x, p: fitting.frodo(RELATIVE).apply(meta_params, (), x, p, p)[0]
    larger = trajectory._replace(reward=100 * trajectory.reward), predictions | {"value": 100 * predictions["value"]}
    np.testing.assert_allclose(apply(*larger), 100 * apply(trajectory, predictions), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("target", "change", "missing"),
    [
        ("vtrace", {"inputs": ("td_error", "discount")}, "pi or log_pi, mu"),
        ("vtrace", {"inputs": ("td_error",)}, "discount, pi or log_pi, mu"),
        ("vtrace", {"inputs": ("reward", "next_value", "discount", "pi", "mu")}, "td_error"),
        (
            "vtrace",
            {"inputs": ("reward", "next_value", "discount", "pi", "mu"), "is_relative": False},
            "value or td_er",
        ),
        ("lambda_return", {"inputs": ("td_error", "discount"), "is_relative": False}, "reward, next_value"),
        ("n_step_return", {"inputs": ("td_error", "discount"), "kind": "value_based"}, "reward, next_value"),
    ],
)
def test_inputs_that_do_not_tell_the_target_are_refused(target, change, missing):
    config = dataclasses.replace(RELATIVE, vtrace_lambda=1.0, **change)
    with pytest.raises(ValueError, match=f"inputs are {','.join(config.inputs)}, expected {missing}"):
        fitting.fit(target, config, jax.random.key(0))
    of_missing = [name.split(" or ")[0] for name in missing.split(", ")]
    fitting.check_target(target, dataclasses.replace(config, inputs=(*config.inputs, *of_missing)))


def test_targets_that_there_are_not_are_refused():
    with pytest.raises(ValueError, match="target is 'vtrac', expected one of .*vtrace"):
        fitting.check_target("vtrac", RELATIVE)
    for kind in ("value_based", "prediction"):
        with pytest.raises(ValueError, match=f"kind is '{kind}', expected 'actor_critic': vtrace is"):
            fitting.check_target("vtrace", KINDS[kind])
