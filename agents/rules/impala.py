"""The actor-critic loss, shared with the outer objective, and the hand-designed rules that use it: IMPALA and A2C."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from agents.lazy import rlax
from agents.rule import Reduction, UpdateRule
from agents.rules.categorical import entropy
from agents.rules.returns import importance_ratios, lambda_returns, vtrace
from agents.settings import Fraction, NotNegative, Settings
from agents.types import Array, Predictions, PredictionSpec, TargetSpec, Trajectory


@dataclasses.dataclass
class A2CConfig(Settings):
    """A2C: the actor-critic loss on returns within the trajectory.

    Attributes:
      discount: γ, from 0 to 1.
      value_cost: Weight of the value's loss, at least 0 (Xu et al. 2020, Table 1).
      entropy_cost: Weight of the policy's entropy, at least 0 (Xu et al. 2020, Table 1).
      reduction: How the losses of steps are put together: 'sum' or 'mean'.
    """

    discount: Fraction = 0.99
    value_cost: NotNegative = 0.5
    entropy_cost: NotNegative = 0.01
    reduction: Reduction = "sum"


@dataclasses.dataclass
class ImpalaConfig(A2CConfig):
    """IMPALA: the actor-critic loss on V-trace's targets.

    Attributes:
      lambda_: λ of V-trace, from 0 to 1.
    """

    lambda_: Fraction = 1.0


class ActorCriticTargets(NamedTuple):
    value: Array  # the target of v(S), [T, B]
    advantage: Array  # the weight of ∇ log π(A|S), [T, B]


def actor_critic_spec(num_actions: int) -> TargetSpec:
    return {"policy": PredictionSpec((num_actions,)), "value": PredictionSpec()}


def actor_critic_loss(
    targets: ActorCriticTargets,
    predictions: Predictions,
    trajectory: Trajectory,
    value_cost: float,
    entropy_cost: float,
    temperature: float = 1.0,
) -> Array:
    """−advantage · log π(A|S) + value_cost · ½ (G − v(S))² − entropy_cost H(π(·|S)), [T, B].

    Source: Xu et al. 2020, Eq. 10 and 11 as losses, and appendix C.4 and C.5. π is the softmax of logits /
    temperature. No gradient of the advantage is stopped here: its maker decides which parts of it are constants.
    """
    log_pi = jax.nn.log_softmax(predictions["policy"][:-1] / temperature)
    log_pi_a = rlax.batched_index(log_pi, trajectory.action)
    value_error = targets.value - predictions["value"][:-1]
    return -targets.advantage * log_pi_a + 0.5 * value_cost * jnp.square(value_error) - entropy_cost * entropy(log_pi)


def vtrace_targets(
    predictions: Predictions, trajectory: Trajectory, discount: float, lambda_: float, temperature: float = 1.0
) -> ActorCriticTargets:
    """V-trace targets and advantages of the current policy, both clips 1, without gradient."""
    rho = importance_ratios(predictions["policy"] / temperature, trajectory)
    return ActorCriticTargets(*vtrace(trajectory, predictions["value"], rho, discount, lambda_))


def impala(config: ImpalaConfig) -> UpdateRule:
    """IMPALA: V-trace actor-critic. Source: Espeholt et al. 2018, section 4.2."""

    def apply(meta_params, rule_state, trajectory, predictions, target_predictions):
        return vtrace_targets(predictions, trajectory, config.discount, config.lambda_), rule_state

    return actor_critic(apply, _loss(config), config)


def a2c(config: A2CConfig, is_bootstrapped: bool = True) -> UpdateRule:
    """Advantage actor-critic on returns within the trajectory, which end in v of its last observation, or in 0.

    Source: Mnih et al. 2016, Algorithm S3 (n is the trajectory's length).
    """

    def apply(meta_params, rule_state, trajectory, predictions, target_predictions):
        values = predictions["value"] if is_bootstrapped else predictions["value"].at[-1].set(0.0)
        targets = lambda_returns(trajectory, values, config.discount, lambda_=1.0)
        return ActorCriticTargets(*targets), rule_state

    return actor_critic(apply, _loss(config), config)


def _loss(config: A2CConfig) -> Callable[..., Array]:
    return functools.partial(actor_critic_loss, value_cost=config.value_cost, entropy_cost=config.entropy_cost)


def actor_critic(apply: Callable[..., Any], loss: Callable[..., Array], config: A2CConfig) -> UpdateRule:
    """Make a rule without a state, whose agents predict a policy and v(S)."""
    return UpdateRule(
        spec=actor_critic_spec,
        apply=apply,
        loss=loss,
        policy=lambda predictions: predictions["policy"],
        reduction=config.reduction,
    )
