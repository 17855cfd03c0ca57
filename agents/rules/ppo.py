"""PPO as a hand-designed rule: the clipped objective, on targets and advantages that are made once for a trajectory.

How often its steps are used is a setting of the agent: `epochs` and `minibatches` of
`meta.updates.lifetime.LifetimeConfig`.
"""

import dataclasses
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


class PPOTargets(NamedTuple):
    value: Array  # the λ-return, [T, B]
    advantage: Array  # [T, B]
    old_value: Array  # v(S) when the targets were made, [T, B]
    log_mu: Array  # log μ(A|S) of the policy that acted, [T, B]


def ppo(config: PPOConfig) -> UpdateRule:
    """Proximal policy optimisation. Source: Schulman et al. 2017, Eq. 7 and 9, with generalised advantages (Eq. 11).

    The loss of the value, its clipping and normalised advantages are those of Huang et al. 2022 (The 37 implementation
    details of PPO).
    """

    def apply(meta_params, rule_state, trajectory, predictions, target_predictions):
        values = jax.lax.stop_gradient(predictions["value"])
        targets = lambda_returns(trajectory, values, config.discount, config.lambda_)
        log_mu = log_probability(trajectory.behaviour_logits, trajectory.action)
        return PPOTargets(*targets, values[:-1], log_mu), rule_state

    def loss(targets: PPOTargets, predictions: Predictions, trajectory: Trajectory) -> Array:
        advantage, value = targets.advantage, predictions["value"][:-1]
        if config.is_advantage_normalised:
            mean = masked_reduce(advantage, trajectory.valid, "mean")
            variance = masked_reduce(jnp.square(advantage - mean), trajectory.valid, "mean")
            advantage = (advantage - mean) / (jnp.sqrt(variance) + 1e-8)
        log_pi = jax.nn.log_softmax(predictions["policy"][:-1])
        ratio = jnp.exp(rlax.batched_index(log_pi, trajectory.action) - targets.log_mu)
        clipped = jnp.clip(ratio, 1 - config.clip, 1 + config.clip)
        policy_loss = -jnp.minimum(ratio * advantage, clipped * advantage)
        value_loss = jnp.square(targets.value - value)
        if config.is_value_clipped:
            near = targets.old_value + jnp.clip(value - targets.old_value, -config.clip, config.clip)
            value_loss = jnp.maximum(value_loss, jnp.square(targets.value - near))
        return policy_loss + config.value_cost * 0.5 * value_loss - config.entropy_cost * entropy(log_pi)

    return actor_critic(apply, loss, config)
