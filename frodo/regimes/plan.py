"""What a run would take on accelerators: its programs are compiled from shapes alone, nothing is allocated or run.

A step is an iteration online, a meta-step of a population. The agents of a population share no more than the mean of
their updates of η, so that the program of one device's share of them is what a device runs; online, a device's share is
that of the batch, and gradients are averaged over devices. Environments on the host take time of their own, which is
not in the plan, nor are what devices tell each other, and the work of a teacher.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
from jax.interpreters import partial_eval

from agents.acting import in_jax as acting
from agents.environments.names import is_pure, make_pure
from agents.environments.suites import Seen, seen
from frodo import logs
from frodo.devices import cpu_devices, make_mesh, mesh_size
from frodo.regimes.learner import build_learner
from frodo.regimes.lifetimes import check_divided, make_online_program
from frodo.regimes.population import make_agent, make_host_learn
from frodo.runs.memory import batch_shape, num_bytes, trajectory_shapes
from frodo.settings.config import AgentConfig, OnlineConfig, PopulationConfig, make_setup
from frodo.settings.value_bins import with_bins
from meta.updates.experience import apart, experience_apart
from meta.updates.lifetime import Setup
from meta.updates.population import AXIS, make_group_step
from toy_envs.base import Environment

UTILISATION = 0.3  # of the peak; a plan also gives the time at the peak itself
ACCELERATORS: dict[str, tuple[float, float | None, float]] = {  # published peaks, bf16 and fp32, FLOP/s; memory, bytes
    "H100": (989e12, 67e12, 80e9),  # NVIDIA's data sheet, SXM; bf16 is half of what it gives with sparsity
    "H200": (989e12, 67e12, 141e9),  # NVIDIA's data sheet, SXM
    "A100": (312e12, 19.5e12, 80e9),  # NVIDIA's data sheet, SXM, 80 GB
    # https://cloud.google.com/tpu/docs/v3: a chip of 123 TFLOP/s and 32 GiB is two cores, each a device of its own.
    "TPU v3 core": (61.5e12, None, 16 * 2**30),
    "TPU v5e": (197e12, None, 16e9),  # https://cloud.google.com/tpu/docs/v5e
}


class Costs(NamedTuple):
    """What a call of a program costs: FLOPs of its products, bytes of its arguments, and those needed besides."""

    flops: float
    arguments: int
    temporary: int


class Program(NamedTuple):
    """What one device runs for one kind of agents: in a population those that share a program or see the same.

    Attributes:
      kind: a name for them.
      is_host: whether their environments are stepped on the host.
      num_agents, num_on_device: of them, in all and on a device at most.
      num_params, num_meta_params: of θ of one agent, and of η.
      step: a step of those on the device, acting included.
    """

    kind: str
    is_host: bool
    num_agents: int
    num_on_device: int
    num_params: int
    num_meta_params: int
    step: Costs


class Plan(NamedTuple):
    """What a run would take.

    Attributes:
      programs: one for each kind of agents. A device has its share of every kind in pure environments; agents on the
        host go to the devices in turns, and all on the fullest one count as those of the dearest kind.
      env_steps: of one step, all agents counted.
      num_steps: in the whole run.
    """

    num_devices: int
    programs: list[Program]
    env_steps: int
    num_steps: int

    @property
    def flops(self) -> float:
        """FLOPs of a step, of the device with the most."""
        return self._on_device("flops")

    @property
    def memory(self) -> int:
        """Bytes of a device, at most: kinds run one after another."""
        return int(self._on_device("arguments")) + max(one.step.temporary for one in self.programs)

    def hours(self, flops_per_second: float) -> float:
        """Return how long the whole run takes at that speed of a device."""
        return self.num_steps * self.flops / flops_per_second / 3600

    def _on_device(self, name: str) -> float:
        hosts = [getattr(one.step, name) for one in self.programs if one.is_host]
        return sum(getattr(one.step, name) for one in self.programs if not one.is_host) + max(hosts, default=0)


def plan_online(config: OnlineConfig, num_devices: int, num_steps: float) -> Plan:
    """Plan a lifetime of so many environment steps whose batch is split over devices.

    Raises:
      ValueError: naming the setting that is bad, or that the devices do not divide.
    """
    config.validate()
    check_divided(config, num_devices, f"the {num_devices} devices")
    part, replay = config.replace(batch_size=config.batch_size // num_devices), config.replay
    if replay.capacity:
        sizes = dict(capacity=replay.capacity // num_devices, batch_size=replay.batch_size // num_devices)
        part = part.replace(replay=dataclasses.replace(replay, **sizes))
    part = part.replace(minibatches=math.gcd(part.minibatches, part.pass_size))  # a device's part of each
    environment = _environment(config.env)
    if isinstance(environment, Environment):
        part = with_bins(part, environment)
    learner = build_learner(part, environment.num_actions, part.is_frozen)
    if isinstance(environment, Environment):
        program = make_online_program(learner, environment)
        whole = jax.eval_shape(program.init, _key())
        state, step = whole.learner, costs_of(lambda state: program.run(state, 1), whole, donated=0)
    else:
        state = jax.eval_shape(learner.init, _key(), batch_shape(part, environment))
        learn = experience_apart(learner.learn)
        step = _on_host(part, learner.setup, environment, learn, state, (), learner.is_meta)
    num_params, num_meta_params = _num(state.params), _num(state.meta_params)
    one = Program(config.env, not is_pure(config.env), 1, 1, num_params, num_meta_params, step)
    env_steps = config.num_env_steps(learner.is_meta)
    return Plan(num_devices, [one], env_steps, max(1, int(num_steps) // env_steps))


def plan_population(config: PopulationConfig, envs: Sequence[str], num_devices: int, num_steps: int) -> Plan:
    """Plan so many meta-steps of a population, with one agent in each environment.

    Raises:
      ValueError: naming what is bad; there must not be more devices than agents, whose work is not split.
    """
    config.validate()
    if num_devices > len(envs):
        raise ValueError(
            f"there are {num_devices} devices for {len(envs)} agents, expected at most as many: an agent has one device"
        )
    kinds: dict[Any, list[str]] = {}
    for env in envs:
        environment = _environment(env)
        kinds.setdefault(environment[:2] if isinstance(environment, Seen) else environment.program, []).append(env)
    num_hosts = sum(not is_pure(env) for env in envs)
    programs = [_of_agents(config, names, num_devices, num_hosts) for names in kinds.values()]
    return Plan(num_devices, programs, config.num_env_steps(is_meta=True) * len(envs), num_steps)


def _of_agents(config: PopulationConfig, names: Sequence[str], num_devices: int, num_hosts: int) -> Program:
    """Return the program of a device's agents of one kind, each in one of the environments of these names.

    Of environments on the host, of which there are `num_hosts` of all kinds, that with the most actions counts.
    """
    environment = max(map(_environment, names), key=lambda environment: environment.num_actions)
    setup = make_setup(config, environment.num_actions)
    meta_params = setup.rule.meta_param_shapes()
    if isinstance(environment, Environment):
        num, program = len(names) // mesh_size(len(names), num_devices), environment.program
        agent = make_agent(config, setup, program)
        start = jax.eval_shape(lambda key: acting.init_actor(program, setup.agent, key, config.batch_size), _key())
        state = jax.eval_shape(agent.init, _key(), meta_params, start)
        states = jax.tree.map(lambda x: jax.ShapeDtypeStruct((num, *x.shape), x.dtype), state)
        group_step = make_group_step(agent, make_mesh(1, cpu_devices(), AXIS), config.vmap_agents)
        step = costs_of(group_step, meta_params, states, donated=1)
    else:
        num, agent = min(len(names), -(-num_hosts // num_devices)), make_agent(config, setup, environment)
        prepared = jax.eval_shape(setup.agent.prepare, batch_shape(config, environment))
        state = jax.eval_shape(agent.init, _key(), meta_params, prepared)
        step = _on_host(config, setup, environment, make_host_learn(agent), state, (meta_params,), True, num)
    kind = names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else "")
    sizes = _num(state.lifetime.acting.params), _num(meta_params)
    return Program(kind, isinstance(environment, Seen), len(names), num, *sizes, step)


def _on_host(
    config: AgentConfig, setup: Setup, environment: Seen, learn: Any, state: Any, others: tuple, is_meta: bool, num=1
) -> Costs:
    """Return what a step of so many agents on the host costs, with acting, one step of the batch after the other.

    `learn` takes the experience, the rest of the state, other arguments, and trajectories.
    """
    experience, lifetime = apart(state.lifetime)
    rest, acted = state._replace(lifetime=lifetime), trajectory_shapes(config, setup.agent, environment, is_meta)
    step = costs_of(learn, experience, rest, *others, *acted, donated=0)
    core_state = jax.eval_shape(lambda: setup.agent.initial_state(config.batch_size))
    is_first = jax.ShapeDtypeStruct((config.batch_size,), bool)

    def act(params, key, observation, is_first, core_state):
        prepared = setup.agent.prepare(observation)
        return acting.act(setup.agent, setup.rule.policy, params, key, prepared, is_first, core_state)

    observation = batch_shape(config, environment)
    traced = jax.jit(act).trace(state.lifetime.acting.params, _key(), observation, is_first, core_state)
    flops = step.flops + flops_of(traced.jaxpr) * (config.num_env_steps(is_meta) // config.batch_size)
    others_there = (num - 1) * num_bytes((state, rest, acted))  # all are begun before the first one ends
    return Costs(num * flops, step.arguments + others_there, step.temporary)


def costs_of(fn: Callable[..., Any], *arguments: Any, donated: int | tuple[int, ...] = ()) -> Costs:
    """Compile a function for arguments of which only shapes and dtypes count, and say what a call costs.

    It is compiled for the CPU, whatever else is there, without optimising instructions, which changes no memory.
    """
    options: dict[str, Any] = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
    with jax.default_device(cpu_devices()[0]):
        traced = jax.jit(fn, donate_argnums=donated).trace(*arguments)
        memory: Any = traced.lower().compile(compiler_options=options).memory_analysis()
    results = memory.output_size_in_bytes - memory.alias_size_in_bytes  # those that do not lie where arguments lay
    return Costs(flops_of(traced.jaxpr), memory.argument_size_in_bytes, memory.temp_size_in_bytes + results)


def flops_of(program: Any) -> float:
    """Return the FLOPs of a closed jaxpr's matrix products and convolutions, two for each multiplication.

    XLA's own analysis counts what is in a loop once. Here it counts as often as the loop is taken, once where that is
    not known, and of the branches of a condition the dearest counts. What XLA finds to be the same counts twice.
    """
    jaxpr, _ = partial_eval.dce_jaxpr(program.jaxpr, [True] * len(program.out_avals))
    return _flops(jaxpr)


def _flops(jaxpr: Any) -> float:
    total = 0.0
    is_jaxpr = lambda x: hasattr(x, "eqns")
    for equation in jaxpr.eqns:
        name, params = equation.primitive.name, equation.params
        if name in ("dot_general", "conv_general_dilated"):
            left, right = (x.aval.shape for x in equation.invars)
            if name == "dot_general":
                each = math.prod(left[axis] for axis in params["dimension_numbers"][0][0])
            else:
                each = math.prod(right) / right[params["dimension_numbers"].rhs_spec[0]]
            total += 2 * math.prod(equation.outvars[0].aval.shape) * each
        else:
            parts = [_flops(x) for x in jax.tree.leaves(list(params.values()), is_leaf=is_jaxpr) if is_jaxpr(x)]
            total += params.get("length", 1) * (max(parts) if name == "cond" else sum(parts))
    return total


def describe(plan: Plan, accelerators: Sequence[str] = tuple(ACCELERATORS)) -> str:
    """Return tables of what a plan costs, and of how long it takes on accelerators, some of `ACCELERATORS`."""
    of_programs: dict[str, Callable[[Program], float]] = {
        "agents": lambda one: one.num_agents,
        "agents on a device, at most": lambda one: one.num_on_device,
        "parameters of θ": lambda one: one.num_params,
        "parameters of η": lambda one: one.num_meta_params,
        "FLOP of a step, on a device": lambda one: one.step.flops,
        "bytes of arguments": lambda one: one.step.arguments,
        "bytes of temporary memory": lambda one: one.step.temporary,
    }
    of_run = {
        "devices": plan.num_devices,
        "environment steps of a step": plan.env_steps,
        "steps": plan.num_steps,
        "environment steps in all": plan.env_steps * plan.num_steps,
        "FLOP of a step, fullest device": plan.flops,
        "bytes of memory, fullest device": plan.memory,
    }
    times = []
    for name in accelerators:
        *peaks, memory = ACCELERATORS[name]
        row = {"": name}
        for kind, peak in zip(("bf16", "fp32"), peaks, strict=True):
            row[f"{kind}: h at peak"] = logs.quantity(plan.hours(peak)) if peak else "-"
            at = f"{kind}: h at {100 * UTILISATION:.0f} %"
            row[at] = logs.quantity(plan.hours(UTILISATION * peak)) if peak else "-"
        times.append(row | {"memory": "fits" if plan.memory <= memory else "does not fit"})
    rows = [{"": x} | {one.kind: logs.quantity(fn(one)) for one in plan.programs} for x, fn in of_programs.items()]
    whole = [{"": x, "the whole run": logs.quantity(value)} for x, value in of_run.items()]
    return "\n\n".join(map(logs.table, (rows, whole, times)))


def _environment(name: str) -> Environment | Seen:
    """Return a pure environment itself, of others what they show."""
    return make_pure(name) if is_pure(name) else seen(name)


def _key() -> Any:
    return jax.eval_shape(lambda: jax.random.key(0))


def _num(tree: Any) -> int:
    return sum(math.prod(x.shape) for x in jax.tree.leaves(tree))
