"""The adapter to navix's environments: MiniGrid's grid worlds as pure functions."""

import functools
from typing import Any

import jax.numpy as jnp

from agents.environments.extras import import_extra
from toy_envs.base import Array, Environment

LARGEST = (10, 5, 3)  # of MiniGrid's kinds of objects, colours and states


class NavixEnvironment(Environment[Any]):
    """An environment of navix, of which all is seen; the state is navix's `Timestep`.

    Observations are [H, W, 3] float32: kind, colour and state of what is at a place, each in [0, 1]; navix's numbers
    beyond MiniGrid's largest count as that. An end by `max_steps` is a truncation, unless the episode terminates in
    that very step.

    Raises:
      ImportError: if navix is not installed.
    """

    def __init__(self, env_id: str, max_steps: int = 100):
        navix = import_extra("navix")
        self._env = navix.make(env_id, max_steps=max_steps, observation_fn=navix.observations.symbolic)
        self.observation_shape = tuple(self._env.observation_space.shape)
        self.num_actions = len(self._env.action_set)

    def initial_state(self, key: Array) -> Any:
        return self._without_pictures(self._env.reset(key))

    def restart(self, state: Any) -> Any:
        return self.initial_state(state.state.key)

    def transition(self, state: Any, action: Array):
        new = self._without_pictures(self._env._step(state, jnp.asarray(action, state.action.dtype)))
        return new, jnp.float32(new.reward), new.is_termination(), new.is_truncation()

    def observe(self, state: Any) -> Array:
        return jnp.minimum(state.observation / jnp.array(LARGEST, jnp.float32), 1.0)

    def _without_pictures(self, state: Any) -> Any:
        """Leave out what navix draws with."""
        return state.replace(state=state.state.replace(cache=None))


@functools.cache
def make_navix(env_id: str) -> NavixEnvironment:
    """Make an environment, the same one for the same id: populations compile one program for it."""
    return NavixEnvironment(env_id)


def navix_ids() -> list[str]:
    """Return the ids that navix knows; an ImportError says where it is missing."""
    return list(import_extra("navix").registry())
