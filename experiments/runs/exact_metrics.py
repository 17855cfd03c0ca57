"""Metrics of pure environments that no episode of training shows.

They are exact returns on Catch, errors of values on the random walk, episodes of the greedy policy in gymnax, returns
by trial in tasks that are held out, and what agents with action values think of the start of an episode.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from agents.environments.gymnax import GymnaxEnvironment
from agents.types import Array, Predictions, PredictionSpec
from frodo.regimes.adaptation import held_out_tasks, returns_by_trial
from frodo.regimes.evaluation import episode_returns
from frodo.regimes.learner import Learner
from frodo.regimes.lifetimes import Evaluate, OnlineState
from meta.updates.curriculum import UNIFORM
from toy_envs.base import Environment
from toy_envs.catch import Catch
from toy_envs.discounting_chain import DiscountingChain
from toy_envs.random_walk import RandomWalk
from toy_envs.rule_room import RuleRoom
from toy_envs.trials import Trials
from toy_envs.two_colours import TwoColours
from toy_envs.wrapper import Scaled

GREEDY_EPISODES = 64
TRIALS_EPISODES, TRIALS_SHARE = 256, 0.04  # of the environment steps between log points, which also learn
STARTS = 64


def iteration_metrics(environment: Environment, learner: Learner) -> Evaluate:
    """Make the function that measures after every iteration, from the states before and after it, inside the program.

    Random walk: `error`, the mean over states of the squared error of v against the true values of the current phase;
    `spike`, the same in the first iteration after the left reward changed, else nan. Two colours: `reward`, the mean of
    the iteration's steps. Curricula: `trained_share`, the
    share of episodes that are learned from, and of rule rooms of several kinds `share_<kind>` among these, both of the
    last trajectory.
    """
    has_values = "value" in learner.setup.rule.spec(environment.num_actions)
    room = environment.environment if isinstance(environment, Trials) else None

    def metrics(before: OnlineState, after: OnlineState) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if learner.config.curriculum.kind != UNIFORM:
            tasks = after.actor.curriculum
            found["trained_share"] = jnp.mean(tasks.is_trained)
            if isinstance(room, RuleRoom) and len(room.shares) > 1:
                numbers = jax.vmap(room.kind_number)(tasks.task_ids)
                of_kind = (numbers == jnp.arange(len(room.shares))[:, None]) & tasks.is_trained
                shares = jnp.sum(of_kind, axis=1) / jnp.sum(tasks.is_trained)  # nan where none is learned from
                found |= {f"share_{kind}": share for kind, share in zip(room.shares, shares, strict=True)}
        elif isinstance(environment, RandomWalk) and has_values:
            steps = [jnp.maximum(0, state.actor.env_state.num_steps[0] - 1) for state in (before, after)]
            is_changed = environment.left_reward(steps[0]) != environment.left_reward(steps[1])
            values = _predictions(learner, after, jnp.eye(environment.num_states))["value"]
            error = jnp.mean(jnp.square(values - environment.true_values(steps[1])))
            found |= {"error": error, "spike": jnp.where(is_changed, error, jnp.nan)}
        elif isinstance(environment, TwoColours):
            found["reward"] = jnp.mean(environment.mean_reward(before.actor.env_state, after.actor.env_state))
        return found

    return metrics


def log_metrics(
    environment: Environment, learner: Learner, num_steps: float = float("inf")
) -> Callable[[OnlineState], dict[str, Any]]:
    """Make the function that measures at log points.

    Catch and Discounting Chain: `sampled_return` and `greedy_return`, the exact expected returns of the policy as it
    acts, and of its most probable actions. gymnax at any scale of rewards, but not craftax: `greedy_return`, the mean
    return of GREEDY_EPISODES episodes of those actions, the same starts at every log point, and of agents with Q
    `start_return`, the same discounted by the rule's γ, to compare with `start_q`. Trials: `trial_1`, `trial_2` and so
    on, the mean return of each over TRIALS_EPISODES episodes of the policy as it acts, each of another held-out task,
    the same at every log point; of fewer, where these would be more than TRIALS_SHARE of the `num_steps` environment
    steps between log points. Everywhere, of agents with Q: `start_q`, the mean of Q(s, 0) over STARTS first states (as
    in Figure 5 of Co-Reyes et al. 2021).
    """

    rule, key = learner.setup.rule, jax.random.key(0)
    spec = rule.spec(environment.num_actions)
    plain = environment.environment if isinstance(environment, Scaled) else environment

    def policies(state: OnlineState, observations: Array) -> dict[str, Array]:
        """Return probabilities of the policy as it acts, and of its most probable actions: [B, A] each."""
        logits = rule.policy(_predictions(learner, state, observations))
        greedy = jax.nn.one_hot(logits.argmax(-1), environment.num_actions)
        return {"sampled_return": jax.nn.softmax(logits), "greedy_return": greedy}

    def metrics(state: OnlineState) -> dict[str, Any]:
        params = learner.setup.acting_params(state.learner.agent)
        found: dict[str, Any] = {}
        if isinstance(environment, Trials):
            trial, k = environment.environment.tested, environment.num_trials
            of_episode = environment.horizon or learner.config.unroll
            num_tasks = int(max(1, min(TRIALS_EPISODES, TRIALS_SHARE * num_steps / of_episode)))
            how: dict[str, Any] = dict(num_trials=k, is_forgetful=environment.is_forgetful)
            returns = returns_by_trial(learner, params, trial, held_out_tasks(trial, num_tasks), key, **how)
            found |= {f"trial_{i + 1}": x for i, x in enumerate(returns.mean(axis=0))}
        elif isinstance(plain, GymnaxEnvironment) and not plain.is_restart_slow:
            gamma = getattr(learner.config.rule.settings, "discount", 1.0)
            returns, discounted = episode_returns(learner, params, environment, key, GREEDY_EPISODES, discount=gamma)
            found |= {"greedy_return": returns.mean()} | ({"start_return": discounted.mean()} if "q" in spec else {})
        elif isinstance(environment, Catch):
            observations = environment.all_observations()
            shown = observations.reshape(-1, *environment.observation_shape)
            for name, policy in policies(state, shown).items():
                found[name] = environment.expected_return(policy.reshape(*observations.shape[:3], -1))
        elif isinstance(environment, DiscountingChain):
            first = environment.init(key)[1].observation
            for name, policy in policies(state, first[None]).items():
                found[name] = environment.true_values(first, policy[0], 1.0)
        if spec.get("q") == PredictionSpec(is_per_action=True):
            starts = jax.vmap(environment.init)(jax.random.split(key, STARTS))[1].observation
            found["start_q"] = jnp.mean(_predictions(learner, state, starts)["q"][..., 0])
        return found

    return metrics


def _predictions(learner: Learner, state: OnlineState, observations: Array) -> Predictions:
    """Return the predictions of the agent as it acts, of observations [B, ...], each the first of an episode."""
    agent, params = learner.setup.agent, learner.setup.acting_params(state.learner.agent)
    batch = agent.prepare(observations)
    return agent.step(params, batch, jnp.ones(len(batch), bool), agent.initial_state(len(batch)))[0]
