"""The adapter to gymnax's environments, and craftax's of the same interface: pure functions, as the toys are."""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from agents.environments.bsuite import check_mnist
from agents.environments.extras import import_extra, strongly_typed
from agents.environments.host import check_supported, shown_dtype
from toy_envs.base import Array, Environment


class GymnaxState(NamedTuple):
    key: Array
    state: Any  # gymnax's
    observation: Array


class GymnaxEnvironment(Environment[GymnaxState]):
    """An environment of gymnax or craftax. Observations of uint8 stay as they are, others become float32.

    An end by gymnax's `max_steps_in_episode` or craftax's `max_timesteps` is a truncation, unless the episode
    terminates in that very step. Wrappers with a `_env`, as gymnax and PureJaxRL have them, do what they do, but that
    they reset nothing.

    Args:
      env: an environment of gymnax or craftax, or a wrapper of one.
      params: its parameters; its default ones if None.
      name: for error messages; by default the environment's.
    Raises:
      TypeError: if a wrapper batches environments.
      ValueError: if the observation is not a single array, or actions are not discrete.
    """

    def __init__(self, env: Any, params: Any = None, name: str = ""):
        base, wrappers = unwrapped(env)
        self._params = base.default_params if params is None else params
        observation, action = env.observation_space(self._params), env.action_space(self._params)
        self._env = with_wrappers(base, wrappers, self._params)
        shown = jax.eval_shape(lambda key: self._env.reset(key, self._params)[0], jax.random.key(0))
        is_number = hasattr(observation, "n")
        remedy = "wrap it to show one array, such as jnp.concatenate of the parts, each flat"
        if is_number:
            remedy = f"wrap it to show the number one-hot, jax.nn.one_hot(observation, {observation.n})"
        is_single_array = hasattr(shown, "shape") and not is_number
        shows, takes = (type(space).__name__ for space in (observation, action))
        check_supported(name or base.name, is_single_array, hasattr(action, "n"), shows, takes, remedy)
        self.observation_shape, self.num_actions = tuple(shown.shape), int(action.n)
        self._dtype = shown_dtype(shown.dtype)
        self.is_restart_slow = not hasattr(base, "is_truncated")  # craftax makes a world of 64 × 64 places

    def initial_state(self, key: Array) -> GymnaxState:
        key, reset_key = jax.random.split(key)
        observation, state = self._env.reset(reset_key, self._params)
        return GymnaxState(key, jax.tree.map(strongly_typed, state), observation.astype(self._dtype))

    def restart(self, state: GymnaxState) -> GymnaxState:
        return self.initial_state(state.key)

    def transition(self, state: GymnaxState, action: Array):
        key, step_key = jax.random.split(state.key)
        observation, new, reward, *_, info = self._env.step(step_key, state.state, action, self._params)
        new = jax.tree.map(lambda x, before: x.astype(before.dtype), new, state.state)
        next_state = GymnaxState(key, new, observation.astype(self._dtype))
        return next_state, jnp.float32(reward), info["terminated"], info["truncated"]

    def observe(self, state: GymnaxState) -> Array:
        return state.observation


class _OneEpisode:
    """An environment of gymnax in the form in which wrappers call it, which does not begin the next episode.

    Wrappers for gymnax 1.0 and later want six values of a step, earlier ones, as PureJaxRL's, five.
    """

    def __init__(self, env: Any, num_values: int = 6):
        self._env, self._num_values = env, num_values

    def __getattr__(self, name: str) -> Any:
        if name == "_env":  # of one that is being unpickled
            raise AttributeError(name)
        return getattr(self._env, name)

    def reset(self, key: Array, params: Any = None):
        return self._env.reset_env(key, params)

    def step(self, key: Array, state: Any, action: Array, params: Any = None):
        observation, state, reward, terminated, info = self._env.step_env(key, state, action, params)
        if hasattr(self._env, "is_truncated"):
            truncated = self._env.is_truncated(state, params)
        else:  # craftax, where an end by time is an end as others
            truncated = terminated
            terminated = self._env.is_terminal(state, params.replace(max_timesteps=state.timestep + 1))
        info = {**info, "terminated": terminated, "truncated": truncated, "final_observation": observation}
        ends = (terminated, truncated) if self._num_values == 6 else (terminated | truncated,)
        return observation, state, reward, *ends, info


def with_wrappers(env: Any, wrappers: Sequence[Any], params: Any) -> Any:
    """Return an environment of gymnax as one episode, in copies of these wrappers, the outermost of which is first.

    Raises:
      TypeError: if a wrapper batches environments, or takes none of these steps.
    """
    for num_values in (6, 5):
        wrapped: Any = _OneEpisode(env, num_values)
        for wrapper in reversed(wrappers):
            name = type(wrapper).__name__
            if "step" in vars(wrapper):
                raise TypeError(f"{name} is a wrapper that batches environments, expected none: they are batched here")
            inner, wrapped = wrapped, object.__new__(type(wrapper))  # copy.copy would call __getattr__ too early
            vars(wrapped).update(vars(wrapper) | {"_env": inner})
        if not wrappers:
            break
        try:
            jax.eval_shape(lambda key, wrapped=wrapped: _first_step(wrapped, key, params), jax.random.key(0))
            break
        except (TypeError, ValueError) as error:  # too many values to unpack, or not enough, or none
            if num_values == 5:
                names = ", ".join(type(wrapper).__name__ for wrapper in wrappers)
                raise TypeError(f"wrappers {names} of {env.name} do not work: {error}") from None
    return wrapped


def _first_step(env: Any, key: Array, params: Any) -> Any:
    observation, state = env.reset(key, params)
    return env.step(jax.random.clone(key), state, 0, params)


def unwrapped(env: Any) -> tuple[Any, list[Any]]:
    """Return what is innermost of an environment in wrappers that have a `_env`, and these, the outermost first."""
    wrappers = []
    while "_env" in getattr(env, "__dict__", ()):
        wrappers.append(env)
        env = env._env
    return env, wrappers


@functools.cache
def make_gymnax(env_id: str) -> GymnaxEnvironment:
    """Make an environment, the same one for the same id: populations compile one program for it."""
    gymnax = import_extra("gymnax")
    if env_id.startswith("MNIST"):
        check_mnist(f"gymnax/{env_id}")
    env, params = gymnax.make(env_id)
    return GymnaxEnvironment(env, params, f"gymnax/{env_id}")


def gymnax_ids() -> list[str]:
    """Return the ids that gymnax knows; an ImportError says where it is missing."""
    return list(import_extra("gymnax").registered_envs)
