"""Agents with DiscoRL's targets that are small and have random weights, and trajectories for them."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from agents.acting.replay import ReplayConfig
from experiments.runs import loaded_agent
from frodo.regimes.learner import Learner
from frodo.settings import presets
from frodo.settings.config import make_setup
from frodo.settings.registry import RuleConfig
from meta.targets.disco import DiscoConfig
from meta.targets.target_network import LifetimeLSTMState
from meta.updates.lifetime import AgentState
from tests.trajectories import random_trajectory

DISCO = DiscoConfig(prediction_size=8, max_value=6, lstm=8, lifetime_lstm=4)


def small(env="toy/catch/5x4", **network):
    config = presets.for_rule(env, "disco")
    sizes = {"hidden": (8,), "action_model": 4, "head_stddev": 0.5, **network}
    return config.replace(
        batch_size=3,
        unroll=6,
        replay=ReplayConfig(),
        is_frozen=True,
        network=dataclasses.replace(config.network, **sizes),
        rule=RuleConfig("disco", DISCO),
    )


def draw(shapes, seed):
    """Random weights of order 1 / sqrt(inputs), without a compilation."""
    rng = np.random.default_rng(seed)
    scaled = lambda x: rng.normal(size=x.shape) / np.sqrt(np.prod(x.shape[:-1]))
    return jax.tree.map(lambda x: jnp.asarray(scaled(x), jnp.float32), shapes)


def fresh(config, observation=(5, 4)):
    """An agent with random θ and η, and a lifetime LSTM that is on its way: at its start its scale is 0."""
    setup = make_setup(config, 3)
    prepared = setup.agent.prepare(jnp.zeros((1, *observation)))
    key = jax.random.key(0)
    shapes = jax.eval_shape(setup.agent.init, key, prepared)
    meta_params = draw(jax.eval_shape(lambda key: setup.rule.random_meta_params(key, 3), key), 2)
    lifetime = LifetimeLSTMState(*(jnp.ones(DISCO.lifetime_lstm),) * 2)
    rule_state = setup.rule.init()._replace(lifetime=lifetime)
    state = AgentState(draw(shapes, 0), (), rule_state, draw(shapes, 1), ())
    learner = Learner(config, setup, *(None,) * (len(Learner._fields) - 2))
    return loaded_agent.LoadedAgent(config, 2, learner, state, meta_params)


def experience(num_steps, batch_size, agent, observation=(5, 4)):
    """Episodes of four steps, and the observations."""
    trajectory = random_trajectory(0, num_steps, max(3, batch_size), observation=observation)
    trajectory = jax.tree.map(lambda x: x[:, :batch_size], trajectory)
    no = np.zeros((num_steps, batch_size), bool)
    is_last = no | (np.arange(num_steps) % 4 == 3)[:, None]
    trajectory = trajectory._replace(discount=1.0 - is_last, truncated=no, valid=~no)
    trajectory = trajectory._replace(core_state=agent.learner.setup.agent.initial_state(batch_size))
    floats = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32 if x.dtype == float else x.dtype), trajectory)
    return floats, np.asarray(floats.observation)
