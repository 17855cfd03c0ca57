"""Exact metrics of the toys: expected returns on Catch, errors of values on the random walk."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from agents.types import Array, Predictions
from frodo.learner import Learner
from frodo.online import Evaluate, OnlineState
from toy_envs.base import Environment
from toy_envs.catch import Catch
from toy_envs.random_walk import RandomWalk


def iteration_metrics(environment: Environment, learner: Learner) -> Evaluate:
    """Make the function that measures after every iteration, from the states before and after it, inside the program.

    Random walk: `error`, the mean over states of the squared error of v against the true values of the current phase;
    `spike`, the same in the first iteration after the left reward changed, else nan.
    """
    if not isinstance(environment, RandomWalk) or "value" not in learner.setup.rule.spec(environment.num_actions):
        return lambda before, after: {}

    def metrics(before: OnlineState, after: OnlineState) -> dict[str, Any]:
        last_steps = [jnp.maximum(0, state.actor.env_state.num_steps[0] - 1) for state in (before, after)]
        is_changed = environment.left_reward(last_steps[0]) != environment.left_reward(last_steps[1])
        values = _predictions(learner, after, jnp.eye(environment.num_states))["value"]
        error = jnp.mean(jnp.square(values - environment.true_values(last_steps[1])))
        return {"error": error, "spike": jnp.where(is_changed, error, jnp.nan)}

    return metrics


def log_metrics(environment: Environment, learner: Learner) -> Callable[[OnlineState], dict[str, Any]]:
    """Make the function that measures at log points.

    Catch: `sampled_return` and `greedy_return`, the exact expected returns of the policy as it acts, and of its most
    probable actions.
    """
    if not isinstance(environment, Catch):
        return lambda state: {}

    def metrics(state: OnlineState) -> dict[str, Any]:
        observations = environment.all_observations()
        grid = observations.shape[:3]
        predictions = _predictions(learner, state, observations.reshape(-1, *environment.observation_shape))
        logits = learner.setup.rule.policy(predictions)
        probabilities = jax.nn.softmax(logits).reshape(*grid, -1)
        greedy = jax.nn.one_hot(logits.argmax(-1), environment.num_actions).reshape(*grid, -1)
        return {
            "sampled_return": environment.expected_return(probabilities),
            "greedy_return": environment.expected_return(greedy),
        }

    return metrics


def _predictions(learner: Learner, state: OnlineState, observations: Array) -> Predictions:
    """Return the agent's predictions of observations [B, ...], each the first of an episode."""
    agent = learner.setup.agent
    batch = agent.prepare(observations)
    core_state = agent.initial_state(len(batch))
    return agent.step(state.learner.params, batch, jnp.ones(len(batch), bool), core_state)[0]
