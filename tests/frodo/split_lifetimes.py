"""Lifetimes by several rules, on one device or split over all that a process has: `test_split.py` compares them.

    python -m tests.frodo.split_lifetimes FOLDER RULE...

Writes FOLDER/<rule>.npz, and checks that environments are split and all else is on every device.
"""

import dataclasses
import sys

import jax
import numpy as np

from agents import splitting
from agents.networks import NetworkConfig
from agents.replay import ReplayConfig
from frodo import presets
from frodo.learner import build_learner
from frodo.online import make_online_program
from tests.trees import leaves
from toy_envs.catch import Catch

ITERATIONS = 3
TINY = {"batch_size": 8, "unroll": 4, "network": NetworkConfig("mlp", (4,))}


def config_of(rule):
    """Episodes of Catch(4, 3) are three steps long: they end inside of trajectories."""
    config = presets.for_rule("toy/catch", rule).replace(**TINY)
    if rule == "impala":
        return config.replace(replay=ReplayConfig(16, 8, 0.5))
    if rule == "ppo":
        return config.replace(epochs=2, minibatches=2)
    if rule == "frodo":  # with a window, whose trajectories are kept
        tiny = config.rule.replace(lstm=3)
        return config.replace(rule=tiny, validation_unroll=4, num_updates=2, stride=1, gradient_mode="mixed")
    tiny = config.rule.replace(lstm=3, lifetime_lstm=0, prediction_size=3, max_value=2)
    outer = dataclasses.replace(config.outer, value_hidden=(3,))
    network = dataclasses.replace(TINY["network"], action_model=3)
    others = dict(validation_unroll=4, num_updates=1, replay=ReplayConfig(), gradient_mode="reverse")
    return config.replace(rule=tiny, outer=outer, network=network, **others)


def lifetime(rule, num_devices=0):
    """Return the state after some iterations, and their metrics."""
    program = make_online_program(build_learner(config_of(rule), 3), Catch(4, 3))
    over = splitting.over(num_devices)
    state = over(jax.jit(program.init))(jax.random.key(0))
    return over(jax.jit(program.run, static_argnums=1))(state, ITERATIONS)[:2]


def check_is_split(state, num_devices):
    """Every device has its environments and its part of the experience, and θ, η and optimisers are on all of them."""
    lifetime, actor = state.learner.lifetime, state.actor
    experience = [actor.env_state, actor.time_step, actor.core_state, actor.episode_return, lifetime.kept]
    experience += [own.trajectories for own in (lifetime.replay, lifetime.window) if own != ()]
    whole = (lifetime.agent, state.learner.meta_params, state.learner.meta_opt_state, actor.key)
    assert {num_parts(x) for x in jax.tree.leaves(whole)} == {1}
    assert {num_parts(x) for x in jax.tree.leaves(experience)} == {num_devices}


def num_parts(x):
    return len({str(indices) for indices in x.sharding.devices_indices_map(x.shape).values()})


def main(folder, *rules):
    num_devices = jax.device_count()
    assert num_devices == 8
    for rule in rules:
        state, metrics = lifetime(rule, num_devices)
        check_is_split(state, num_devices)
        np.savez(f"{folder}/{rule}.npz", *leaves((state, metrics)))


if __name__ == "__main__":
    main(*sys.argv[1:])
