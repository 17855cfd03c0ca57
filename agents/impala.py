"""The actor-critic loss, shared with the outer objective, and the hand-made rules that use it: IMPALA and A2C."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import rlax

from agents.q_learning import taken
from agents.rule import UpdateRule
from agents.td import vtrace
from agents.types import Array, Predictions, PredictionSpec, TargetSpec, Trajectory


class ActorCriticTargets(NamedTuple):
    value: Array  # what v(S) is moved to, [T, B]
    advantage: Array  # what weights ∇ log π(A|S), [T, B]


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
    """−advantage · log π(A|S) + value_cost (G − v(S))² − entropy_cost H(π(·|S)), [T, B].

    Source: Xu et al. 2020, Eq. 10 and 11 as losses. π is the softmax of logits / temperature. The advantage is taken as
    it comes: whoever makes it decides what of it is a constant.
    """
    log_pi = jax.nn.log_softmax(predictions["policy"][:-1] / temperature)
    log_pi_a = rlax.batched_index(log_pi, trajectory.action)
    value_error = targets.value - predictions["value"][:-1]
    return -targets.advantage * log_pi_a + value_cost * jnp.square(value_error) - entropy_cost * entropy(log_pi)


def entropy(logits: Array) -> Array:
    """H of a categorical distribution, [..., N] -> [...]."""
    log_p = jax.nn.log_softmax(logits)
    return -jnp.sum(jnp.exp(log_p) * log_p, axis=-1)


def log_probability(logits: Array, trajectory: Trajectory) -> Array:
    """log π(A|S) of the taken actions: logits [T + 1, B, A] -> [T, B]."""
    return taken(jax.nn.log_softmax(logits), trajectory)


def behaviour_log_probability(trajectory: Trajectory) -> Array:
    """log μ(A|S) of the taken actions, [T, B]."""
    logits = jax.nn.log_softmax(trajectory.behaviour_logits)
    return rlax.batched_index(logits, trajectory.action)


def vtrace_targets(
    predictions: Predictions, trajectory: Trajectory, discount: float, lambda_: float, temperature: float = 1.0
) -> ActorCriticTargets:
    """V-trace targets and advantages of the current policy, both clips 1, without gradient."""
    log_pi = log_probability(predictions["policy"] / temperature, trajectory)
    rho = jnp.exp(log_pi - behaviour_log_probability(trajectory))
    return ActorCriticTargets(*vtrace(trajectory, predictions["value"], rho, discount, lambda_))


def impala(discount: float, lambda_: float, value_cost: float, entropy_cost: float, reduction: str) -> UpdateRule:
    """IMPALA: V-trace actor-critic. Source: Espeholt et al. 2018, section 4.2."""

    def apply(meta_params, rule_state, trajectory, predictions, target_predictions):
        return vtrace_targets(predictions, trajectory, discount, lambda_), rule_state

    return _actor_critic(apply, value_cost, entropy_cost, reduction)


def a2c(discount: float, value_cost: float, entropy_cost: float, reduction: str, is_bootstrapped: bool) -> UpdateRule:
    """Advantage actor-critic on returns within the trajectory, which end in v of its last observation, or in 0.

    Source: Mnih et al. 2016, Algorithm S3 (n is the trajectory's length).
    """

    def apply(meta_params, rule_state, trajectory, predictions, target_predictions):
        values = predictions["value"] if is_bootstrapped else predictions["value"].at[-1].set(0.0)
        targets = vtrace(trajectory, values, jnp.ones_like(values[1:]), discount, lambda_=1.0)
        return ActorCriticTargets(*targets), rule_state

    return _actor_critic(apply, value_cost, entropy_cost, reduction)


def _actor_critic(apply, value_cost: float, entropy_cost: float, reduction: str) -> UpdateRule:
    def loss(targets, predictions, trajectory):
        return actor_critic_loss(targets, predictions, trajectory, value_cost, entropy_cost)

    return UpdateRule(
        spec=actor_critic_spec,
        init_meta_params=lambda key, num_actions: {},
        init=lambda: (),
        apply=apply,
        loss=loss,
        policy=lambda predictions: predictions["policy"],
        reduction=reduction,
    )
