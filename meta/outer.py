"""Outer objectives: what the agent that the updates led to is judged by on a fresh trajectory, for each kind of agent.

They may have a state (`Outer`): a meta-value function, and a moving average of advantages.

Source: Xu et al. 2020, Eq. 9 (prediction), section 3.4 (value-based), Eq. 11 and section 5.1 (actor-critic, V-trace).
The return G(τ′) is a constant here: the gradient is that of the canonical update.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from agents.impala import actor_critic_loss, entropy, vtrace_targets
from agents.networks import Agent
from agents.q_learning import epsilon_greedy_policy, expected_values, q_loss, taken_vectors
from agents.td import vtrace
from agents.types import Array, Params, Predictions, Trajectory
from meta.disco_inputs import MovingAverage, initial_average, normalise, update_average


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


class Outer(NamedTuple):
    """An outer objective, with a state where it has something of its own to learn.

    Attributes:
      init: key, prepared observation [B, ...] -> state.
      loss: state, predictions, validation trajectory -> [T, B], new state. Gradients flow to the predictions.
    """

    init: Callable[[Array, Array], Any]
    loss: Callable[[Any, Predictions, Trajectory], tuple[Array, Any]]


class ValueState(NamedTuple):
    """The meta-value function, and the moving average that advantages are normalised by."""

    params: Params
    opt_state: optax.OptState
    advantage: MovingAverage


def stateless(loss: Callable[[Predictions, Trajectory], Array]) -> Outer:
    """An outer objective that is a function of predictions and trajectory."""
    return Outer(
        lambda key, observation: (), lambda state, predictions, trajectory: (loss(predictions, trajectory), state)
    )


def normalised_actor_critic(
    discount: float, lambda_: float, value_cost: float, entropy_cost: float, temperature: float
) -> Outer:
    """`actor_critic` with advantages normalised by their moving mean and deviation over the lifetime."""

    def loss(average: MovingAverage, predictions: Predictions, trajectory: Trajectory):
        targets = vtrace_targets(predictions, trajectory, discount, lambda_, temperature)
        average = update_average(average, targets.advantage, trajectory.valid)
        targets = targets._replace(advantage=normalise(average, targets.advantage))
        return actor_critic_loss(targets, predictions, trajectory, value_cost, entropy_cost, temperature), average

    return Outer(lambda key, observation: initial_average(), loss)


def with_value_function(
    value_agent: Agent,
    optimizer: optax.GradientTransformation,
    discount: float,
    lambda_: float,
    entropy_cost: float,
    prediction_entropy_cost: float,
    is_advantage_normalised: bool,
) -> Outer:
    """The outer objective of an agent that predicts no values: a meta-value function learns them beside it.

    −advantage · log π(A|S) − entropy_cost H(π(·|S)) − prediction_entropy_cost (H(y) + H(z_A)), where the agent has y
    and z. The value function moves to V-trace targets on the same trajectory, after it was used.
    Source: Oh et al. 2025, Methods, "Meta-optimization".
    """

    def init(key: Array, observation: Array) -> ValueState:
        params = value_agent.init(key, observation)
        return ValueState(params, optimizer.init(params), initial_average())

    def loss(state: ValueState, predictions: Predictions, trajectory: Trajectory):
        values, pull = jax.vjp(lambda params: value_agent.unroll(params, trajectory)["value"], state.params)
        known = {"policy": jax.lax.stop_gradient(predictions["policy"]), "value": values}
        targets = vtrace_targets(known, trajectory, discount, lambda_)
        average = update_average(state.advantage, targets.advantage, trajectory.valid)
        error = jnp.where(trajectory.valid, values[:-1] - targets.value, 0.0) / jnp.maximum(1, trajectory.valid.sum())
        (grads,) = pull(jnp.concatenate([error, jnp.zeros_like(error[:1])]))
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        new_state = ValueState(optax.apply_updates(state.params, updates), opt_state, average)

        if is_advantage_normalised:
            targets = targets._replace(advantage=normalise(average, targets.advantage))
        predictions = {**predictions, "value": jax.lax.stop_gradient(values)}
        losses = actor_critic_loss(targets, predictions, trajectory, 0.0, entropy_cost)
        if "y" in predictions:
            entropies = entropy(predictions["y"][:-1]) + entropy(taken_vectors(predictions["z"], trajectory))
            losses = losses - prediction_entropy_cost * entropies
        return losses, new_state

    return Outer(init, loss)
