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
from agents.settings import CountOrZero, Fraction, NotNegative, Settings
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
class LambdaConfig(A2CConfig):
    """Actor-critics on λ-returns.

    Attributes:
      lambda_: λ, from 0 to 1.
    """

    lambda_: Fraction = 1.0


@dataclasses.dataclass
class ImpalaConfig(LambdaConfig):
    """IMPALA: the actor-critic loss on V-trace's targets.

    Attributes:
      entropy_end: Weight of the entropy that `entropy_cost` goes to in a line, at least 0.
      entropy_updates: Updates after which the weight of the entropy is `entropy_end`; 0 for one that stays.
    """

    entropy_end: NotNegative = 0.0
    entropy_updates: CountOrZero = 0

    def validate(self) -> None:
        super().validate()
        if self.entropy_end and not self.entropy_updates:
            raise ValueError(f"entropy_end is {self.entropy_end}, expected 0: entropy_updates is 0")


class ActorCriticTargets(NamedTuple):
    value: Array  # the target of v(S), [T, B]
    advantage: Array  # the weight of ∇ log π(A|S), [T, B]


class ScheduledTargets(NamedTuple):
    """Targets, and the weight of the entropy, which changes from update to update."""

    own: ActorCriticTargets
    entropy_cost: Array  # [T, B]


def actor_critic_spec(num_actions: int) -> TargetSpec:
    return {"policy": PredictionSpec((num_actions,)), "value": PredictionSpec()}


def actor_critic_loss(
    targets: ActorCriticTargets,
    predictions: Predictions,
    trajectory: Trajectory,
    value_cost: float | Array,
    entropy_cost: float | Array,
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

    rule = actor_critic(apply, _loss(config), config)
    return _with_schedule(rule, config) if config.entropy_updates else rule


def _with_schedule(rule: UpdateRule, config: ImpalaConfig) -> UpdateRule:
    """Let the weight of the entropy go from one number to another in a line; the rule state counts updates."""

    def apply(meta_params, num_updates, trajectory, predictions, target_predictions):
        own, _ = rule.apply(meta_params, (), trajectory, predictions, target_predictions)
        share = jnp.minimum(1.0, num_updates / config.entropy_updates)
        cost = config.entropy_cost + share * (config.entropy_end - config.entropy_cost)
        return ScheduledTargets(own, jnp.broadcast_to(cost, own.value.shape)), num_updates + 1

    def loss(targets: ScheduledTargets, predictions: Predictions, trajectory: Trajectory) -> Array:
        return actor_critic_loss(targets.own, predictions, trajectory, config.value_cost, targets.entropy_cost)

    return rule._replace(apply=apply, loss=loss, init=lambda: jnp.zeros((), jnp.int32))


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
