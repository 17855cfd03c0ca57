"""Episodes of an agent that learns nothing meanwhile, in a pure environment."""

import jax
import jax.numpy as jnp

from agents.types import Array, Params
from frodo.learner import Learner
from toy_envs.base import Environment


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
        env_state, shown = jax.vmap(environment.step)(env_state, action.astype(jnp.int32), shown.truncated)
        reward = jnp.where(goes_on, shown.reward, 0.0)
        returns, discounted = returns + reward, discounted + weight * reward
        goes_on &= (shown.discount > 0) & ~shown.truncated
        return env_state, shown, core_state, key, returns, discounted, discount * weight, goes_on

    weight, goes_on = jnp.ones(()), jnp.ones(num_episodes, bool)
    start = (env_state, shown, agent.initial_state(num_episodes), key, nothing, nothing, weight, goes_on)
    *_, returns, discounted, _, _ = jax.lax.while_loop(lambda carry: jnp.any(carry[-1]), step, start)
    return returns, discounted
