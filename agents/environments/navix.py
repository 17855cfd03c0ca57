"""The adapter to navix's environments: MiniGrid's grid worlds as pure functions."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from agents.environments.extras import import_extra
from agents.environments.host import shown_dtype
from toy_envs.base import Array, Environment

LARGEST = (10, 5, 3)  # of MiniGrid's kinds of objects, colours and states


class NavixEnvironment(Environment[Any]):
    """An environment of navix; the state is navix's `Timestep`.

    Symbolic observations are [H, W, 3] float32: kind, colour and state of what is at a place, each in [0, 1]; navix's
    numbers beyond MiniGrid's largest count as that. Others stay as they are if they are uint8, else they become
    float32. An end by `max_steps` is a truncation, unless the episode terminates in that very step.

    Args:
      env: what `navix.make` returns.
    Raises:
      ImportError: if navix is not installed.
    """

    def __init__(self, env: Any):
        observations = import_extra("navix").observations
        self._env = env
        self._is_symbolic = env.observation_fn in (observations.symbolic, observations.symbolic_first_person)
        shown = jax.eval_shape(env.reset, jax.random.key(0)).observation
        self.observation_shape, self._dtype = tuple(shown.shape), shown_dtype(shown.dtype)
        self.num_actions = len(self._env.action_set)

    def initial_state(self, key: Array) -> Any:
        return self._without_pictures(self._env.reset(key))

    def restart(self, state: Any) -> Any:
        return self._without_pictures(self._env.reset(state.state.key, state.state.cache))

    def transition(self, state: Any, action: Array):
        new = self._without_pictures(self._env._step(state, jnp.asarray(action, state.action.dtype)))
        return new, jnp.float32(new.reward), new.is_termination(), new.is_truncation()

    def observe(self, state: Any) -> Array:
        if self._is_symbolic:
            return jnp.minimum(state.observation / jnp.array(LARGEST, jnp.float32), 1.0)
        return state.observation.astype(self._dtype)

    def _without_pictures(self, state: Any) -> Any:
        """Leave out what navix draws with, where it does not draw."""
        return state.replace(state=state.state.replace(cache=None)) if self._is_symbolic else state


@functools.cache
def make_navix(env_id: str) -> NavixEnvironment:
    """Make an environment that is seen whole, for 100 steps at most.

    It is the same one for the same id: populations compile one program for it.
    """
    navix = import_extra("navix")
    return NavixEnvironment(navix.make(env_id, max_steps=100, observation_fn=navix.observations.symbolic))


def navix_ids() -> list[str]:
    """Return the ids that navix knows; an ImportError says where it is missing."""
    return list(import_extra("navix").registry())
