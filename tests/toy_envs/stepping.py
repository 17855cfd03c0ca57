"""Stepping a pure environment as actors do."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from toy_envs.base import Array, Environment, TimeStep, step_batch


def run(environment: Environment, state: Any, actions: Array) -> tuple[Any, TimeStep, Any]:
    """Take actions, [T] or [T, B]: the last state, the time steps [T, ...], and the state after each."""
    step = environment.step if actions.ndim == 1 else functools.partial(step_batch, environment)

    def body(carry, action):
        state, shown = step(carry[0], action, carry[1])
        return (state, shown.truncated), (shown, state)

    (state, _), (steps, states) = jax.lax.scan(body, (state, jnp.zeros(actions.shape[1:], bool)), jnp.asarray(actions))
    return state, steps, states
