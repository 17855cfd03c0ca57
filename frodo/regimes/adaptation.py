"""The adaptation regime: what an agent gains within an episode of several trials, with θ as it is.

Training for it is the online regime in `Trials`: whatever rule moves θ, the memory is what adapts. Here is the test, on
tasks that the agent was not trained on. Source: AdA 2023, sections 2.2 and 3, and appendix B.
"""

from typing import Any

import jax
import jax.numpy as jnp

from agents.acting.in_jax import Policy
from agents.acting.trials import play
from agents.environments.adapt import as_pure_environment
from agents.types import Array, Params
from agents.validation import check_count, check_type, checked_key
from frodo.regimes.arguments import check_like, check_params
from frodo.regimes.learner import Learner
from toy_envs.base import Environment
from toy_envs.trials import Trials


def held_out_tasks(environment: Environment | Any, num_tasks: int) -> Any:
    """Return tasks to test on, as the states at the start of a trial, [num_tasks, ...]; the same ones each time.

    They are the first of the `held_out_ids` of the environment's `tested`. Where it has none they are drawn as in
    training: if tasks can be drawn twice, these may be known.

    Args:
      environment: of one trial, not `Trials`: a pure one, or its name.
      num_tasks: how many.
    Raises:
      ValueError: if it has fewer, or that is no whole number of at least 1.
      TypeError: if the environment is not a pure one.
    """
    environment = as_pure_environment(environment).tested
    check_count("num_tasks", num_tasks)
    held_out = environment.held_out_ids
    if held_out is None:
        return jax.vmap(environment.initial_state)(jax.random.split(jax.random.key(0), num_tasks))
    if num_tasks > len(held_out):
        raise ValueError(f"num_tasks is {num_tasks}, expected at most the {len(held_out)} that are held out")
    return jax.vmap(environment.numbered_state)(jnp.array(held_out[:num_tasks], jnp.uint32))


def returns_by_trial(
    learner: Learner,
    params: Params,
    environment: Environment | Any,
    tasks: Any,
    key: Array,
    *,
    num_trials: int,
    num_episodes: int = 1,
    is_forgetful: bool = False,
    is_greedy: bool = False,
) -> Array:
    """Play whole episodes of given tasks, and return the mean return of each trial, [num_tasks, num_trials].

    Nothing is learned but what the agent's memory keeps from trial to trial. It is a pure function: jit it, with all
    but params, tasks and key fixed.

    Args:
      learner: the functions of the agent and of its rule.
      params: θ.
      environment: of one trial, a pure one, or its name; the agent was trained in `Trials` of such ones.
      tasks: states at the start of a trial, [num_tasks, ...], such as `held_out_tasks`. Where the state of an
        environment has a random key, episodes of a task have the same luck.
      key: of the actions.
      num_trials: of an episode, also other than in training.
      num_episodes: of each task, from an empty memory.
      is_forgetful: whether trials begin with an empty memory, too; as of the `Trials` of the agent's training.
      is_greedy: whether the most probable action is taken; else one is drawn from the policy.
    Raises:
      ValueError: naming the argument that is bad: no trial, tasks of another environment, θ of another agent.
      TypeError: naming the argument that is of another type.
    """
    check_type("learner", learner, Learner, "what `make_learner` returns, or a result's learner")
    environment = as_pure_environment(environment)
    key = checked_key(key)
    check_count("num_trials", num_trials)
    check_count("num_episodes", num_episodes)
    setup, num_tasks = learner.setup, next((len(x) for x in jax.tree.leaves(tasks) if jnp.ndim(x)), 1)
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), num_tasks))
    expected = jax.eval_shape(jax.vmap(environment.initial_state), keys)
    check_like("tasks", tasks, expected, "states of the environment, [num_tasks, ...]")
    shape = (num_tasks, *Trials(environment, num_trials).observation_shape)
    check_params(setup.agent, params, jax.ShapeDtypeStruct(shape, jnp.float32))
    returns = play(
        setup.agent,
        policy_of(learner, is_greedy),
        params,
        environment,
        tasks,
        key,
        num_trials=num_trials,
        num_episodes=num_episodes,
        is_forgetful=is_forgetful,
    )
    return jnp.mean(returns, axis=1)


def policy_of(learner: Learner, is_greedy: bool) -> Policy:
    """Return the policy of an agent, or that of its most probable actions."""
    drawn = learner.setup.rule.policy
    return (lambda predictions: _only_the_largest(drawn(predictions))) if is_greedy else drawn


def _only_the_largest(logits: Array) -> Array:
    """Return logits by which the first of the most probable actions is certain."""
    return jnp.log(jax.nn.one_hot(jnp.argmax(logits, axis=-1), logits.shape[-1]))
