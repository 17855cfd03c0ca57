"""Populations: threads that act on the host, one optimiser for all, and devices that change nothing."""

import dataclasses
import os
import subprocess
import sys

import jax
import numpy as np
import pytest

from agents.environments.names import make_environment
from frodo.regimes.population import Population
from frodo.settings import population_presets

DEVICES = """
import jax
import numpy as np
from tests.frodo.test_population import tiny
envs = ("toy/catch/4x3", "toy/catch/4x3", "toy/grid_world/1")
def run(envs, num_devices):
    with tiny(*envs, num_devices=num_devices) as population:
        state = population.init()
        population.start(state)
        for _ in range(5):
            state, _ = population.step(state)
        return jax.device_get(state.meta_params)
close = lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6)
jax.tree.map(close, run(envs, 3), run(envs, 1))
run(("toy/catch/4x3", "bsuite/catch/0"), 3)
print("agree")
"""


def tiny(*envs, **settings) -> Population:
    config = population_presets.small("frodo")
    small = {"batch_size": 2, "unroll": 3, "validation_unroll": 3, "num_updates": 1, "budgets": (40,)}
    network = dataclasses.replace(config.network, hidden=(4,))
    config = config.replace(**small, rule=config.rule.replace(lstm=4), network=network).replace(**settings)
    environments = [make_environment(env, 2, i) for i, env in enumerate(envs)]
    return Population(config, environments, jax.random.key(0))


def test_on_the_host_a_new_agent_learns_from_what_it_acted_itself():
    with tiny("bsuite/catch/0", budgets=(10**6,)) as population:
        state = population.init()
        population.start(state)
        host = state.hosts[0]
        spoilt = host._replace(
            lifetime=host.lifetime._replace(agent=jax.tree.map(lambda x: x * np.nan, host.lifetime.agent))
        )
        state = state._replace(hosts=(spoilt,))
        population._actors[0].params = spoilt.lifetime.acting.params
        for _ in range(6):
            state, results = population.step(state)
    assert results[0].metrics["resets"] <= 2  # the one that was spoilt, and one that had been acted for already


def test_agents_on_the_host_with_as_many_actions_share_what_is_compiled():
    envs = ("bsuite/catch/0", "bsuite/catch/1", "bsuite/bandit/0")
    with tiny(*envs, num_devices=1, num_updates=2, stride=1) as population:
        state = population.init()
        population.start(state)
        population.step(state)
    for host in state.hosts:  # the experience was changed in place, what acts was not
        assert host.lifetime.window.trajectories.reward.is_deleted()
        assert not any(x.is_deleted() for x in jax.tree.leaves(host.lifetime.acting))
    first, second, other = (host.functions for host in population._hosts)
    assert first is second and first is not other
    assert first.learn._cache_size() == 1  # type: ignore[attr-defined]


def test_all_agents_on_the_host_begin_to_learn_before_the_first_is_waited_for(monkeypatch):
    order = []
    for name in ("_learn_on_host", "_end_on_host"):
        monkeypatch.setattr(Population, name, recorded(order, name, getattr(Population, name)))
    with tiny("bsuite/catch/0", "bsuite/catch/1") as population:
        state = population.init()
        population.start(state)
        population.step(state)
    assert order == 2 * ["_learn_on_host"] + 2 * ["_end_on_host"]


def recorded(order, name, fn):
    def call(*args):
        order.append(name)
        return fn(*args)

    return call


def test_one_optimiser_for_all_moves_by_its_learning_rate():
    env = "gymnax/CartPole-v1"  # gymnax's environments are pure, too
    with tiny(env, env, is_optimizer_per_agent=False) as population:
        state = population.init()
        before = jax.device_get(state.meta_params)
        after, _ = population.step(state)
    pairs = zip(jax.tree.leaves(before), jax.tree.leaves(after.meta_params), strict=True)
    moved = [np.abs(x - y).max() for x, y in pairs]
    rate = population_presets.small("frodo").meta_optimizer.learning_rate
    assert np.max(moved) == pytest.approx(rate, rel=1e-2)


@pytest.mark.long
def test_groups_of_unlike_size_share_devices_and_compile_once():
    environment = os.environ | {"JAX_NUM_CPU_DEVICES": "3", "JAX_LOG_COMPILES": "1"}
    output = subprocess.run([sys.executable, "-c", DEVICES], env=environment, capture_output=True, text=True)
    assert output.returncode == 0 and "agree" in output.stdout, output.stderr
    # Five groups' meta-steps and their renewals.
    assert output.stderr.count("Finished XLA compilation of jit(share)") == 5 * 2
