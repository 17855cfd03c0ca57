"""What is said of predictions has known answers: no look across episodes, and gradients."""

import math
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.analyses import predictions
from experiments.runs import loaded_agent
from frodo.rules.files import load_rule
from tests.experiments.analyses.small_agents import experience, fresh, small
from tests.trajectories import random_trajectory


def rule_inputs(agent, trajectory):
    return jax.jit(lambda trajectory: loaded_agent.rule_inputs(agent, trajectory))(trajectory)


def test_confidence_is_from_zero_to_one():
    agent = fresh(small())
    trajectory, _ = experience(9, 3, agent)
    found = predictions.confidence(agent, trajectory)
    for name in ("y_confidence", "z_confidence"):
        assert found[name].shape == (9, 3) and (found[name] > -1e-6).all() and (found[name] < 1).all()
    logits = agent.learner.setup.agent.unroll(agent.agent.params, trajectory)["z"][4, 1, trajectory.action[4, 1]]
    p = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
    assert found["z_confidence"][4, 1] == pytest.approx(1 + (p * np.log(p)).sum() / math.log(8), abs=1e-5)


def test_targets_do_not_move_across_an_episode_end():
    agent = fresh(small())
    num_steps = 8
    trajectory, _ = experience(num_steps, 4, agent)
    no = jnp.zeros((num_steps, 4), bool)
    trajectory = trajectory._replace(
        discount=jnp.ones((num_steps, 4)).at[3, 0].set(0.0),
        truncated=no.at[5, 1].set(True),
        valid=~no.at[2, 2].set(True),
    )
    seen, own, slow = rule_inputs(agent, trajectory)
    moved = predictions.moves(agent.learner.setup.rule, agent.meta_params, agent.agent.rule_state, seen, own, slow)
    is_last, valid = np.array(trajectory.is_last), np.array(trajectory.valid)
    for name, x in moved.items():
        assert x.shape == (num_steps, num_steps, 4)
        for s, t, b in np.ndindex(x.shape):
            if s < t - 1 or is_last[t:s, b].any() or not valid[max(s, t), b]:
                assert x[s, t, b] == 0, (name, s, t, b)
            elif s - t < 2 and name != "policy":
                assert x[s, t, b] > 0, (name, s, t, b)  # also where step s ends an episode


def test_disco103_bootstraps_and_does_not_look_past_an_episode_end():
    if not os.environ.get("DISCO103_WEIGHTS"):
        pytest.skip("DISCO103_WEIGHTS does not name the published weights")
    published = load_rule("disco103")
    rule = published.update_rule
    num_steps, batch_size, ends = 6, 2, 3
    trajectory = jax.tree.map(lambda x: x[:, :batch_size], random_trajectory(0, num_steps, 3))
    no = np.zeros((num_steps, batch_size), bool)
    discount = np.ones((num_steps, batch_size), np.float32)
    discount[ends, 0] = 0.0
    trajectory = trajectory._replace(discount=discount, truncated=no, valid=~no)
    rng = np.random.default_rng(1)
    shapes = {"policy": (3,), "y": (600,), "z": (3, 600), "q": (3, 601), "aux_policy": (3, 3)}
    logits = lambda: {
        k: jnp.asarray(rng.normal(size=(num_steps + 1, batch_size, *x)), jnp.float32) for k, x in shapes.items()
    }
    moved = predictions.moves(rule, published.meta_params, rule.init(), trajectory, logits(), logits())
    for s, t, b in np.ndindex(num_steps, num_steps, batch_size):
        if s < t - 1 or (b == 0 and t <= ends < s):
            assert moved["z"][s, t, b] == 0, (s, t, b)
        elif s - t < 3:
            assert moved["z"][s, t, b] > 1e-9, (s, t, b)


def test_the_horizon_is_a_mean_over_pairs_of_one_episode():
    agent = fresh(small())
    trajectory, _ = experience(12, 3, agent)
    found = predictions.horizon(agent, trajectory, 9)
    seen, own, slow = jax.tree.map(lambda x: x[3:], rule_inputs(agent, trajectory))
    moved = predictions.moves(agent.learner.setup.rule, agent.meta_params, agent.agent.rule_state, seen, own, slow)
    is_last = np.array(seen.is_last)
    for name, x in found.items():
        assert x.shape == (8, 3) and np.isnan(x[3:]).all()  # an episode has four steps
        for k, b in np.ndindex(3, 3):
            pairs = [moved[name][t + k, t, b] for t in range(9 - k) if not is_last[t : t + k + 1, b].any()]
            assert x[k, b] == pytest.approx(np.mean(pairs), rel=1e-3, abs=1e-12)
            assert name == "policy" or x[k, b] > 0
