"""The population regime: one agent is the online regime, devices and processes change nothing, lifetimes end."""

import dataclasses
import functools
import operator
import os
import socket
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from agents.acting import in_jax as acting
from agents.acting.in_jax import Actor
from agents.acting.replay import ReplayConfig
from agents.networks.agent import NetworkConfig
from frodo.regimes.learner import build_learner
from frodo.regimes.lifetimes import make_online_program
from frodo.settings.config import AgentConfig, make_setup
from frodo.settings.registry import RuleConfig
from meta.targets.disco import DiscoConfig
from meta.targets.scalar import FrodoConfig
from meta.updates import population
from meta.updates.experience import make_lifetime
from meta.updates.optimizers import OptimizerConfig, adam
from meta.updates.outer import OuterConfig
from meta.updates.population import AXIS, make_population_agent
from toy_envs.catch import Catch

DISCO = DiscoConfig(prediction_size=4, max_value=2, lstm=4, lifetime_lstm=3)
WHOLE = AgentConfig(
    gradient_mode="reverse",
    batch_size=3,
    unroll=4,
    validation_unroll=5,
    num_updates=2,
    rule=RuleConfig("frodo", FrodoConfig(lstm=4, discount=0.9)),
    outer=OuterConfig(discount=0.9),
    network=NetworkConfig("mlp", (5,)),
    optimizer=OptimizerConfig(1e-2, epsilon=1e-3),
    meta_optimizer=OptimizerConfig(1e-2, epsilon=1e-3, max_gradient_norm=1.0),
)
CONFIG = WHOLE.replace(num_updates=1)  # half as much to compile
ENVIRONMENT = Catch(4, 3)


def population_agent(config: AgentConfig, budgets=(10**6,)):
    """What an agent is made of, and its functions."""
    setup = make_setup(config, 3)
    lifetime = make_lifetime(config, setup, 3, is_meta=True)
    actor, meta_optimizer = Actor(ENVIRONMENT, setup.agent, setup.rule.policy), config.meta_optimizer.make()
    return setup, make_population_agent(lifetime, actor, meta_optimizer, budgets, config.num_env_steps(is_meta=True))


def begin(config: AgentConfig, num: int, **settings):
    agent, draw = drawn(config, num, **settings)
    return agent, *jax.jit(draw)()


def drawn(config: AgentConfig, num: int, **settings):
    """An agent's functions, and one that draws η and the states of so many agents [num, ...]."""
    setup, agent = population_agent(config, **settings)

    def draw():
        meta_params = setup.rule.random_meta_params(jax.random.key(9), 3)
        keys = jax.random.split(jax.random.key(0), num)
        actors = jax.vmap(lambda key: acting.init_actor(ENVIRONMENT, setup.agent, key, config.batch_size))(keys)
        return meta_params, jax.vmap(agent.init, in_axes=(0, None, 0))(keys, meta_params, actors)

    return agent, draw


def group_step(agent, num_devices=1, is_vmapped=False):
    mesh = jax.make_mesh((num_devices,), (AXIS,), (jax.sharding.AxisType.Auto,), devices=jax.devices()[:num_devices])
    return jax.jit(population.make_group_step(agent, mesh, is_vmapped))


def renewing_step(agent):
    """A meta-step as programs take it: lifetimes that are over begin again."""
    step = group_step(agent)
    mesh = jax.make_mesh((1,), (AXIS,), (jax.sharding.AxisType.Auto,), devices=jax.devices()[:1])
    renew = jax.jit(population.make_group_renew(agent, mesh))

    def run(meta_params, states):
        states, output = step(meta_params, states)
        assert output.num_over == output.is_over.sum()
        return renew(states, output.is_over), output

    return run


@pytest.mark.parametrize(
    "settings", [{"is_acting_interleaved": True}, pytest.param({"stride": 1}, marks=pytest.mark.long)]
)
def test_one_agent_of_one_lifetime_is_the_online_regime(settings):
    config = WHOLE.replace(**settings)
    program = make_online_program(build_learner(config, ENVIRONMENT.num_actions), ENVIRONMENT)
    online = jax.jit(program.init)(jax.random.key(0))
    agent, meta_params, states = begin(config, 1)
    own = dict(lifetime=online.learner.lifetime, actor=online.actor)
    states = states._replace(**jax.tree.map(lambda x: x[None], own))
    meta_params = online.learner.meta_params
    step, run = group_step(agent), jax.jit(program.run, static_argnums=1)
    for _ in range(3):
        states, output = step(meta_params, states)
        meta_params, _ = population.apply_updates(meta_params, [output.update], [output.weight], None, ())
        online, expected, _ = run(online, 1)
        for name in ("meta_gradient_norm", "outer_loss", "episodes", "return_sum"):
            np.testing.assert_allclose(output.metrics[name][0], expected[name][0], rtol=1e-5)
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-7), meta_params, online.learner.meta_params
    )
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-7),
        jax.tree.map(lambda x: x[0], states.lifetime.acting.params),
        online.learner.params,
    )


def test_side_by_side_is_one_after_another_and_the_mean_is_over_agents():
    agent, meta_params, states = begin(CONFIG, 3)
    after, output = group_step(agent)(meta_params, states)
    vmapped_after, vmapped = group_step(agent, is_vmapped=True)(meta_params, states)
    close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6)
    jax.tree.map(close, output, vmapped)
    jax.tree.map(close, after.lifetime.agent.params, vmapped_after.lifetime.agent.params)
    assert output.weight == 3 and output.num_over == 0
    assert output.is_finite.tolist() == [True] * 3 and output.is_over.tolist() == [False] * 3
    step = jax.jit(agent.step)
    alone = [step(meta_params, jax.tree.map(operator.itemgetter(i), states))[1].update for i in range(3)]
    jax.tree.map(lambda x, *xs: close(x, sum(xs)), output.update, *alone)
    moved, _ = population.apply_updates(meta_params, [output.update], [output.weight], None, ())
    jax.tree.map(lambda x, old, *xs: close(x, old + sum(xs) / 3), moved, meta_params, *alone)


def test_one_optimiser_for_all_takes_the_mean_of_the_gradients():
    optimizer = optax.sgd(2.0)
    moved, _ = population.apply_updates({"x": 1.0}, [{"x": 3.0}, {"x": 5.0}], [1.0, 3.0], optimizer, optimizer.init({}))
    assert moved == {"x": 1.0 - 2.0 * 8 / 4}


def test_an_agent_that_is_not_finite_is_made_anew_and_touches_nothing():
    agent, meta_params, states = begin(CONFIG, 2)
    is_second = lambda x: x.at[1].set(jnp.nan) if jnp.issubdtype(x.dtype, jnp.floating) else x
    broken = states.lifetime.agent._replace(params=jax.tree.map(is_second, states.lifetime.agent.params))
    spoilt = states._replace(lifetime=states.lifetime._replace(agent=broken))
    step = renewing_step(agent)
    after, output = step(meta_params, spoilt)
    assert (
        output.weight == 1 and output.is_finite.tolist() == [True, False] and output.is_over.tolist() == [False, True]
    )
    _, alone = jax.jit(agent.step)(meta_params, jax.tree.map(lambda x: x[0], states))
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-7), output.update, alone.update)
    assert after.num_resets.tolist() == [0, 1] and after.num_lifetimes.tolist() == [1, 2]
    assert all(bool(jnp.isfinite(x).all()) for x in jax.tree.leaves(after.lifetime.agent.params))
    assert after.meta_opt_state[1].nu["target_network/lstm"]["w"][1].any() == 0  # its optimiser did not move
    assert step(meta_params, after)[1].weight == 2


def test_an_agent_that_waits_for_its_replay_has_no_part_in_eta():
    config = CONFIG.replace(replay=ReplayConfig(6, 6, 0.5), meta_optimizer=adam(1e-3))  # full after 2
    agent, meta_params, states = begin(config, 1, budgets=(5 * config.num_env_steps(is_meta=True),))
    step = renewing_step(agent)
    sizes, weights, counts = [], [], []
    for _ in range(7):
        states, output = step(meta_params, states)
        sizes.append(float(optax.tree.norm(output.update)))
        weights.append(float(output.weight))
        counts.append(int(optax.tree.get(states.meta_opt_state, "count")[0]))
    is_learning = [0, 1, 1, 1, 1, 0, 1]  # a new lifetime after five
    assert weights == is_learning and counts == np.cumsum(is_learning).tolist()
    assert [size > 0 for size in sizes] == [weight > 0 for weight in weights]
    optimizer = optax.adam(1.0)
    state = optimizer.init(meta_params)
    _, state = population.apply_updates(meta_params, [meta_params], [1.0], optimizer, state)
    zeros = jax.tree.map(jnp.zeros_like, meta_params)
    moved, after = population.apply_updates(meta_params, [zeros], [0.0], optimizer, state)
    jax.tree.map(np.testing.assert_array_equal, (moved, after), (meta_params, state))


def test_an_agent_on_the_host_begins_anew_with_keys_that_its_actor_does_not_take():
    used = []
    setup = make_setup(CONFIG, 3)
    lifetime = make_lifetime(CONFIG, setup, 3, is_meta=True)
    real, data = lifetime.init, lambda keys: [tuple(x) for x in np.asarray(jax.random.key_data(keys)).reshape(-1, 2)]
    lifetime = lifetime._replace(init=lambda *keys, **_: used.extend(keys[:2]) or real(*keys))
    agent = make_population_agent(lifetime, None, optax.identity(), (10**6,), 1)
    observation = jax.vmap(ENVIRONMENT.init)(jax.random.split(jax.random.key(1), 3))[1].observation
    meta_params = setup.rule.random_meta_params(jax.random.key(9), 3)
    state = agent.init(jax.random.key(0), meta_params, observation)
    used.clear()
    after = agent.renew(state, observation)
    ours = {key for one in (*used, after.key) for key in data(one)}
    assert len(ours) == 3
    assert not ours & set(data(jax.random.split(state.key, 2)))


@pytest.mark.long
def test_lifetimes_end_with_their_budget_and_budgets_are_drawn_inversely():
    rule = RuleConfig("disco", dataclasses.replace(DISCO, without=("y_z", "aux_policy")))
    config = CONFIG.replace(replay=ReplayConfig(6, 3, 0.4), rule=rule)
    steps = 3 * (4 + 5)
    agent, meta_params, states = begin(config, 200, budgets=(2 * steps, 8 * steps))
    share = float(np.mean(np.asarray(states.budget) == 2 * steps))
    assert 0.7 < share < 0.9  # 1/2 against 1/8
    state = jax.tree.map(lambda x: x[int(np.argmin(states.budget))], states)
    step = jax.jit(agent.step)
    first, output = step(meta_params, state)
    assert not output.is_over and first.num_steps == steps and first.lifetime.replay.num_added == 3
    second, output = step(meta_params, first)
    assert output.is_over and output.is_finite
    second = jax.jit(agent.renew)(second)
    renewed = second.lifetime.agent
    assert second.num_lifetimes == 2 and second.num_resets == 0
    assert (
        second.num_steps == 0
        and second.lifetime.replay.num_added == 0
        and renewed.rule_state.lifetime.hidden.any() == 0
    )
    assert bool(second.actor.time_step.is_first.all()) and renewed.outer_state.opt_state[0].count == 0
    differs = jax.tree.map(lambda x, y: bool((x != y).any()), state.lifetime.agent.params, renewed.params)
    assert any(jax.tree.leaves(differs))  # drawn anew
    assert second.meta_opt_state[1].nu["target_network/lstm"]["w"].any()  # η's optimiser goes on


DEVICES = """
import sys
import jax
if len(sys.argv) > 2:
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(sys.argv[2], 2, int(sys.argv[3]), initialization_timeout=60)
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from tests.meta.updates.test_population import WHOLE, drawn, group_step, AXIS
agent, draw = drawn(WHOLE, 8)
assert len(jax.devices()) == 8
shard = NamedSharding(jax.make_mesh((8,), (AXIS,), (jax.sharding.AxisType.Auto,)), PartitionSpec(AXIS))
meta_params, states = jax.jit(draw, out_shardings=(NamedSharding(shard.mesh, PartitionSpec()), shard))()
_, output = group_step(agent, 8)(meta_params, states)
assert float(output.weight) == 8
if jax.process_index() == 0:
    np.savez(sys.argv[1], *map(np.asarray, jax.tree.leaves(output.update)))
"""


@pytest.mark.long
def test_eight_devices_and_two_processes_of_four_give_the_meta_gradient_of_one(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"

    def start(name: str, devices: int, *arguments: str) -> subprocess.Popen:
        environment = os.environ | {"JAX_NUM_CPU_DEVICES": str(devices)}
        command = [sys.executable, "-c", DEVICES, tmp_path / f"{name}.npz", *arguments]
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    processes = [start("eight", 8), start("two", 4, address, "0"), start("two", 4, address, "1")]
    agent, meta_params, states = begin(WHOLE, 8)
    alone = jax.jit(lambda m, s: jax.lax.map(lambda x: agent.step(m, x)[1].update, s))(meta_params, states)
    for process in processes:
        output, _ = process.communicate(timeout=300)
        assert process.returncode == 0, output
    for name in ("eight", "two"):
        with np.load(tmp_path / f"{name}.npz") as file:
            for x, y in zip(file.values(), map(np.asarray, jax.tree.leaves(alone)), strict=True):
                np.testing.assert_allclose(x, y.sum(0), rtol=1e-5, atol=1e-5 * np.abs(y).max())


@pytest.mark.parametrize("mode", ["reverse", pytest.param("mixed", marks=pytest.mark.long)])
def test_a_population_of_disco_learns_from_finite_gradients(mode):
    config = WHOLE.replace(
        gradient_mode=mode,
        num_updates=2 if mode == "mixed" else 1,
        rule=RuleConfig("disco", DISCO),
        outer=OuterConfig(is_advantage_normalised=True),
        network=NetworkConfig("mlp", (5,), action_model=4, head_stddev=0.01),
        optimizer=adam(1e-2),
    )
    agent, meta_params, states = begin(config, 2)
    _, output = group_step(agent)(meta_params, states)
    assert output.weight == 2
    used = {name for name, own in output.update.items() if any(bool(x.any()) for x in own.values())}
    assert used >= {"target_network/y", "target_network/z", "target_network/policy", "target_network/lifetime_scale"}
