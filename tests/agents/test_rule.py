"""The masked reduction, and rules that are asked for predictions which are not theirs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents import rule as rules
from agents.rule import UpdateRule, masked_reduce, with_checked_predictions
from agents.rules.impala import A2CConfig, ImpalaConfig, a2c, impala
from agents.rules.q_learning import QLearningConfig, q_learning
from agents.rules.td import TDLambdaConfig, td_lambda
from agents.types import PredictionSpec
from tests.trajectories import random_trajectory

T, B, A = 5, 4, 3


def test_masked_reduce_counts_valid_steps_only():
    loss = np.array([[1.0, np.nan], [2.0, 4.0]])
    valid = np.array([[True, False], [True, True]])
    assert masked_reduce(loss, valid, "sum") == 7
    np.testing.assert_allclose(masked_reduce(loss, valid, "mean"), 7 / 3, rtol=1e-6)
    assert masked_reduce(loss, np.zeros_like(valid), "mean") == 0
    gradient = jax.grad(lambda loss: masked_reduce(loss, valid, "mean"))(jnp.asarray(loss))
    np.testing.assert_allclose(gradient, [[1 / 3, 0], [1 / 3, 1 / 3]], rtol=1e-6)
    with pytest.raises(ValueError, match=r"^reduction is 'means', expected one of sum, mean \(did you mean 'mean'"):
        masked_reduce(loss, valid, "means")


@pytest.mark.parametrize("loss", [0.5, jnp.ones(()), jnp.ones(B), jnp.ones(T), jnp.ones((B, T)), jnp.ones((T, B, 1))])
def test_a_loss_that_is_not_per_step_is_refused(loss):
    shape = ", ".join(map(str, np.shape(loss)))
    message = rf"^loss has the shape \[{shape}\], expected \[{T}, {B}\]$"
    for reduction in ("sum", "mean"):
        with pytest.raises(ValueError, match=message):
            masked_reduce(loss, jnp.ones((T, B), bool), reduction)


def test_a_rule_has_the_reduction_that_was_asked_for():
    for reduction in ("sum", "mean"):
        assert impala(ImpalaConfig(reduction=reduction)).reduction == reduction
        assert a2c(A2CConfig(reduction=reduction)).reduction == reduction
    assert (q_learning(QLearningConfig()).reduction, td_lambda(TDLambdaConfig()).reduction) == ("sum", "mean")


# Predictions that are those of the spec

SPEC = {"value": PredictionSpec(), "q": PredictionSpec((601,), is_per_action=True)}


def made(calls=None):
    """A rule whose targets are the rewards; `calls` counts how often it is traced."""

    def apply(meta_params, rule_state, trajectory, predictions, target_predictions):
        if calls is not None:
            calls.append("apply")
        return trajectory.reward + target_predictions["value"][1:], rule_state

    return with_checked_predictions(
        UpdateRule(
            spec=lambda num_actions: SPEC,
            apply=apply,
            loss=lambda targets, predictions, trajectory: targets - predictions["value"][:-1],
            policy=lambda predictions: predictions["q"][..., 0],
        )
    )


def predictions_of(**shapes):
    shapes = {"value": (T + 1, B), "q": (T + 1, B, A, 601)} | shapes
    return {name: jnp.zeros(shape) for name, shape in shapes.items() if shape}


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (
            {"q": (T + 1, B, A, 7)},
            rf"^prediction 'q' has the shape \[{T + 1}, {B}, {A}, 7\], expected \[{T + 1}, {B}, {A}, 601\]$",
        ),
        ({"q": (T + 1, B, 601)}, rf"^prediction 'q' has the shape .*, expected \[{T + 1}, {B}, {A}, 601\]$"),
        ({"value": (T, B)}, rf"^prediction 'value' has the shape \[{T}, {B}\], expected \[{T + 1}, {B}\]$"),
        ({"value": (T + 1, B, 1)}, rf"^prediction 'value' has the shape .*, expected \[{T + 1}, {B}\]$"),
        ({"q": None}, "^prediction 'q' is missing: the agent predicts value, expected value, q$"),
    ],
)
def test_predictions_that_are_not_those_of_the_spec_are_refused(shapes, message):
    trajectory, rule = random_trajectory(0, T, B, num_actions=A), made()
    right, wrong = predictions_of(), predictions_of(**shapes)
    for pair in ((wrong, right), (right, wrong)):
        for apply in (rule.apply, jax.jit(rule.apply)):
            with pytest.raises(ValueError, match=f"(?m){message}"):  # JAX adds notes
                apply({}, (), trajectory, *pair)
    rule.apply({}, (), trajectory, right, right | {"more": jnp.zeros(3)})  # an agent may predict more


def test_predictions_are_checked_where_a_rule_is_traced_and_never_again(monkeypatch):
    check, calls = rules.check_predictions, []
    monkeypatch.setattr(rules, "check_predictions", lambda *x: (calls.append("check"), check(*x)))
    apply = jax.jit(made(calls).apply)
    for seed in range(3):
        trajectory = random_trajectory(seed, T, B, num_actions=A)
        targets, _ = apply({}, (), trajectory, predictions_of(), predictions_of())
        np.testing.assert_allclose(targets, trajectory.reward, rtol=1e-6)
        assert calls == ["check", "check", "apply"]
    unchecked = made()._replace(apply=lambda *x: (x[2].reward + x[4]["value"][1:], x[1]))
    arguments = ({}, (), trajectory, predictions_of(), predictions_of())
    assert str(jax.make_jaxpr(made().apply)(*arguments)) == str(jax.make_jaxpr(unchecked.apply)(*arguments))
