"""Whole episodes of trials of given tasks, with an agent as it is."""

from typing import Any

import jax
import jax.numpy as jnp

from agents.acting import in_jax as acting
from agents.acting.in_jax import Policy
from agents.networks.agent import Agent
from agents.types import Array, Params
from toy_envs.base import Environment
from toy_envs.trials import Trials


def play(
    agent: Agent,
    policy: Policy,
    params: Params,
    environment: Environment,
    tasks: Any,
    key: Array,
    *,
    num_trials: int,
    num_episodes: int,
    is_forgetful: bool = False,
) -> Array:
    """Play episodes of tasks, and return the return of each trial, [num_tasks, num_episodes, num_trials].

    Args:
      agent, policy, params: what acts; each episode begins with an empty memory.
      environment: of one trial.
      tasks: states at the start of a trial, [num_tasks, ...].
      key: of the actions, and of what `Trials` draws.
      is_forgetful: as of `Trials`: each trial begins with an empty memory.
    """
    trials, num_tasks = Trials(environment, num_trials), len(jax.tree.leaves(tasks)[0])
    tasks = jax.tree.map(lambda x: jnp.repeat(x, num_episodes, axis=0), tasks)
    first_key, key = jax.random.split(key)
    begin = lambda task: trials.begin(trials.initial_state(first_key), task)

    def step(carry):  # where an episode is over while others go on, what follows is no trial of it, and is not counted
        key, state, is_first, core_state = carry
        key, action_key = jax.random.split(key)
        observation = agent.prepare(jax.vmap(trials.observe)(state))
        action, _, core_state = acting.act(agent, policy, params, action_key, observation, is_first, core_state)
        new = jax.vmap(trials.transition)(state, action)[0]
        return key, new, is_forgetful & (new.trial > state.trial), core_state

    states = jax.vmap(begin)(tasks)
    start = key, states, states.action < 0, agent.initial_state(len(states.trial))
    _, states, *_ = jax.lax.while_loop(lambda carry: jnp.any(carry[1].trial < num_trials), step, start)
    return states.stats.return_sum.reshape(num_tasks, num_episodes, num_trials)
