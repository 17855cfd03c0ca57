"""Plans: what they say of a program beside the program that runs, shares of devices, hours, and what does not fit."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from agents.environments.names import make_environment
from frodo.regimes import plan
from frodo.regimes.learner import build_learner
from frodo.regimes.lifetimes import make_online_program
from frodo.regimes.plan import Costs, Plan, Program, costs_of, describe, flops_of, plan_online, plan_population
from frodo.settings import population_presets, presets
from tests.frodo.test_population import tiny

SMALL = {"batch_size": 4, "unroll": 2, "validation_unroll": 3, "num_updates": 2}


def small_online():
    config = presets.for_rule("toy/catch/5x5", "frodo").replace(**SMALL)
    network = dataclasses.replace(config.network, hidden=(64, 64))
    return config.replace(rule=config.rule.replace(lstm=4), network=network)


def close(planned: Costs, compiled):
    memory = compiled.memory_analysis()
    assert planned.arguments == memory.argument_size_in_bytes
    besides = memory.temp_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
    assert planned.temporary == pytest.approx(besides, rel=0.1)


def test_products_count_as_often_as_their_loops_are_taken():
    def fn(weights, xs):
        def outer(h, x):
            inner = lambda h, _: (jnp.tanh(h @ weights), None)
            return jax.lax.scan(inner, h + x, None, length=5)[0], None

        h, _ = jax.lax.scan(outer, xs[0], xs)
        h @ weights  # which nothing needs
        return jax.lax.cond(h.sum() > 0, lambda: h @ weights, lambda: h)

    costs = costs_of(fn, jax.ShapeDtypeStruct((64, 64), "float32"), jax.ShapeDtypeStruct((7, 32, 64), "float32"))
    assert costs.flops == (7 * 5 + 1) * 2 * 32 * 64 * 64
    assert costs.arguments == 4 * (64 * 64 + 7 * 32 * 64) and costs.temporary >= 4 * 32 * 64


@pytest.mark.parametrize("is_convolution", [False, True])
def test_without_loops_xla_counts_the_same(is_convolution):
    def convolve(images, kernel):
        dimensions = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(images, kernel, (1, 1), "VALID", dimension_numbers=dimensions)

    fn = convolve if is_convolution else lambda x, weights: x @ weights @ weights.T
    of = jax.grad(lambda *x: fn(*x).sum(), argnums=(0, 1)) if not is_convolution else fn
    shapes = ((2, 12, 12, 8), (3, 3, 8, 16)) if is_convolution else ((128, 256), (256, 512))
    traced = jax.jit(of).trace(*(jax.ShapeDtypeStruct(shape, "float32") for shape in shapes))
    xla = traced.lower().compile().cost_analysis()
    assert flops_of(traced.jaxpr) == pytest.approx(xla["flops"], rel=0.01)


@pytest.mark.long
def test_a_plan_online_is_that_of_the_program_that_runs_and_of_its_loops_unrolled(monkeypatch):
    config = small_online()
    planned = plan_online(config, 1, 1e4)
    make_program = lambda: make_online_program(build_learner(config, 3), make_environment(config.env, 4, 0))
    program = make_program()
    state = jax.jit(program.init)(jax.random.key(0))
    (one,) = planned.programs
    close(one.step, jax.jit(lambda state: program.run(state, 1), donate_argnums=0).lower(state).compile())
    assert one.num_params == sum(x.size for x in jax.tree.leaves(state.learner.params))
    assert one.num_meta_params == sum(x.size for x in jax.tree.leaves(state.learner.meta_params))
    steps = 4 * (2 * 2 + 3)
    assert (planned.env_steps, planned.num_steps) == (steps, 10_000 // steps)
    scan = jax.lax.scan
    monkeypatch.setattr(jax.lax, "scan", lambda *args, unroll=1, **others: scan(*args, unroll=True, **others))
    again = make_program()
    unrolled = jax.jit(lambda state: again.run(state, 1)).lower(state).compile()
    assert one.step.flops == pytest.approx(unrolled.cost_analysis()["flops"], rel=0.25)


@pytest.mark.long
def test_a_plan_of_a_population_is_that_of_the_programs_that_run():
    with tiny("toy/grid_world/1", "toy/grid_world/2", num_updates=2, stride=1) as population:
        planned = plan_population(population._config, ("toy/grid_world/1", "toy/grid_world/2"), 1, 7)
        state = population.init()
        (group,), (one,) = population._groups, planned.programs
        close(one.step, group.step.lower(state.meta_params, state.groups[0]).compile())
    assert (one.num_agents, one.num_on_device, planned.flops) == (2, 2, one.step.flops)
    assert planned.env_steps == 2 * population._config.num_env_steps(is_meta=True) and planned.num_steps == 7


def test_devices_share_agents_and_batches(monkeypatch):
    arguments = []

    def counted(fn, *args, donated=()):
        arguments.append(args)
        return Costs(flops=1.0, arguments=10, temporary=1)

    monkeypatch.setattr(plan, "costs_of", counted)
    config = population_presets.small("frodo")
    envs = ("toy/grid_world/1", "toy/grid_world/2", "toy/grid_world/3", "toy/grid_world/4", *["bsuite/catch/0"] * 3)
    pure, host = plan_population(config, envs, 3, 1).programs
    assert (pure.num_on_device, host.num_on_device) == (2, 1)  # two of three devices divide four agents
    assert jax.tree.leaves(arguments[0][1])[-1].shape == (2,)
    twice = plan_population(config, envs, 2, 1).programs[1]
    assert (twice.num_on_device, twice.step.flops) == (2, 2 * host.step.flops)
    assert twice.step.arguments > host.step.arguments == 10
    with pytest.raises(ValueError, match="there are 8 devices for 7 agents, expected at most as many"):
        plan_population(config, envs, 8, 1)
    half = plan_online(small_online(), 2, 1)
    assert half.env_steps == small_online().num_env_steps(is_meta=True)  # those of the whole batch
    with pytest.raises(ValueError, match="batch_size is 4, expected a multiple of the 3 devices"):
        plan_online(small_online(), 3, 1)
    disco = presets.for_rule("toy/catch/8x8", "disco")
    with pytest.raises(ValueError, match="replay.batch_size is 64, expected a multiple of the 3 devices"):
        plan_online(disco.replace(batch_size=3, replay=dataclasses.replace(disco.replay, capacity=1023)), 3, 1)
    ppo = presets.for_rule("trials/2/toy/rule_room/easy", "ppo").replace(batch_size=8, epochs=2, minibatches=4)
    plan_online(ppo, 4, 1)  # of each minibatch of two environments a device has half a one
    with pytest.raises(ValueError, match="minibatches is 3, expected a divisor of the 8 environments of an update"):
        plan_online(ppo.replace(minibatches=3), 4, 1)


def made(temporary=0) -> Plan:
    return Plan(1, [Program("toy/catch", False, 4, 1, 1, 1, Costs(1e12, 0, temporary))], 100, 3600)


def test_without_the_cpu_there_is_no_plan(monkeypatch):
    def unknown(backend):
        raise RuntimeError(f"Unknown backend {backend}")

    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    monkeypatch.setattr(jax, "local_devices", unknown)
    with pytest.raises(ValueError, match="^JAX_PLATFORMS is cuda, expected one with cpu, such as cuda,cpu"):
        costs_of(lambda x: x, 1.0)


def test_hours_are_those_of_the_peak_and_of_the_utilisation_and_memory_fits_or_not():
    assert made().hours(1e12) == pytest.approx(1.0)
    h100, *_, v5e = describe(made()).splitlines()[-5:]
    assert h100.split() == ["H100", *("0.00101", "0.00337", "0.0149", "0.0498"), "fits"]
    assert v5e.split() == ["TPU", "v5e", "0.00508", "0.0169", "-", "-", "fits"]
    lines = describe(made(int(20e9))).splitlines()[-4:]
    assert [line.rsplit("  ", 1)[1] for line in lines] == ["fits", "fits", "does not fit", "does not fit"]
