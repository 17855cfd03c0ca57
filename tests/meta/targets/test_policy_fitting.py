"""CMPO's policy as a target of DiscoRL's form: against loops, what is made up, how well η fits, what is refused."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.rules.moving_average import MovingAverage
from agents.types import check_predictions, check_trajectory
from meta.targets import fitting, policy_fitting
from meta.targets.disco import DiscoConfig, disco
from tests.reference import agents, muesli
from tests.reference import disco as reference
from tests.trajectories import random_trajectory

SMALL = DiscoConfig(discount=0.9, lambda_=0.8, prediction_size=4, max_value=6, lstm=8, lifetime_lstm=3)
T, B, A = 7, 3, 4


def random_predictions(rng) -> dict[str, np.ndarray]:
    return {name: rng.normal(size=(T + 1, B, *x.axes(A))) for name, x in disco(SMALL).spec(A).items()}


def test_cmpo_is_that_of_loops():
    """Advantages are Retrace's for the taken action, the target parameters' q − v for the others; the mean is taken."""
    rng = np.random.default_rng(0)
    with jax.enable_x64(True):
        trajectory = random_trajectory(0, T, B, num_actions=A)
        predictions, slow = random_predictions(rng), random_predictions(rng)
        state = disco(SMALL).init()._replace(advantage=MovingAverage(*map(jnp.float64, (0.1, 0.5, 0.7))))
        made = jax.nn.softmax(policy_fitting.cmpo(SMALL, state, trajectory, predictions, slow))
        meta_params = disco(SMALL).random_meta_params(jax.random.key(1), A)
        rest, change = policy_fitting.divergence(SMALL, meta_params, (state, trajectory, predictions, slow))
        own = jax.nn.softmax(disco(SMALL).apply(meta_params, state, trajectory, predictions, slow)[0].policy)
        made, own, trajectory = jax.tree.map(np.asarray, (made, own, trajectory))
    pi, prior, q = (
        reference.softmax(predictions["policy"]),
        reference.softmax(slow["policy"]),
        reference.scalars(slow["q"]),
    )
    value = np.sum(pi * q, axis=-1)
    mu = reference.softmax(np.asarray(trajectory.behaviour_logits))
    rho = agents.taken(pi, trajectory.action) / agents.taken(mu, trajectory.action)
    returns = agents.retrace(trajectory, q, value, rho, 0.9, 0.8)
    average = reference.average((0.1, 0.5, 0.7), (returns - value[:-1])[trajectory.valid])
    steps = np.argwhere(np.asarray(trajectory.valid))
    assert len(steps) < T * B
    from_own = np.mean([muesli.kl(made[t, b], own[t, b]) for t, b in steps])
    from_prior = np.mean([muesli.kl(made[t, b], prior[t, b]) for t, b in steps])
    np.testing.assert_allclose((rest, change), (from_own, from_prior), rtol=1e-6)
    for t, b in steps:
        advantage = q[t, b] - value[t, b]
        advantage[trajectory.action[t, b]] = returns[t, b] - value[t, b]
        expected = muesli.cmpo(prior[t, b], reference.normalise(average, advantage), 1.0)
        np.testing.assert_allclose(made[t, b], expected, rtol=1e-8)


@pytest.mark.parametrize("num_actions", [2, 5])
def test_what_is_made_up_is_what_the_rule_takes(num_actions):
    make = functools.partial(policy_fitting.make_up_for_disco, config=SMALL, num_actions=num_actions, batch_size=256)
    state, trajectory, predictions, slow = jax.jit(make)(jax.random.key(0))
    check_trajectory(trajectory)
    assert not bool(trajectory.valid.all()) and bool(trajectory.is_first[1:].any())
    for made in (predictions, slow):
        check_predictions(made, disco(SMALL).spec(num_actions), trajectory)
    assert float(jnp.abs(state.lifetime.hidden).max()) > 0
    assert 0 < float(jnp.abs(predictions["policy"] - slow["policy"]).mean()) < float(jnp.abs(slow["policy"]).mean())


@pytest.mark.long
def test_a_fit_explains_most_and_nothing_is_explained_before(monkeypatch):
    monkeypatch.setattr(fitting, "NUM_UPDATES", 800)
    monkeypatch.setattr(policy_fitting, "NUM_ACTIONS", (3,))
    meta_params = jax.jit(functools.partial(policy_fitting.fit, SMALL))(jax.random.key(0))
    made_up = policy_fitting.make_up_for_disco(jax.random.key(1), SMALL, 3, batch_size=64)
    random = disco(SMALL).random_meta_params(jax.random.key(0), 3)
    before, after = (policy_fitting.agreement(SMALL, x, made_up) for x in (random, meta_params))
    assert before.explained < 0 and 0.8 < after.explained < 1
    assert 0.7 < after.size < 1.3 and before.cosine < 0.5 < 0.9 < after.cosine < 1 and before.change == after.change


def test_a_rule_without_q_is_refused():
    config = dataclasses.replace(SMALL, without=("q",))
    with pytest.raises(ValueError, match="^without is q, expected it not to have q: cmpo is made of q$"):
        policy_fitting.fit(config, jax.random.key(0))
