"""Lifetimes by several rules, on one device or split over all that there are: `test_split.py` compares them.

    python -m tests.frodo.split_lifetimes FOLDER NAME...
    python -m tests.frodo.split_lifetimes FOLDER NAME... PROCESS COORDINATOR    as one of two processes

Writes FOLDER/<name>.npz: a name is a rule, or <rule>_host for what it learns from a host's trajectories, or one of
`ADAPTING`; checks that environments are split and all else is on every device.
"""

import dataclasses
import sys

import jax
import jax.numpy as jnp
import numpy as np

from agents import splitting
from agents.acting.on_host import HostActor
from agents.acting.replay import ReplayConfig
from agents.environments.host import HostEnvironment, first_step
from agents.networks.agent import NetworkConfig
from frodo.devices import gather, quick_to_compile
from frodo.regimes.learner import build_learner, split
from frodo.regimes.lifetimes import make_host_learn, make_online_program, of_all_actors
from frodo.settings import presets
from meta.updates.curriculum import CurriculumConfig
from meta.updates.experience import jit_in_place
from meta.updates.optimizers import adam
from tests.trees import leaves
from toy_envs.base import host_time_step
from toy_envs.catch import Catch
from toy_envs.rule_room import RuleRoom
from toy_envs.trials import Trials

ITERATIONS = 3
TINY = {"batch_size": 8, "unroll": 4, "network": NetworkConfig("mlp", (4,))}


MEMORY = {
    "batch_size": 8,
    "network": NetworkConfig("mlp", (32,), core=8, core_heads=2, core_layers=1, memory=5),
    # With a smaller epsilon, the rounding of gradients near 0 becomes whole steps.
    "optimizer": dataclasses.replace(adam(3e-3), epsilon=1e-2),
}
ADAPTING = {  # agents with a memory, in trials
    "lstm": ("impala", MEMORY),
    "transformer": ("impala", MEMORY | {"network": dataclasses.replace(MEMORY["network"], core_kind="transformer")}),
    "muesli": ("muesli", MEMORY | {"network": dataclasses.replace(MEMORY["network"], action_model=3)}),
    "plr": ("impala", MEMORY | {"curriculum": CurriculumConfig("plr", num_train=2, capacity=8)}),
}
TRIALS = Trials(RuleRoom("easy", 16), 2)


def config_of(rule):
    """Episodes of Catch(4, 3) are three steps long: they end inside of trajectories."""
    if rule in ADAPTING:
        rule, settings = ADAPTING[rule]
        return presets.for_rule("trials/2/toy/rule_room/easy", rule).replace(**settings)
    if rule == "dqn":
        replay = ReplayConfig(capacity=64, batch_size=8, fresh=0.0)
        own = presets.for_rule("toy/catch", rule)
        return own.replace(**TINY | {"unroll": 1, "replay": replay}, rule=own.rule.replace(target_period=2))
    base, _, is_replaying = rule.partition("_")
    config = presets.for_rule("toy/catch", base).replace(**TINY)
    if rule == "impala":
        return config.replace(replay=ReplayConfig(16, 8, 0.5))
    if rule == "ppo":
        return config.replace(epochs=2, minibatches=2)
    if rule == "frodo":  # with a window, whose trajectories are kept
        tiny = config.rule.replace(lstm=3)
        return config.replace(rule=tiny, validation_unroll=4, num_updates=2, stride=1, gradient_mode="mixed")
    tiny = config.rule.replace(lstm=3, lifetime_lstm=2, prediction_size=3, max_value=2)
    outer = dataclasses.replace(config.outer, value_hidden=(3,))
    network = dataclasses.replace(TINY["network"], action_model=3)
    others = dict(validation_unroll=4, num_updates=1, replay=ReplayConfig(), gradient_mode="reverse")
    if is_replaying:  # as DiscoRL's discovery: a sliding window, of trajectories that are replayed in part
        others |= dict(num_updates=2, stride=1, replay=ReplayConfig(16, 8, 0.5))
    return config.replace(rule=tiny, outer=outer, network=network, **others)


def lifetime(rule, num_devices=0):
    """Return the state after some iterations, and their metrics."""
    environment = TRIALS if rule in ADAPTING else Catch(4, 3)
    program = make_online_program(build_learner(config_of(rule), environment.num_actions), environment)
    over = splitting.over(num_devices)
    init = jax.jit(program.init, compiler_options=quick_to_compile())
    run = jax.jit(program.run, static_argnums=1, compiler_options=quick_to_compile())
    return over(run)(over(init)(jax.random.key(0)), ITERATIONS)[:2]


def acted(learner):
    """What a host actor hands over in some iterations of one θ: scripted observations, rewards and ends."""
    environment = Scripted(TINY["batch_size"])
    params = learner.setup.acting_params(state_on_host(learner).agent)
    schedule = learner.config.schedule(learner.is_meta)
    if not learner.is_meta:  # of three iterations that are handed over at once the last is not learned from
        schedule = schedule._replace(num_trajectories=3 * schedule.num_trajectories)
    how = (environment, learner.setup.agent, learner.setup.rule.policy, schedule, params, jax.random.key(1))
    with HostActor(*how) as actor:
        return [actor.get() for _ in range(ITERATIONS)]


def state_on_host(learner):
    observation = jnp.zeros((TINY["batch_size"], *Scripted.observation_shape))
    return split(jax.jit(learner.init)(jax.random.key(0), observation))


def lifetime_on_host(rule, num_devices=0):
    """Return the state after some iterations of what a host acted, of which each process has its part, and metrics."""
    learner = build_learner(config_of(rule), Scripted.num_actions)
    size = TINY["batch_size"] // jax.process_count()
    part = range(jax.process_index() * size, (jax.process_index() + 1) * size)
    over = splitting.over(num_devices)
    learn = jit_in_place(make_host_learn(learner), compiler_options=quick_to_compile())
    learn_of_all = over(lambda state, own: learn(state, *of_all_actors(own), 1 + (not learner.is_meta)))
    state, metrics = over(lambda: state_on_host(learner))(), []
    for one in acted(learner):
        of_part = lambda trajectory, axis: (
            trajectory and jax.tree.map(lambda x: np.take(x, part, axis), trajectory._replace(core_state=()))
        )
        own = one._replace(trajectories=of_part(one.trajectories, 2), validation=of_part(one.validation, 1))
        state, found, _ = learn_of_all(state, own)
        metrics.append(found)
    return state, metrics


class Scripted(HostEnvironment):
    """Rewards that the action decides, and ends by termination and by time, at times of each environment's own."""

    observation_shape, observation_dtype, num_actions = (2,), np.dtype(np.float32), 3

    def __init__(self, num_envs):
        self.num_envs, self.t, self.number = num_envs, 0, np.arange(num_envs)

    def reset(self):
        return first_step(self._observation())

    def _observation(self):
        return np.stack([np.sin(self.t + self.number), np.cos(self.t * self.number)], axis=-1).astype(np.float32)

    def step(self, actions):
        self.t += 1
        is_first = (self.t + self.number) % 5 == 1  # the step before ended the episode
        is_over = (self.t + self.number) % 5 == 0
        return host_time_step(
            observation=self._observation(),
            reward=np.where(is_first, 0, actions - self.number % 3).astype(np.float32),
            discount=np.where(is_over & (self.number % 2 == 0), 0, 1).astype(np.float32),
            truncated=is_over & (self.number % 2 == 1),
            valid=~is_first,
            is_first=is_first,
        )

    def close(self):
        pass


def check_is_split(state, num_devices):
    """Every device has its environments and its part of the experience, and θ, η and optimisers are on all of them."""
    actor = state.actor
    assert num_parts(actor.key) == 1
    of_actor = (actor.env_state, actor.time_step, actor.core_state, actor.episode_return)
    assert {num_parts(x) for x in jax.tree.leaves(of_actor)} == {num_devices}
    check_learner_is_split(state.learner, num_devices)


def check_learner_is_split(state, num_devices):
    lifetime = state.lifetime
    experience = [lifetime.kept, *(own.trajectories for own in (lifetime.replay, lifetime.window) if own != ())]
    whole = (lifetime.agent, state.meta_params, state.meta_opt_state)
    assert {num_parts(x) for x in jax.tree.leaves(whole)} == {1}
    assert {num_parts(x) for x in jax.tree.leaves(experience)} <= {num_devices}


def num_parts(x):
    return len({str(indices) for indices in x.sharding.devices_indices_map(x.shape).values()})


def main(folder, *names):
    num_devices = jax.device_count()
    assert num_devices == 8
    for name in names:
        if name.endswith("_host"):
            state, metrics = lifetime_on_host(name.removesuffix("_host"), num_devices)
            check_learner_is_split(state, num_devices)
        else:
            state, metrics = lifetime(name, num_devices)
            check_is_split(state, num_devices)
        whole = gather((state, metrics))
        if not jax.process_index():
            np.savez(f"{folder}/{name}.npz", *leaves(whole))


if __name__ == "__main__":
    arguments = sys.argv[1:]
    if ":" in arguments[-1]:
        *arguments, process, address = arguments
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(address, 2, int(process), coordinator_bind_address=address)
    main(*arguments)
