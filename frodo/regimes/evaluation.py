"""Episodes of an agent that learns nothing meanwhile, in a pure environment; a callback that plays them at each row."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from agents.environments.adapt import as_environment
from agents.types import Array, Params
from agents.validation import check_count, check_type
from frodo.regimes.learner import Learner
from frodo.regimes.results import OnlineResult
from frodo.runs.callbacks import Callback
from toy_envs.base import Environment, step_batch


def episode_returns(
    learner: Learner,
    params: Params,
    environment: Environment,
    key: Array,
    num_episodes: int,
    is_greedy: bool = True,
    discount: float = 1.0,
) -> tuple[Array, Array]:
    """Play episodes from their starts to their ends, side by side; pure, to be jitted.

    Args:
      learner: the agent's functions.
      params: θ that acts, `learner.setup.acting_params`.
      environment: whose episodes end.
      key: of the starts, of what the environment draws, and of actions that are drawn.
      num_episodes: how many.
      is_greedy: whether the most probable action of a step is taken, else one is drawn from the policy.
      discount: of the second result.
    Returns:
      returns, and discounted returns, [num_episodes] each.
    """
    agent, policy = learner.setup.agent, learner.setup.rule.policy
    *start_keys, key = jax.random.split(key, num_episodes + 1)
    env_state, shown = jax.vmap(environment.init)(jnp.stack(start_keys))
    nothing = jnp.zeros(num_episodes)

    def step(carry):
        env_state, shown, core_state, key, returns, discounted, weight, goes_on = carry
        draw_key, key = jax.random.split(key)
        predictions, core_state = agent.step(params, agent.prepare(shown.observation), shown.is_first, core_state)
        logits = policy(predictions)
        action = logits.argmax(-1) if is_greedy else jax.random.categorical(draw_key, logits)
        env_state, shown = step_batch(environment, env_state, action.astype(jnp.int32), shown.truncated)
        reward = jnp.where(goes_on, shown.reward, 0.0)
        returns, discounted = returns + reward, discounted + weight * reward
        goes_on &= (shown.discount > 0) & ~shown.truncated
        return env_state, shown, core_state, key, returns, discounted, discount * weight, goes_on

    weight, goes_on = jnp.ones(()), jnp.ones(num_episodes, bool)
    start = (env_state, shown, agent.initial_state(num_episodes), key, nothing, nothing, weight, goes_on)
    *_, returns, discounted, _, _ = jax.lax.while_loop(lambda carry: jnp.any(carry[-1]), step, start)
    return returns, discounted


class HeldOut(Callback):
    """The return in an environment that the agent does not learn in, as `held_out_return` of every row.

    Args:
      environment: a pure one whose episodes end, of the kinds that `discover_online` takes.
      num_episodes: the same at every row.
      is_greedy: whether the most probable action of a step is taken, else one is drawn from the policy.
    Raises:
      ValueError: for an environment on the host, or, at the first row, for one with observations of another shape or
        with another number of actions than the agent's.
    """

    def __init__(self, environment: Any, num_episodes: int = 64, is_greedy: bool = True):
        check_count("num_episodes", num_episodes)
        own = as_environment(environment)
        if not isinstance(own, Environment):
            raise ValueError("HeldOut: the environment is stepped on the host, expected one in JAX")
        self._environment, self._num_episodes, self._is_greedy = own, num_episodes, is_greedy
        self._play: Callable[..., Any] | None = None

    def see(self, row: dict[str, Any]) -> None:
        result = self.driven.result()
        check_type("callback HeldOut: the result", result, OnlineResult, "that of discover_online")
        learner, environment = result.learner, self._environment
        if self._play is None:
            facts = result.life.facts
            expected = f"{facts.num_actions} actions and observations {list(facts.observation_shape)}"
            found = f"{environment.num_actions} actions and observations {list(environment.observation_shape)}"
            if found != expected:
                raise ValueError(f"HeldOut: the environment has {found}, expected {expected}, as the agent learns from")
            how = (environment, jax.random.key(0), self._num_episodes, self._is_greedy)
            self._play = jax.jit(lambda params: episode_returns(learner, params, *how)[0].mean())
        row["held_out_return"] = float(self._play(learner.setup.acting_params(result.state.agent)))
