"""Outer objectives: what the agent that the updates led to is judged by on a fresh trajectory, for each kind of agent.

Source: Xu et al. 2020, Eq. 9 (prediction), section 3.4 (value-based), Eq. 11 and section 5.1 (actor-critic, V-trace).
The return G(τ′) is a constant here: the gradient is that of the canonical update.
"""

import jax.numpy as jnp

from agents.impala import actor_critic_loss, vtrace_targets
from agents.q_learning import epsilon_greedy_policy, expected_values, q_loss
from agents.td import vtrace
from agents.types import Array, Predictions, Trajectory


def prediction(predictions: Predictions, trajectory: Trajectory, discount: float, lambda_: float) -> Array:
    """(G − v(S))², [T, B], with the λ-return; λ = 1 is TD(1)."""
    values = predictions["value"]
    returns, _ = vtrace(trajectory, values, jnp.ones_like(values[1:]), discount, lambda_)
    return jnp.square(returns - values[:-1])


def value_based(
    predictions: Predictions, trajectory: Trajectory, discount: float, lambda_: float, epsilon: float
) -> Array:
    """½ (G − q(S, A))², [T, B]: Expected Sarsa(λ) under the ε-greedy policy."""
    values = expected_values(predictions, epsilon_greedy_policy(predictions, epsilon))
    returns, _ = vtrace(trajectory, values, jnp.ones_like(values[1:]), discount, lambda_)
    return q_loss(returns, predictions, trajectory)


def actor_critic(
    predictions: Predictions,
    trajectory: Trajectory,
    discount: float,
    lambda_: float,
    value_cost: float,
    entropy_cost: float,
    temperature: float,
) -> Array:
    """The V-trace actor-critic loss, [T, B], of the policy with its logits divided by the temperature."""
    targets = vtrace_targets(predictions, trajectory, discount, lambda_, temperature)
    return actor_critic_loss(targets, predictions, trajectory, value_cost, entropy_cost, temperature)
