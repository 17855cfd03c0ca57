"""The Bernoulli bandit: its pulls, and its best return against all policies there are."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.toy_envs.stepping import run
from tests.trees import check_equal
from toy_envs import names
from toy_envs.bandit import Bandit
from toy_envs.trials import Trials


def test_arms_pay_with_their_probabilities_which_stay_over_episodes():
    bandit, num_steps = Bandit(3, num_pulls=7), 4200
    state, first = jax.jit(bandit.init)(jax.random.key(2))
    actions = np.arange(num_steps) // 8 % 3  # each eighth step is the reset after seven pulls
    after, steps, _ = jax.jit(lambda state: run(bandit, state, actions))(state)
    check_equal(after.probabilities, state.probabilities)
    for arm, probability in enumerate(np.asarray(state.probabilities)):
        pulled = (actions == arm) & steps.valid
        error = np.sqrt(probability * (1 - probability) / np.sum(pulled))
        assert abs(np.mean(steps.reward[pulled]) - probability) < 5 * error
    assert set(np.unique(steps.reward)) == {0.0, 1.0} and np.ptp(state.probabilities) > 0.2
    np.testing.assert_array_equal(steps.truncated, np.arange(num_steps) % 8 == 6)
    np.testing.assert_array_equal(steps.valid, np.arange(num_steps) % 8 < 7)
    assert np.all(steps.discount == 1.0) and np.all(steps.observation == 1.0) and first.observation.shape == (1,)


def test_draws_are_independent_from_pull_to_pull():
    bandit = Bandit(1, num_pulls=2)
    state = jax.jit(bandit.initial_state)(jax.random.key(0))._replace(probabilities=jnp.array([0.5]))
    steps = jax.jit(lambda state: run(bandit, state, jnp.zeros(6000, jnp.int32))[1])(state)
    rewards = np.asarray(steps.reward)[np.asarray(steps.valid)]
    for lag in (1, 2, 3):
        assert np.corrcoef(rewards[:-lag], rewards[lag:])[0, 1] == pytest.approx(0.0, abs=0.08)


def test_tasks_are_uniform_and_trials_share_one():
    environment = Trials(Bandit(2, num_pulls=3), 2)
    state, time_step = jax.jit(jax.vmap(environment.init))(jax.random.split(jax.random.key(0), 500))
    tasks, step = [state.state.probabilities], jax.jit(jax.vmap(environment.step))
    for _ in range(6):
        state, time_step = step(state, jnp.zeros(500, jnp.int32), time_step.truncated)
        tasks.append(state.state.probabilities)
    tasks = np.stack(tasks)
    assert np.all(tasks[:6] == tasks[0]) and not np.any(tasks[6] == tasks[0]) and np.all(time_step.is_first)
    np.testing.assert_allclose(np.sort(tasks[0].ravel()), (np.arange(1000) + 0.5) / 1000, atol=0.06)
    assert time_step.observation.shape[1:] == (1 + 6 + 1 + 2 + 1,)


def all_policies_best(num_pulls: int) -> float:
    """Try every policy for two arms, a function from the rewards so far; integrate over the arms' probabilities."""
    histories = [h for length in range(num_pulls) for h in itertools.product((0, 1), repeat=length)]
    nodes, weights = np.polynomial.legendre.leggauss(num_pulls + 1)  # exact for the polynomials that occur
    probabilities, weights = (nodes + 1) / 2, weights / 2
    p = np.stack(np.meshgrid(probabilities, probabilities))
    weight = np.multiply.outer(weights, weights)
    best = 0.0
    for arms in itertools.product((0, 1), repeat=len(histories)):
        policy = dict(zip(histories, arms, strict=True))
        total = 0.0
        for rewards in itertools.product((0, 1), repeat=num_pulls):
            chosen = [p[policy[rewards[:t]]] for t in range(num_pulls)]
            likelihood = np.prod([q if reward else 1 - q for q, reward in zip(chosen, rewards, strict=True)], axis=0)
            total += sum(rewards) * np.sum(weight * likelihood)
        best = max(best, total)
    return best


def test_best_return():
    assert Bandit(2, 1).best_return(1) == 0.5
    # A success makes the arm worth 2/3; after a failure the other one still is worth 1/2.
    assert Bandit(2, 2).best_return(1) == pytest.approx(0.5 + 0.5 * 2 / 3 + 0.5 * 0.5)
    assert Bandit(2, 3).best_return(1) == pytest.approx(all_policies_best(3), abs=1e-9)
    assert Bandit(1, 5).best_return(2) == pytest.approx(5.0)  # there is nothing to choose
    assert Bandit(2, 10).best_return(2) == Bandit(2, 20).best_return(1)
    assert 0.6 * 20 < Bandit(2, 20).best_return(1) < 20 * 2 / 3  # the better one of two arms is worth 2/3
    assert Bandit(3, 6).best_return(1) > Bandit(2, 6).best_return(1)


def test_names_and_what_is_refused():
    assert names.make("bandit/5") == Bandit(5)
    with pytest.raises(ValueError, match="^toy/bandit/0: "):
        names.make("bandit/0")
    with pytest.raises(ValueError, match="^arms and pulls are 2 and 0, expected at least 1 of each$"):
        Bandit(2, 0)
