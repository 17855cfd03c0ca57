"""The adapter to gymnax's environments, which are pure functions as the toys are."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from agents.environments.extras import import_extra, strongly_typed
from agents.environments.host import check_supported
from toy_envs.base import Array, Environment


class GymnaxState(NamedTuple):
    key: Array
    state: Any  # gymnax's
    observation: Array


class GymnaxEnvironment(Environment[GymnaxState]):
    """An environment of gymnax with its default parameters. Observations become float32.

    An end by gymnax's `max_steps_in_episode` is a truncation, unless the episode terminates in that very step.

    Raises:
      ImportError: if gymnax is not installed.
      ValueError: if the observation is not a single array, or actions are not discrete.
    """

    def __init__(self, env_id: str):
        gymnax = import_extra("gymnax")
        self._env, self._params = gymnax.make(env_id)
        spaces = gymnax.environments.spaces
        observation, action = self._env.observation_space(self._params), self._env.action_space(self._params)
        is_single_array, is_discrete = isinstance(observation, spaces.Box), isinstance(action, spaces.Discrete)
        kinds = (type(space).__name__ for space in (observation, action))
        check_supported(f"gymnax/{env_id}", is_single_array, is_discrete, *kinds)
        self.observation_shape, self.num_actions = tuple(observation.shape), int(action.n)

    def initial_state(self, key: Array) -> GymnaxState:
        key, reset_key = jax.random.split(key)
        observation, state = self._env.reset_env(reset_key, self._params)
        return GymnaxState(key, jax.tree.map(strongly_typed, state), observation.astype(jnp.float32))

    def restart(self, state: GymnaxState) -> GymnaxState:
        return self.initial_state(state.key)

    def transition(self, state: GymnaxState, action: Array):
        key, step_key = jax.random.split(state.key)
        observation, new, reward, terminated, _ = self._env.step_env(step_key, state.state, action, self._params)
        truncated = self._env.is_truncated(new, self._params)
        new = jax.tree.map(lambda x, before: x.astype(before.dtype), new, state.state)
        next_state = GymnaxState(key, new, observation.astype(jnp.float32))
        return next_state, jnp.float32(reward), terminated, truncated

    def observe(self, state: GymnaxState) -> Array:
        return state.observation


@functools.cache
def make_gymnax(env_id: str) -> GymnaxEnvironment:
    """Make an environment, the same one for the same id: populations compile one program for it."""
    return GymnaxEnvironment(env_id)


def gymnax_ids() -> list[str]:
    """Return the ids that gymnax knows; an ImportError says where it is missing."""
    return list(import_extra("gymnax").registered_envs)
