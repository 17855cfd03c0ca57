"""Agents read back from run folders."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.runs import loaded_agent, training
from frodo.runs.errors import UsageError
from frodo.runs.folders import RunOptions
from frodo.settings import presets


def small(env, rule, **settings):
    config = presets.for_rule(env, rule)
    network = dataclasses.replace(config.network, hidden=(8,))
    return config.replace(network=network, batch_size=3, unroll=4, validation_unroll=4, **settings)


@pytest.mark.parametrize("env", ["toy/catch", "bsuite/catch/0"])
def test_a_trained_agent_acts_and_is_looked_at(env, tmp_path):
    options = RunOptions((4,), 300, str(tmp_path))
    training.train(small(env, "frodo"), options, experiment="test", name="test")
    agent = loaded_agent.load(tmp_path)
    assert agent.seed == 4
    trajectory, observations = loaded_agent.play(agent, num_steps=12, batch_size=2, seed=1)
    assert observations.shape == trajectory.observation.shape == (13, 2, *observations.shape[2:])
    assert trajectory.discount.shape == (12, 2) and not trajectory.discount.all()
    np.testing.assert_array_equal(trajectory.is_first[0], True)
    clipped, predictions, slow = loaded_agent.rule_inputs(agent, trajectory)
    rule_state = agent.agent.rule_state
    targets, _ = agent.learner.setup.rule.apply(agent.meta_params, rule_state, clipped, predictions, slow)
    assert predictions["policy"].shape == (13, 2, 3) and targets.shape == (12, 2)
    logits = jnp.where(trajectory.valid[..., None], trajectory.behaviour_logits, 0)
    same = jnp.where(trajectory.valid[..., None], predictions["policy"][:-1], 0)
    np.testing.assert_allclose(same, logits, atol=1e-5)  # it acted by what it predicts
    again, _ = loaded_agent.play(agent, num_steps=12, batch_size=2, seed=1)
    np.testing.assert_array_equal(again.action, trajectory.action)


def test_seeds_differ_and_one_that_is_not_there_is_named(tmp_path):
    training.train(small("toy/catch", "impala"), RunOptions((0, 7), 400, str(tmp_path)), experiment="test", name="t")
    first = lambda seed: jnp.ravel(jax.tree.leaves(loaded_agent.load(tmp_path, seed).agent.params)[-1])
    assert not np.allclose(first(0), first(7))
    with pytest.raises(UsageError, match="--seed=3: .* holds 0, 7"):
        loaded_agent.load(tmp_path, 3)


def test_what_is_no_run_is_named(tmp_path):
    with pytest.raises(UsageError, match="holds no run: there is no config.json"):
        loaded_agent.load(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="file holds no run: there is no config.json"):
        loaded_agent.load(tmp_path / "file")
    (tmp_path / "config.json").write_text('{"config": {"env": "toy/catch"}')
    with pytest.raises(UsageError, match="holds no run of an agent"):
        loaded_agent.load(tmp_path)
