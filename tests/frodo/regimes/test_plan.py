"""Plans: what they say of a program beside the program that runs, shares of devices, hours, and what does not fit."""

import dataclasses
import math
import os
import subprocess
import sys

import jax
import pytest

from agents.environments.names import make_environment
from agents.environments.suites import seen
from frodo.regimes import plan, program_costs
from frodo.regimes.learner import build_learner
from frodo.regimes.lifetimes import make_online_program
from frodo.regimes.plan import Plan, Share, advice, describe, plan_online, plan_population
from frodo.regimes.program_costs import Costs, costs_of_compiled
from frodo.settings import population_presets, presets
from meta.updates.experience import apart
from tests.frodo.test_population import tiny

SMALL = {"batch_size": 4, "unroll": 2, "validation_unroll": 3, "num_updates": 2}


def small_online():
    config = presets.for_rule("toy/catch/5x5", "frodo").replace(**SMALL)
    network = dataclasses.replace(config.network, hidden=(64, 64))
    return config.replace(rule=config.rule.replace(lstm=4), network=network)


def num_bytes(tree):
    return sum(x.nbytes for x in jax.tree.leaves(tree))


def close(planned: Costs, real: Costs):
    for name in ("flops", "moved", "arguments", "temporary"):
        assert getattr(planned, name) == pytest.approx(getattr(real, name), rel=0.1), name


@pytest.mark.long
def test_a_plan_online_is_that_of_the_program_that_runs_and_of_its_loops_unrolled(monkeypatch):
    config = small_online()
    planned = plan_online(config, 1, 1e4)
    program = make_online_program(build_learner(config, 3), make_environment(config.env, 4, 0))
    state = jax.jit(program.init)(jax.random.key(0))
    run = lambda state: program.run(state, 1)
    (share,) = planned.shares
    close(share.step, costs_of_compiled(jax.jit(run, donate_argnums=0).lower(state).compile()))
    assert share.checkpoint == num_bytes(state)
    learner = state.learner
    assert share.num_params == sum(x.size for x in jax.tree.leaves(learner.params))
    assert share.num_meta_params == sum(x.size for x in jax.tree.leaves(learner.meta_params))
    steps = 4 * (2 * 2 + 3)
    assert (planned.env_steps, planned.num_steps) == (steps, 10_000 // steps)
    scan = jax.lax.scan
    monkeypatch.setattr(jax.lax, "scan", lambda *args, unroll=1, **others: scan(*args, unroll=True, **others))
    again = make_online_program(build_learner(config, 3), make_environment(config.env, 4, 0))
    unrolled = jax.jit(lambda state: again.run(state, 1)).lower(state).compile()
    once = unrolled.as_text().replace("known_trip_count", "")
    assert program_costs._count(once)[0] == costs_of_compiled(unrolled).flops  # no product is in a loop any more
    assert share.step.flops == pytest.approx(costs_of_compiled(unrolled).flops, rel=0.1)


@pytest.mark.long
def test_a_plan_of_a_population_is_that_of_the_programs_that_run(monkeypatch):
    monkeypatch.setattr(plan, "_update", lambda *arguments: Costs(1.0, 1.0))
    envs = ("toy/grid_world/1", "toy/grid_world/2", "bsuite/catch/0")
    with tiny(*envs, num_updates=2, stride=1) as population:
        planned = plan_population(population._config, envs, 1, 7)
        state = population.init()
        (group,) = population._groups
        of_group = costs_of_compiled(group.step.lower(state.meta_params, state.groups[0]).compile())
        (host,) = population._hosts
        learner = build_learner(population._config, host.environment.num_actions, False)
        acted = plan.trajectory_shapes(population._config, learner.setup.agent, seen("bsuite/catch/0"), True)
        experience, lifetime = apart(state.hosts[0].lifetime)
        others = state.hosts[0]._replace(lifetime=lifetime)
        learn = host.functions.learn.lower(experience, state.meta_params, others, *acted).compile()
    pure, on_host = planned.shares
    close(pure.step, of_group)
    one, told = costs_of_compiled(learn), on_host.step
    assert told.flops > one.flops and told.arguments == one.arguments
    assert told.temporary == pytest.approx(one.temporary, rel=0.1)
    assert told.outputs - told.aliased == one.outputs - one.aliased and told.aliased == one.aliased > 0
    assert (pure.num_agents, pure.num_on_device, on_host.num_agents) == (2, 2, 1)
    assert pure.checkpoint == num_bytes(state.groups[0]) and on_host.checkpoint == num_bytes(state.hosts[0])
    assert planned.flops == pure.step.flops + on_host.step.flops
    assert planned.arguments == pure.step.arguments + on_host.step.arguments
    assert planned.env_steps == 3 * population._config.num_env_steps(is_meta=True) and planned.num_steps == 7


def test_devices_share_agents_and_batches(monkeypatch):
    arguments = []

    def counted(fn, *args, donated=()):
        arguments.append(args)
        return Costs(flops=1.0, moved=1.0, arguments=10)

    monkeypatch.setattr(plan, "costs_of", counted)
    config = population_presets.small("frodo")
    envs = ("toy/grid_world/1", "toy/grid_world/2", "toy/grid_world/3", "toy/grid_world/4", *["bsuite/catch/0"] * 3)
    planned = plan_population(config, envs, 3, 1)
    pure, host = planned.shares
    assert (pure.num_on_device, host.num_on_device) == (2, 1)  # two of three devices divide four agents
    assert jax.tree.leaves(arguments[0][1])[-1].shape == (2,)
    twice = plan_population(config, envs, 2, 1).shares[1]
    assert (twice.num_on_device, twice.step.flops) == (2, 2 * host.step.flops)
    acted = sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(arguments[2][3:]))
    assert twice.step.arguments == 10 + twice.checkpoint // 2 + acted
    assert planned.told == 4 * 4 * pure.num_meta_params  # a sum of those in pure environments, and one of each device
    with pytest.raises(ValueError, match="there are 8 devices for 7 agents, expected at most as many"):
        plan_population(config, envs, 8, 1)
    half = plan_online(small_online(), 2, 1)
    num_told = 5 * half.shares[0].num_params + 2 * half.shares[0].num_meta_params  # of two updates
    assert arguments[-1][2].action.shape == (1, 2, 2) and half.told == 4 * num_told
    assert half.env_steps == small_online().num_env_steps(is_meta=True)  # those of the whole batch
    with pytest.raises(ValueError, match="batch_size is 4, expected a multiple of the 3 devices"):
        plan_online(small_online(), 3, 1)
    disco = presets.for_rule("toy/catch/8x8", "disco")
    with pytest.raises(ValueError, match="replay.batch_size is 64, expected a multiple of the 3 devices"):
        plan_online(disco.replace(batch_size=3, replay=dataclasses.replace(disco.replay, capacity=1023)), 3, 1)
    ppo = presets.for_rule("trials/2/toy/rule_room/easy", "ppo").replace(batch_size=8, epochs=2, minibatches=4)
    quarter = plan_online(ppo, 4, 1)  # of each minibatch of two environments a device has half a one
    assert quarter.told == 4 * ppo.num_updates * 2 * 4 * quarter.shares[0].num_params
    with pytest.raises(ValueError, match="minibatches is 3, expected a divisor of the 8 environments of an update"):
        plan_online(ppo.replace(minibatches=3), 4, 1)


@pytest.mark.long
@pytest.mark.parametrize("rule", ["impala", "ppo", "frodo", "disco"])
def test_devices_of_a_split_batch_tell_each_other_as_much_as_planned(rule):
    command = [sys.executable, "-m", "tests.frodo.told_by_devices", rule]
    environment = os.environ | {"JAX_NUM_CPU_DEVICES": "2"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    real, planned = map(float, done.stdout.split())
    assert planned == pytest.approx(real, rel=0.1)


def made(config, num_on_device=1, arguments=0, temporary=0) -> Plan:
    step = Costs(flops=1e12, moved=1.0, arguments=arguments, temporary=temporary)
    share = Share("toy/catch", False, 4, num_on_device, 1, 1, step, step, 0)
    return Plan(config, 1, [share], 100, 3600, 0)


def test_without_the_cpu_there_is_no_plan(monkeypatch):
    def unknown(backend):
        raise RuntimeError(f"Unknown backend {backend}")

    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    monkeypatch.setattr(jax, "local_devices", unknown)
    with pytest.raises(ValueError, match="^JAX_PLATFORMS is cuda, expected one with cpu, such as cuda,cpu"):
        program_costs.costs_of(lambda x: x, 1.0)


def test_hours_are_those_of_the_peak_and_of_the_utilisation():
    config = population_presets.small("frodo")
    assert made(config).hours(1e12) == pytest.approx(1.0)
    h100, *_, v5e = describe(made(config)).splitlines()[-5:]
    assert h100.split() == ["H100", *("0.00101", "0.00337", "0.0149", "0.0498"), "fits"]
    assert v5e.split() == ["TPU", "v5e", "0.00508", "0.0169", "-", "-", "fits"]


def test_what_does_not_fit_is_said_with_the_setting_to_change():
    reverse, mixed = population_presets.small("frodo"), population_presets.disco57("disco")
    large = int(20e9)
    lines = describe(made(reverse, temporary=large)).splitlines()[-4:]
    assert [line.rsplit("  ", 1)[1] for line in lines] == [
        *("fits", "fits"),
        *2 * ["does not fit: --config.gradient_mode=mixed"],
    ]
    assert advice(made(mixed, temporary=large)) == "--config.replay.batch_size below 96"
    assert advice(made(mixed, arguments=large)) == "--config.replay.capacity below 1024"
    assert advice(made(mixed, num_on_device=2, arguments=large)) == "--num_devices above 1"
    assert advice(made(reverse, arguments=large)) == "--config.batch_size below 32"
    assert advice(made(reverse.replace(gradient_mode="mixed"), temporary=large)) == "--config.batch_size below 32"
