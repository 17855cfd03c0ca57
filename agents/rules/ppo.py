"""PPO and DPO as hand-designed rules: proximal objectives, on targets that are made once for a trajectory.

How often its steps are used is a setting of the agent: `epochs` and `minibatches` of
`meta.updates.lifetime.LifetimeConfig`.
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from agents.lazy import rlax
from agents.rule import Reduction, UpdateRule, masked_reduce
from agents.rules.categorical import entropy, log_probability
from agents.rules.impala import LambdaConfig, actor_critic
from agents.rules.returns import lambda_returns
from agents.settings import Fraction, Positive
from agents.types import Array, Predictions, Trajectory


@dataclasses.dataclass
class PPOConfig(LambdaConfig):
    """PPO (Schulman et al. 2017).

    Attributes:
      lambda_: λ of the advantages, from 0 to 1 (Schulman et al. 2017, Table 3).
      clip: The most that π / μ differs from 1, and a clipped value from that before, positive (Schulman et
        al. 2017, section 6.1).
      is_value_clipped: Whether the value is clipped (Huang et al. 2022).
      is_advantage_normalised: Whether advantages are normalised, over the steps that an update takes
        (Huang et al. 2022).
    """

    lambda_: Fraction = 0.95
    reduction: Reduction = "mean"
    clip: Positive = 0.2
    is_value_clipped: bool = True
    is_advantage_normalised: bool = True


@dataclasses.dataclass
class DPOConfig(PPOConfig):
    """DPO: PPO with a drift that was discovered in the place of the clipped ratio; `clip` is of values alone.

    Attributes:
      drift_alpha: α of the drift of positive advantages, positive (Lu et al. 2022, section 5).
      drift_beta: β of that of negative ones, positive (Lu et al. 2022, section 5).
    """

    drift_alpha: Positive = 2.0
    drift_beta: Positive = 0.6


class PPOTargets(NamedTuple):
    value: Array  # the λ-return, [T, B]
    advantage: Array  # [T, B]
    old_value: Array  # v(S) when the targets were made, [T, B]
    log_mu: Array  # log μ(A|S) of the policy that acted, [T, B]


class Proximal(NamedTuple):
    """What proximal objectives are made of, [T, B] each."""

    ratio: Array  # r = π / μ of the taken action
    log_ratio: Array
    advantage: Array  # normalised over the steps that an update takes, where the settings say so
    value_loss: Array  # without its weight
    entropy: Array  # of π


def ppo_targets(
    config: PPOConfig, trajectory: Trajectory, predictions: Predictions, lambda_: float | Array | None = None
) -> PPOTargets:
    """Return λ-returns and advantages, by the λ of the settings or by a given one, to which alone gradients flow."""
    values = jax.lax.stop_gradient(predictions["value"])
    by = config.lambda_ if lambda_ is None else lambda_
    targets = lambda_returns(trajectory, values, config.discount, by, is_constant=False)
    return PPOTargets(*targets, values[:-1], log_probability(trajectory.behaviour_logits, trajectory.action))


def proximal(config: PPOConfig, targets: PPOTargets, predictions: Predictions, trajectory: Trajectory) -> Proximal:
    """Compute the parts of a proximal objective. Source, but for the ratio: Huang et al. 2022."""
    advantage, value = targets.advantage, predictions["value"][:-1]
    if config.is_advantage_normalised:
        mean = masked_reduce(advantage, trajectory.valid, "mean")
        variance = masked_reduce(jnp.square(advantage - mean), trajectory.valid, "mean")
        advantage = (advantage - mean) / (jnp.sqrt(variance) + 1e-8)
    log_pi = jax.nn.log_softmax(predictions["policy"][:-1])
    log_ratio = rlax.batched_index(log_pi, trajectory.action) - targets.log_mu
    value_loss = jnp.square(targets.value - value)
    if config.is_value_clipped:
        near = targets.old_value + jnp.clip(value - targets.old_value, -config.clip, config.clip)
        value_loss = jnp.maximum(value_loss, jnp.square(targets.value - near))
    return Proximal(jnp.exp(log_ratio), log_ratio, advantage, 0.5 * value_loss, entropy(log_pi))


def clipped_loss(ratio: Array, advantage: Array, low: float | Array, high: float | Array) -> Array:
    """−min(r A, clip(r, low, high) A). Source: Schulman et al. 2017, Eq. 7."""
    return -jnp.minimum(ratio * advantage, jnp.clip(ratio, low, high) * advantage)


def dpo_drift(ratio: Array, log_ratio: Array, advantage: Array, alpha: float, beta: float) -> Array:
    """The drift that DPO takes from r A. Source: Lu et al. 2022, section 5.

    A ≥ 0: relu((r − 1) A − α tanh((r − 1) A / α)); A < 0: relu(log(r) A − β tanh(log(r) A / β)).
    """
    of = jnp.where(advantage >= 0, ratio - 1, log_ratio) * advantage
    scale = jnp.where(advantage >= 0, alpha, beta)
    return jax.nn.relu(of - scale * jnp.tanh(of / scale))


def ppo(config: PPOConfig) -> UpdateRule:
    """Proximal policy optimisation. Source: Schulman et al. 2017, Eq. 7 and 9, with generalised advantages (Eq. 11).

    The loss of the value, its clipping and normalised advantages are those of Huang et al. 2022 (The 37 implementation
    details of PPO).
    """
    return _hand_designed(config, lambda of: clipped_loss(of.ratio, of.advantage, 1 - config.clip, 1 + config.clip))


def dpo(config: DPOConfig) -> UpdateRule:
    """Discovered policy optimisation: −(r A − drift(r, A)). Source: Lu et al. 2022, section 5."""

    def policy_loss(of: Proximal) -> Array:
        drift = dpo_drift(of.ratio, of.log_ratio, of.advantage, config.drift_alpha, config.drift_beta)
        return drift - of.ratio * of.advantage

    return _hand_designed(config, policy_loss)


def _hand_designed(config: PPOConfig, policy_loss: Callable[[Proximal], Array]) -> UpdateRule:
    def apply(meta_params, rule_state, trajectory, predictions, target_predictions):
        return ppo_targets(config, trajectory, predictions), rule_state

    def loss(targets: PPOTargets, predictions: Predictions, trajectory: Trajectory) -> Array:
        of = proximal(config, targets, predictions, trajectory)
        losses = policy_loss(of)
        return losses + config.value_cost * of.value_loss - config.entropy_cost * of.entropy

    return actor_critic(apply, loss, config)
