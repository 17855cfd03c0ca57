"""n-step Q-learning as a hand-designed rule."""

import dataclasses

import jax.numpy as jnp

from agents.rule import UpdateRule
from agents.rules.action_values import epsilon_greedy_logits, squared_error
from agents.rules.returns import lambda_returns
from agents.settings import Fraction, Settings
from agents.types import PredictionSpec


@dataclasses.dataclass
class QLearningConfig(Settings):
    """n-step Q-learning.

    Attributes:
      discount: γ, from 0 to 1.
      lambda_: λ of the returns, from 0 to 1; 0 is one-step Q-learning.
      epsilon: Share of random actions of the ε-greedy policy, from 0 to 1.
    """

    discount: Fraction = 0.99
    lambda_: Fraction = 1.0
    epsilon: Fraction = 0.1


def q_learning(config: QLearningConfig) -> UpdateRule:
    """Q(λ) of Peng and Williams: λ-returns of maxₐ q(s, a) within the trajectory. The loss is a sum."""

    def apply(meta_params, rule_state, trajectory, predictions, target_predictions):
        values = jnp.max(predictions["q"], axis=-1)
        return lambda_returns(trajectory, values, config.discount, config.lambda_)[0], rule_state

    return UpdateRule(
        spec=lambda num_actions: {"q": PredictionSpec(is_per_action=True)},
        apply=apply,
        loss=lambda targets, predictions, trajectory: squared_error(targets, predictions["q"], trajectory),
        policy=lambda predictions: epsilon_greedy_logits(predictions["q"], config.epsilon),
    )
