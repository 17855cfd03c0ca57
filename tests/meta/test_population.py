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

from agents import acting
from agents.networks import NetworkConfig, make_agent
from agents.replay import ReplayConfig
from frodo.online import OnlineConfig, make_fused
from frodo.rule import RuleConfig, make_outer, make_rule
from meta import population
from meta.disco import DiscoConfig
from meta.optimizers import OptimizerConfig, adam
from meta.population import AXIS, LifetimeConfig
from tests.reference.frodo import FAST_COMPILATION
from toy_envs.catch import Catch

# Most of the time here is the compiler's.
jit = functools.partial(jax.jit, compiler_options=FAST_COMPILATION)
DISCO = DiscoConfig(prediction_size=4, max_value=2, lstm=4, lifetime_lstm=3)
CONFIG = OnlineConfig(
    env="toy/catch",
    batch_size=3,
    unroll=4,
    validation_unroll=5,
    num_updates=2,
    rule=RuleConfig(lstm=4, discount=0.9),
    network=NetworkConfig("mlp", (5,)),
    optimizer=OptimizerConfig(1e-2, epsilon=1e-3),
    meta_optimizer=OptimizerConfig(1e-2, epsilon=1e-3, max_gradient_norm=1.0),
)
ENVIRONMENT = Catch(4, 3)


def member_of(config: OnlineConfig, budgets=(10**6,), environment=ENVIRONMENT):
    rule = make_rule(config.rule)
    spec = rule.spec(3)
    agent = make_agent(config.network, spec, 3)
    lifetime = LifetimeConfig(
        config.batch_size,
        config.unroll,
        config.validation_unroll,
        config.num_updates,
        config.num_fresh(is_meta=True),
        config.is_acting_in_turn,
        config.max_abs_reward,
        "reverse",
        config.replay,
        budgets,
    )
    outer = make_outer(config.rule, config.network, spec)
    optimizers = config.optimizer.make(), config.meta_optimizer.make()
    member = population.make_member(lifetime, environment, agent, rule, optimizers[0], outer, optimizers[1], 3)
    return agent, rule, member


def begin(config: OnlineConfig, num: int, **settings):
    member, draw = drawn(config, num, **settings)
    return member, *jit(draw)()


def drawn(config: OnlineConfig, num: int, **settings):
    """A member, and the function that draws η and its states [num, ...]."""
    agent, rule, member = member_of(config, **settings)

    def draw():
        meta_params = rule.init_meta_params(jax.random.key(9), 3)
        keys = jax.random.split(jax.random.key(0), num)
        actors = jax.vmap(lambda key: acting.init_actor(ENVIRONMENT, agent, key, config.batch_size))(keys)
        return meta_params, jax.vmap(member.init, in_axes=(0, None, 0))(keys, meta_params, actors)

    return member, draw


def group_step(member, num_devices=1, is_vmapped=False):
    mesh = jax.make_mesh((num_devices,), (AXIS,), (jax.sharding.AxisType.Auto,), devices=jax.devices()[:num_devices])
    return jit(population.make_group_step(member, mesh, is_vmapped))


def renewing_step(member, num_devices=1, is_vmapped=False):
    """A meta-step as programs take it: lifetimes that are over begin again."""
    step = group_step(member, num_devices, is_vmapped)
    mesh = jax.make_mesh((1,), (AXIS,), (jax.sharding.AxisType.Auto,), devices=jax.devices()[:1])
    renew = jit(population.make_group_renew(member, mesh))

    def run(meta_params, states):
        states, updates, weight, num_over, metrics = step(meta_params, states)
        assert num_over == metrics["is_over"].sum()
        return renew(states, metrics["is_over"]), updates, weight, metrics

    return run


@pytest.mark.parametrize("settings", [{}, {"is_acting_in_turn": True}, {"stride": 1}])
def test_one_agent_of_one_lifetime_is_the_online_regime(settings):
    config = dataclasses.replace(CONFIG, gradient_mode="reverse", **settings)
    fused = make_fused(config, ENVIRONMENT)
    online = jit(fused.init)(jax.random.key(0))
    member, meta_params, states = begin(config, 1)
    own = dict(agent=online.learner.agent, experience=online.learner.experience, actor=online.actor)
    states = states._replace(**jax.tree.map(lambda x: x[None], own))
    meta_params = online.learner.meta_params
    step, run = group_step(member), jit(fused.run, static_argnums=1)
    for _ in range(3):
        states, updates, weight, _, metrics = step(meta_params, states)
        meta_params, _ = population.apply_updates(meta_params, [updates], [weight], None, ())
        online, expected = run(online, 1)
        for name in ("meta_gradient_norm", "outer_loss", "episodes", "return_sum"):
            np.testing.assert_allclose(metrics[name][0], expected[name][0], rtol=1e-5)
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-7), meta_params, online.learner.meta_params
    )
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-7),
        jax.tree.map(lambda x: x[0], states.agent.params),
        online.learner.agent.params,
    )


def test_side_by_side_is_one_after_another_and_the_mean_is_over_agents():
    member, meta_params, states = begin(CONFIG, 3)
    after, updates, weight, *_ = group_step(member)(meta_params, states)
    vmapped = group_step(member, is_vmapped=True)(meta_params, states)
    close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6)
    jax.tree.map(close, updates, vmapped[1])
    jax.tree.map(close, after.agent.params, vmapped[0].agent.params)
    assert weight == 3
    step = jit(member.step)
    alone = [step(meta_params, jax.tree.map(operator.itemgetter(i), states)) for i in range(3)]
    jax.tree.map(lambda x, *xs: close(x, sum(xs)), updates, *[x[1] for x in alone])
    moved, _ = population.apply_updates(meta_params, [updates], [weight], None, ())
    jax.tree.map(lambda x, old, *xs: close(x, old + sum(xs) / 3), moved, meta_params, *[x[1] for x in alone])


def test_one_optimiser_for_all_takes_the_mean_of_the_gradients():
    optimizer = optax.sgd(2.0)
    moved, _ = population.apply_updates({"x": 1.0}, [{"x": 3.0}, {"x": 5.0}], [1.0, 3.0], optimizer, optimizer.init({}))
    assert moved == {"x": 1.0 - 2.0 * 8 / 4}


def test_an_agent_that_is_not_finite_is_made_anew_and_touches_nothing():
    member, meta_params, states = begin(CONFIG, 2)
    is_second = lambda x: x.at[1].set(jnp.nan) if jnp.issubdtype(x.dtype, jnp.floating) else x
    spoilt = states._replace(agent=states.agent._replace(params=jax.tree.map(is_second, states.agent.params)))
    step = renewing_step(member)
    after, updates, weight, metrics = step(meta_params, spoilt)
    assert weight == 1 and metrics["is_finite"].tolist() == [True, False]
    alone = jit(member.step)(meta_params, jax.tree.map(lambda x: x[0], states))
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-7), updates, alone[1])
    assert after.num_resets.tolist() == [0, 1] and after.num_lifetimes.tolist() == [1, 2]
    assert all(bool(jnp.isfinite(x).all()) for x in jax.tree.leaves(after.agent.params))
    assert after.meta_opt_state[1].nu["target_network/lstm"]["w"][1].any() == 0  # its optimiser did not move
    assert step(meta_params, after)[2] == 2


def test_an_agent_that_waits_for_its_replay_has_no_part_in_eta():
    config = dataclasses.replace(CONFIG, replay=ReplayConfig(12, 12, 0.5), meta_optimizer=adam(1e-3))  # full after 2
    member, meta_params, states = begin(config, 1, budgets=(5 * 3 * (2 * 4 + 5),))
    step = renewing_step(member)
    sizes, weights, counts = [], [], []
    for _ in range(7):
        states, updates, weight, _ = step(meta_params, states)
        sizes.append(float(optax.tree.norm(updates)))
        weights.append(float(weight))
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


def test_lifetimes_end_with_their_budget_and_budgets_are_drawn_inversely():
    config = dataclasses.replace(
        CONFIG, replay=ReplayConfig(6, 3, 0.4), rule=RuleConfig(name="disco", reduction="mean", disco=DISCO)
    )
    steps = 3 * (2 * 4 + 5)
    member, meta_params, states = begin(config, 200, budgets=(2 * steps, 8 * steps))
    share = float(np.mean(np.asarray(states.budget) == 2 * steps))
    assert 0.7 < share < 0.9  # 1/2 against 1/8
    state = jax.tree.map(lambda x: x[int(np.argmin(states.budget))], states)
    step = jit(member.step)
    first, *_, metrics = step(meta_params, state)
    assert not metrics["is_over"] and first.num_steps == steps and first.experience.replay.num_added == 6
    second, *_, metrics = step(meta_params, first)
    assert metrics["is_over"]
    second = jit(member.renew)(second)
    assert second.num_lifetimes == 2 and second.num_resets == 0
    assert (
        second.num_steps == 0
        and second.experience.replay.num_added == 0
        and second.agent.rule_state.lifetime.hidden.any() == 0
    )
    assert bool(second.actor.time_step.is_first.all()) and second.agent.outer_state.opt_state[0].count == 0
    differs = jax.tree.map(lambda x, y: bool((x != y).any()), state.agent.params, second.agent.params)
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
from tests.meta.test_population import CONFIG, begin, drawn, group_step, jit, AXIS
member, meta_params, states = begin(CONFIG, 8)
assert len(jax.devices()) == 8
single = jit(lambda m, s: jax.lax.map(lambda x: member.step(m, x)[1], s))(meta_params, states)
mesh = jax.make_mesh((8,), (AXIS,), (jax.sharding.AxisType.Auto,))
if len(sys.argv) > 2:
    shard = NamedSharding(mesh, PartitionSpec(AXIS))
    states = jit(lambda: drawn(CONFIG, 8)[1]()[1], out_shardings=shard)()
    meta_params = jax.tree.map(np.asarray, meta_params)
_, updates, weight, *_ = group_step(member, 8)(meta_params, states)
assert float(weight) == 8
for x, y in zip(jax.tree.leaves(updates), jax.tree.leaves(single)):
    np.testing.assert_allclose(np.asarray(x), np.asarray(y).sum(0), rtol=1e-5, atol=1e-5 * float(np.abs(y).max()))
print("agree")
"""


def program(*arguments: str, devices: int) -> subprocess.Popen:
    environment = os.environ | {"XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}"}
    command = [sys.executable, "-c", DEVICES, "program", *arguments]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_eight_devices_give_the_meta_gradient_of_one():
    process = program(devices=8)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0 and "agree" in output, output


def test_two_processes_of_four_devices_give_the_meta_gradient_of_one():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    processes = [program(address, str(i), devices=4) for i in range(2)]
    for process in processes:
        output, _ = process.communicate(timeout=300)
        assert process.returncode == 0 and "agree" in output, output


@pytest.mark.parametrize("mode", ["reverse", "mixed"])
def test_a_population_of_disco_learns_from_finite_gradients(mode):
    rule = RuleConfig(name="disco", reduction="mean", is_advantage_normalised=True, disco=DISCO)
    network = NetworkConfig("mlp", (5,), action_model=4, head_stddev=0.01)
    config = dataclasses.replace(CONFIG, gradient_mode=mode, rule=rule, network=network, optimizer=adam(1e-2))
    member, meta_params, states = begin(config, 2)
    after, updates, weight, *_ = group_step(member)(meta_params, states)
    assert weight == 2
    used = {name for name, own in updates.items() if any(bool(x.any()) for x in own.values())}
    assert used >= {"target_network/y", "target_network/z", "target_network/policy", "target_network/lifetime_scale"}
