"""How agents gain over the trials of an episode in held-out tasks, and what is possible there: the k-shot curve.

Source: AdA 2023, section 3 and appendix B. There the reference of a task is the best last trial of an agent that was
fine-tuned on it; here it is the exact best return of a trial for who knows the task's rules, the *oracle*.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from agents.acting.trials import play
from agents.environments.adapt import as_pure_environment
from agents.types import Array, Params
from frodo.regimes.adaptation import held_out_tasks, returns_by_trial
from frodo.regimes.learner import Learner
from toy_envs.bandit import Bandit
from toy_envs.base import Environment
from toy_envs.rule_room import KINDS, NOTHING, RuleRoom
from toy_envs.rule_room_optimum import best_returns, oracle_returns, parted, possible_reactions
from toy_envs.wrapper import Scaled, Wrapper

NUM_LAYOUTS = 64  # over which the optimum of rule rooms is a mean: the first of the tasks
MAX_PULLS = 40  # of two arms, up to which the best explorer's return is computed


class KShot(NamedTuple):
    """Returns by trial of an agent in held-out tasks, and what they are to be compared with.

    Attributes:
      returns: mean returns of each trial, [num_tasks, num_trials].
      of_random: those of actions that are drawn uniformly, [num_tasks, num_trials].
      optimum: the mean return of each trial, [num_trials], of the explorer that is best in all of them together; nan
        where it is not known. In rule rooms the mean is over the first NUM_LAYOUTS tasks and all rules they may have.
      oracle: the best return of a trial for who knows the task, [num_tasks]; [0] where it is not known.
    """

    returns: np.ndarray
    of_random: np.ndarray
    optimum: np.ndarray
    oracle: np.ndarray


def k_shot(
    learner: Learner,
    params: Params,
    environment: Environment | Any,
    key: Array,
    *,
    num_trials: int,
    num_tasks: int = 256,
    num_episodes: int = 8,
    **how: Any,
) -> KShot:
    """Test an agent in held-out tasks, next to random actions and the best explorer, where that is known.

    Args:
      learner: of an agent that was trained in `Trials`, such as that of an `OnlineResult`.
      params: θ.
      environment: of one trial, a pure one, or its name.
      key: of the actions.
      num_trials: of an episode.
      num_tasks: as that of `held_out_tasks`.
      num_episodes: of each task; random actions have one.
      **how: `is_forgetful` and `is_greedy` of `returns_by_trial`.
    Raises:
      ValueError, TypeError: as `held_out_tasks` and `returns_by_trial`; or where tasks have no goal to find.
    """
    environment = as_pure_environment(environment).tested
    check_solvable(environment)
    tasks = jax.jit(lambda: held_out_tasks(environment, num_tasks))()
    how |= dict(num_trials=num_trials, num_episodes=num_episodes)
    run = jax.jit(lambda params: returns_by_trial(learner, params, environment, tasks, key, **how))
    found, of_random = run(params), random_returns(learner, params, environment, tasks, key, num_trials)
    known = references(environment, tasks, (num_trials,))
    optimum = known.optimum.get(num_trials, np.full(num_trials, np.nan))
    return KShot(np.asarray(found), of_random, optimum, known.oracle)


def random_returns(
    learner: Learner, params: Params, environment: Environment, tasks: Any, key: Array, num_trials: int
) -> np.ndarray:
    """Return what actions that are drawn uniformly have in an episode of each task, [num_tasks, num_trials]."""
    agent, policy = learner.setup.agent, learner.setup.rule.policy
    uniform = lambda predictions: jnp.zeros_like(policy(predictions))
    run = jax.jit(
        lambda params: play(agent, uniform, params, environment, tasks, key, num_trials=num_trials, num_episodes=1)
    )
    return np.asarray(run(params)[:, 0])


class References(NamedTuple):
    """What is possible in an environment, in its own returns; empty or nan where it is not known.

    Attributes:
      oracle: of each task, [num_tasks], the best return of a trial for who knows it; 0 where there is no solution.
      mean_oracle: its mean over the tasks of which the optimum is a mean.
      optimum: for each number of trials the mean return of each, [num_trials], of the explorer that is best in all of
        them together; of a bandit the mean over trials, for each of them.
      one_trial: the same without memory across trials.
    """

    oracle: np.ndarray
    mean_oracle: float
    optimum: dict[int, np.ndarray]
    one_trial: float


def check_solvable(environment: Environment) -> None:
    """Raise a ValueError where tasks are of a kind without a goal to find."""
    while isinstance(environment, Wrapper):
        environment = environment.environment
    kinds = environment.shares if isinstance(environment, RuleRoom) else {}
    if found := [kind for kind in kinds if KINDS[kind].makes == NOTHING]:
        raise ValueError(f"tasks of the kind {' and '.join(found)} have no goal to find, expected another kind")


def references(environment: Environment, tasks: Any, nums_trials: tuple[int, ...]) -> References:
    """Return what is possible in `held_out_tasks`, [num_tasks, ...], for each number of trials."""
    if isinstance(environment, Scaled):
        known = references(environment.environment, tasks, nums_trials)
        return jax.tree.map(lambda x: environment.factor * x, known)
    if isinstance(environment, RuleRoom):
        return _of_rooms(environment, jax.tree.map(np.asarray, tasks.task), nums_trials)
    if isinstance(environment, Bandit):
        oracle = environment.num_pulls * np.asarray(tasks.probabilities).max(axis=1)
        is_known = lambda k: environment.num_arms == 2 and k * environment.num_pulls <= MAX_PULLS
        optimum = {k: np.full(k, environment.best_return(k) / k if is_known(k) else np.nan) for k in nums_trials}
        one_trial = environment.best_return(1) if is_known(1) else np.nan
        of_uniform = environment.num_pulls * environment.num_arms / (environment.num_arms + 1)
        return References(oracle, of_uniform, optimum, one_trial)
    return References(np.array([]), np.nan, {}, np.nan)


def _of_rooms(room: RuleRoom, tasks: Any, nums_trials: tuple[int, ...]) -> References:
    """An explorer knows the layout, and the rules where they are shown; its means are over all that they may be."""
    possible = [possible_reactions(KINDS[kind]) for kind in room.shares]
    numbers = jax.vmap(room.kind_number)(jnp.array(room.held_out_ids[:NUM_LAYOUTS], jnp.uint32)).tolist()
    rules = zip(numbers, tasks.is_shown, tasks.reactions, strict=False)
    known, optimum = list[float](), {k: list[np.ndarray]() for k in {1, *nums_trials}}
    for rows in parted((number, table.tobytes() if is_shown else b"") for number, is_shown, table in rules):
        of = jax.tree.map(lambda x, rows=rows: x[rows], tasks)
        tables = of.reactions[:1] if of.is_shown[0] else possible[numbers[rows[0]]]
        known.extend(np.mean([best_returns(of, table[None], 1)[:, 0] for table in tables], axis=0))
        for k, found in optimum.items():
            found.extend(best_returns(of, tables, k))
    return References(
        oracle=oracle_returns(tasks),
        mean_oracle=float(np.mean(known)),
        optimum={k: np.mean(optimum[k], axis=0) for k in nums_trials},
        one_trial=float(np.mean(optimum[1])),
    )
