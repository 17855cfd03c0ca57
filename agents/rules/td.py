"""TD(λ) prediction as a hand-designed rule."""

import dataclasses

import jax.numpy as jnp

from agents.rule import UpdateRule
from agents.rules.returns import lambda_returns
from agents.settings import Fraction, Settings
from agents.types import Array, Predictions, PredictionSpec


@dataclasses.dataclass
class TDLambdaConfig(Settings):
    """TD(λ).

    Attributes:
      discount: γ, from 0 to 1.
      lambda_: λ of the returns, from 0 to 1.
    """

    discount: Fraction = 0.99
    lambda_: Fraction = 1.0


def td_lambda(config: TDLambdaConfig) -> UpdateRule:
    """Move v(S) to the λ-return; the loss is the mean of (G − v(S))²."""

    def apply(meta_params, rule_state, trajectory, predictions, target_predictions):
        return lambda_returns(trajectory, predictions["value"], config.discount, config.lambda_)[0], rule_state

    return UpdateRule(
        spec=lambda num_actions: {"value": PredictionSpec()},
        apply=apply,
        loss=lambda targets, predictions, trajectory: jnp.square(targets - predictions["value"][:-1]),
        policy=only_action,
        reduction="mean",
    )


def only_action(predictions: Predictions) -> Array:
    """Where there is nothing to choose: logits of the one action, [..., 1]."""
    return jnp.zeros((*predictions["value"].shape, 1))
