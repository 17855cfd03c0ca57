"""Muesli as a hand-designed rule: policy targets from clipped advantages (CMPO), predicted ahead by a model.

Source: Hessel et al. 2021 (Muesli: combining improvements in policy optimization), as Bauer et al. 2023 (AdA), section
2.4, use it. The prior is the slowly moving copy of the agent, which also acts. What the papers leave open stands in
docs/papers/adaptation.md.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from agents.rule import UpdateRule, masked_means
from agents.rules.action_values import expected_values
from agents.rules.categorical import bin_shares, entropy, kl_divergence, log_probability, to_scalars, two_hot_loss
from agents.rules.moving_average import MovingAverage, initial_average, root_mean_square, update_average
from agents.rules.returns import importance_ratios, retrace
from agents.settings import Count, CountOrNone, Fraction, NotNegative, Settings
from agents.types import Array, Predictions, PredictionSpec, TargetSpec, Trajectory

MAX_VALUE = 300  # that of Hessel et al. 2021


@dataclasses.dataclass
class MuesliConfig(Settings):
    """Muesli; the defaults are those that public reimplementations ascribe to Hessel et al. 2021.

    Attributes:
      discount: γ, from 0 to 1.
      lambda_: λ of Retrace, from 0 to 1.
      clip: c, to which normalised advantages are clipped for policy targets, at least 0.
      model_steps: K, the steps ahead that the model is trained, at least 1, which q needs.
      max_value: Bins of transformed rewards and values are the whole numbers from -max_value to it, at least 1; none
        for as many as fit the environment's returns (`frodo.settings.value_bins`), and 300 where no environment is
        known.
      cmpo_cost: Weight of KL(π_CMPO ‖ π), at least 0.
      model_policy_cost: Weight of KL(π_CMPO ‖ π) of the model's policies, at least 0.
      value_cost: Weight of the losses of v and of the model's values, at least 0.
      reward_cost: Weight of the loss of the model's rewards, at least 0.
      target_decay: Decay of the slow copy that is the prior, and acts, in an update, from 0 to 1.
    """

    discount: Fraction = 0.995
    lambda_: Fraction = 0.95
    clip: NotNegative = 1.0
    model_steps: Count = 5
    max_value: CountOrNone = None
    cmpo_cost: NotNegative = 1.0
    model_policy_cost: NotNegative = 1.0
    value_cost: NotNegative = 0.25
    reward_cost: NotNegative = 1.0
    target_decay: Fraction = 0.9


class MuesliTargets(NamedTuple):
    """What step t is moved to; entry i of [T, B, K + 1] is of the state i steps later."""

    advantage: Array  # (G − v) / √var, [T, B]
    policy: Array  # logits of π_CMPO, [T, B, K + 1, A]
    value: Array  # G, from i = 1 on times the discount of the step before: 0 once the episode has terminated
    reward: Array  # of the step that the state i steps later takes, [T, B, K]
    is_reached: Array  # 1 where a valid step of the same episode was taken from that state, else 0, [T, B, K + 1]
    is_valued: Array  # as `is_reached`, and 1 in the state in which the episode has just terminated, [T, B, K + 1]


def muesli(config: MuesliConfig) -> UpdateRule:
    """Make the rule. Its losses are means over valid steps."""
    num_ahead, max_value = config.model_steps + 1, config.max_value or MAX_VALUE

    def spec(num_actions: int) -> TargetSpec:
        bins = (2 * max_value + 1,)
        return {
            "policy": PredictionSpec((num_actions,)),
            "value_bins": PredictionSpec(bins),
            "model_policy": PredictionSpec((num_actions,), is_per_action=True),  # in the next state
            "model_value": PredictionSpec(bins, is_per_action=True),  # in the next state
            "model_reward": PredictionSpec(bins, is_per_action=True),
        }

    def apply(meta_params, average: MovingAverage, trajectory, predictions, target_predictions):
        prior = jax.lax.stop_gradient(target_predictions)
        policy, value = prior["policy"], to_scalars(prior["value_bins"])
        q = to_scalars(prior["model_reward"]) + config.discount * to_scalars(prior["model_value"])
        rho, expected = importance_ratios(policy, trajectory), expected_values(q, policy)
        returns = retrace(trajectory, q, expected, rho, config.discount, config.lambda_)
        advantage = returns - value[:-1]
        average = update_average(average, advantage, trajectory.valid)
        scale = root_mean_square(average)
        cmpo = cmpo_logits(policy[:-1], (q - value[..., None])[:-1] / scale, config.clip)
        is_reached = reached(trajectory, num_ahead)
        before = jnp.ones_like(is_reached).at[..., 1:].set(ahead(trajectory.discount, num_ahead)[..., :-1])
        ended = (is_reached * ahead(trajectory.discount == 0, num_ahead))[..., :-1]
        targets = MuesliTargets(
            advantage=advantage / scale,
            policy=ahead(cmpo, num_ahead),
            value=is_reached * ahead(returns, num_ahead) * before,
            reward=ahead(trajectory.reward, config.model_steps),
            is_reached=is_reached,
            is_valued=is_reached.at[..., 1:].add(ended),
        )
        return targets, average

    def loss(targets: MuesliTargets, predictions: Predictions, trajectory: Trajectory) -> Array:
        policy, value, model_policy, model_value, model_reward = (predictions[name][:-1] for name in spec(1))
        ratio = jax.lax.stop_gradient(jnp.minimum(1.0, importance_ratios(predictions["policy"], trajectory)))
        policy_gradient = -ratio * targets.advantage * log_probability(policy, trajectory.action)
        cmpo = kl_divergence(targets.policy[:, :, 0], policy)
        model_cmpo = targets.is_reached[..., 1:] * kl_divergence(targets.policy[:, :, 1:], model_policy)
        values = jnp.concatenate([value[:, :, None], model_value], axis=2)
        value_loss = targets.is_valued * two_hot_loss(targets.value, values)
        reward_loss = targets.is_reached[..., :-1] * two_hot_loss(targets.reward, model_reward)
        over_steps = lambda x: jnp.sum(x, axis=-1)
        return (
            policy_gradient
            + config.cmpo_cost * cmpo
            + config.model_policy_cost * over_steps(model_cmpo)
            + config.value_cost * over_steps(value_loss)
            + config.reward_cost * over_steps(reward_loss)
        )

    def metrics(targets: MuesliTargets, predictions: Predictions, trajectory: Trajectory) -> dict[str, Array]:
        policy = predictions["policy"][:-1]
        found = {"entropy": entropy(policy), "cmpo": kl_divergence(targets.policy[:, :, 0], policy)}
        shares = bin_shares(targets.value[:, :, 0], trajectory.valid, 2 * max_value + 1)
        return masked_means(found, trajectory.valid) | {"value_bin_share": jnp.max(shares)}

    return UpdateRule(
        spec=spec,
        init=initial_average,
        apply=apply,
        loss=loss,
        policy=lambda predictions: predictions["policy"],
        metrics=metrics,
        target_decay=config.target_decay,
        reduction="mean",
        model_steps=config.model_steps,
        is_target_acting=True,
    )


def cmpo_logits(prior: Array, advantage: Array, clip: float) -> Array:
    """Logits of π_CMPO ∝ π_prior exp(clip(advantage, −c, c)): logits of the prior and advantages, [..., A]."""
    return prior + jnp.clip(advantage, -clip, clip)


def ahead(x: Array, num: int) -> Array:
    """Entry i is x of i steps later, 0 past the last step: [T, B, ...] -> [T, B, num, ...]."""
    padded = jnp.concatenate([x, jnp.zeros((num - 1, *x.shape[1:]), x.dtype)])
    return jnp.stack([padded[i : i + len(x)] for i in range(num)], axis=2)


def reached(trajectory: Trajectory, num: int) -> Array:
    """Whether i steps later a valid step of the same episode is taken in the trajectory, 1 or 0: [T, B, num]."""
    goes_on = jnp.cumprod(ahead(~trajectory.is_last, num), axis=2)[..., :-1]
    is_valid = ahead(trajectory.valid, num).astype(trajectory.reward.dtype)
    return is_valid.at[..., 1:].multiply(goes_on)
