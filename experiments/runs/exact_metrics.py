"""Metrics of pure environments that no episode of training shows.

They are exact returns on Catch, errors of values on the random walk, episodes of the greedy policy in gymnax, returns
by trial in tasks that are held out, and what agents with action values think of the start of an episode.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from agents.environments.gymnax import GymnaxEnvironment
from agents.types import Array, Params, Predictions, PredictionSpec
from frodo.regimes.adaptation import held_out_tasks, returns_by_trial
from frodo.regimes.evaluation import episode_returns
from frodo.regimes.learner import Learner
from frodo.regimes.lifetimes import Evaluate, OnlineState
from meta.updates.curriculum import UNIFORM
from toy_envs.base import Environment
from toy_envs.catch import Catch
from toy_envs.random_walk import RandomWalk
from toy_envs.rule_room import RuleRoom
from toy_envs.trials import Trials

GREEDY_EPISODES = 64
TRIALS_EPISODES, TRIALS_SHARE = 256, 0.04  # of the environment steps between log points, which also learn
STARTS = 64


def iteration_metrics(environment: Environment, learner: Learner) -> Evaluate:
    """Make the function that measures after every iteration, from the states before and after it, inside the program.

    Random walk: `error`, the mean over states of the squared error of v against the true values of the current phase;
    `spike`, the same in the first iteration after the left reward changed, else nan. Curricula: `trained_share`, the
    share of episodes that are learned from, and of rule rooms of several kinds `share_<kind>` among these, both of the
    last trajectory.
    """
    if learner.config.curriculum.kind != UNIFORM:
        assert isinstance(environment, Trials)
        trial = environment.environment
        return _shares(trial if isinstance(trial, RuleRoom) and len(trial.shares) > 1 else None)
    if not isinstance(environment, RandomWalk) or "value" not in learner.setup.rule.spec(environment.num_actions):
        return lambda before, after: {}

    def metrics(before: OnlineState, after: OnlineState) -> dict[str, Any]:
        last_steps = [jnp.maximum(0, state.actor.env_state.num_steps[0] - 1) for state in (before, after)]
        is_changed = environment.left_reward(last_steps[0]) != environment.left_reward(last_steps[1])
        values = _predictions(learner, after, jnp.eye(environment.num_states))["value"]
        error = jnp.mean(jnp.square(values - environment.true_values(last_steps[1])))
        return {"error": error, "spike": jnp.where(is_changed, error, jnp.nan)}

    return metrics


def _shares(room: RuleRoom | None) -> Evaluate:
    def metrics(before: OnlineState, after: OnlineState) -> dict[str, Any]:
        tasks = after.actor.curriculum
        found = {"trained_share": jnp.mean(tasks.is_trained)}
        if room is not None:
            numbers = jax.vmap(room.kind_number)(tasks.task_ids)
            of_kind = (numbers == jnp.arange(len(room.shares))[:, None]) & tasks.is_trained
            shares = jnp.sum(of_kind, axis=1) / jnp.sum(tasks.is_trained)  # nan where none is learned from
            found |= {f"share_{kind}": share for kind, share in zip(room.shares, shares, strict=True)}
        return found

    return metrics


def log_metrics(
    environment: Environment, learner: Learner, num_steps: float = float("inf")
) -> Callable[[OnlineState], dict[str, Any]]:
    """Make the function that measures at log points.

    Catch: `sampled_return` and `greedy_return`, the exact expected returns of the policy as it acts, and of its most
    probable actions. gymnax: `greedy_return`, the mean return of GREEDY_EPISODES episodes of those actions, the same
    starts at every log point, and of agents with Q `start_return`, the same discounted by the rule's γ, to hold
    beside `start_q`. Trials: `trial_1`, `trial_2` and so on, the mean return of each over TRIALS_EPISODES
    episodes of the policy as it acts, each of another held-out task, the same at every log point; of fewer, where these
    would be more than TRIALS_SHARE of the `num_steps` environment steps between log points. Everywhere, of agents with
    Q: `start_q`, the mean of Q(s, 0) over STARTS first states (as in Figure 5 of Co-Reyes et al. 2021).
    """

    def of_q(state: OnlineState) -> dict[str, Any]:
        if learner.setup.rule.spec(environment.num_actions).get("q") != PredictionSpec(is_per_action=True):
            return {}
        observations = jax.vmap(environment.init)(jax.random.split(jax.random.key(0), STARTS))[1].observation
        return {"start_q": jnp.mean(_predictions(learner, state, observations)["q"][..., 0])}

    own = _of_environment(environment, learner, num_steps)
    return lambda state: own(state) | of_q(state)


def _of_environment(
    environment: Environment, learner: Learner, num_steps: float
) -> Callable[[OnlineState], dict[str, Any]]:
    if isinstance(environment, Trials):
        of_episode = environment.horizon or learner.config.unroll
        num_tasks = int(max(1, min(TRIALS_EPISODES, TRIALS_SHARE * num_steps / of_episode)))

        def by_trial(state: OnlineState) -> dict[str, Any]:
            trial, k = environment.environment, environment.num_trials
            tasks, key = held_out_tasks(trial, num_tasks), jax.random.key(0)
            how: dict[str, Any] = dict(num_trials=k, is_forgetful=environment.is_forgetful)
            found = returns_by_trial(learner, _acting(learner, state), trial, tasks, key, **how).mean(axis=0)
            return {f"trial_{i + 1}": found[i] for i in range(k)}

        return by_trial
    if isinstance(environment, GymnaxEnvironment):
        has_q = "q" in learner.setup.rule.spec(environment.num_actions)

        def greedy(state: OnlineState) -> dict[str, Any]:
            gamma = getattr(learner.config.rule.settings, "discount", 1.0)
            of = learner, _acting(learner, state), environment, jax.random.key(0), GREEDY_EPISODES
            returns, discounted = episode_returns(*of, discount=gamma)
            return {"greedy_return": returns.mean()} | ({"start_return": discounted.mean()} if has_q else {})

        return greedy
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
    return agent.step(_acting(learner, state), batch, jnp.ones(len(batch), bool), core_state)[0]


def _acting(learner: Learner, state: OnlineState) -> Params:
    """Return the parameters that act: θ, or its slow copy where the rule says so."""
    return learner.setup.acting_params(state.learner.agent)
