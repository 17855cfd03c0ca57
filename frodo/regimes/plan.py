"""What a run would take on accelerators: its programs are compiled from shapes alone, nothing is allocated or run.

A step is an iteration online, a meta-step of a population. The agents of a population share no more than the mean of
their updates of η, so that the program of one device's share of them is what a device runs; online, a device's share is
that of the batch, and gradients are averaged over devices. Environments on the host take time of their own, which is
not in the plan, nor are what devices tell each other, of which gradients are named in bytes, and the work of a teacher.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax

from agents.acting import in_jax as acting
from agents.environments.names import is_pure, make_environment
from agents.environments.suites import Seen, seen
from frodo import logs
from frodo.devices import cpu_devices, make_mesh, mesh_size
from frodo.regimes.learner import build_learner
from frodo.regimes.lifetimes import check_divided, make_online_program
from frodo.regimes.population import make_agent, make_host_learn
from frodo.regimes.program_costs import Costs, costs_of
from frodo.runs.memory import batch_shape, num_bytes, trajectory_shape, trajectory_shapes
from frodo.settings.config import AgentConfig, OnlineConfig, PopulationConfig, make_setup
from frodo.settings.value_bins import with_bins
from meta.updates.experience import apart, experience_apart
from meta.updates.lifetime import Setup, make_agent_step
from meta.updates.population import AXIS, make_group_step
from toy_envs.base import Environment

UTILISATION = 0.3  # of the peak, beside which a plan gives the time at the peak itself


class Accelerator(NamedTuple):
    """A device with its published peaks, of dense products in FLOP/s, and its memory in bytes."""

    name: str
    bf16: float
    fp32: float | None  # None where none is published
    memory: float


_KNOWN = (
    Accelerator("H100", 989e12, 67e12, 80e9),  # NVIDIA's data sheet, SXM; bf16 is half of what it gives with sparsity
    Accelerator("H200", 989e12, 67e12, 141e9),  # NVIDIA's data sheet, SXM
    Accelerator("A100", 312e12, 19.5e12, 80e9),  # NVIDIA's data sheet, SXM, 80 GB
    # https://cloud.google.com/tpu/docs/v3: a chip of 123 TFLOP/s and 32 GiB is two cores, each a device of its own.
    Accelerator("TPU v3 core", 61.5e12, None, 16 * 2**30),
    Accelerator("TPU v5e", 197e12, None, 16e9),  # https://cloud.google.com/tpu/docs/v5e
)
ACCELERATORS = {one.name: one for one in _KNOWN}


class Share(NamedTuple):
    """What one device has of one kind of agents: in a population those that share a program or see the same.

    Attributes:
      kind: a name for them.
      is_host: whether their environments are stepped on the host.
      num_agents, num_on_device: of them, in all and on a device at most.
      num_params, num_meta_params: of θ of one agent, and of η.
      update: one update of one agent's θ.
      step: a step of those on the device, acting included.
      checkpoint: bytes that a checkpoint has of those on a device.
    """

    kind: str
    is_host: bool
    num_agents: int
    num_on_device: int
    num_params: int
    num_meta_params: int
    update: Costs
    step: Costs
    checkpoint: int


class Plan(NamedTuple):
    """What a run would take.

    Attributes:
      shares: one for each kind of agents. A device has its share of every kind in pure environments; agents on the
        host go to the devices in turns, and all on the fullest one count as those of the dearest kind.
      env_steps: of one step, all agents counted.
      num_steps: in the whole run.
      told: bytes of the sums over devices in a step: of gradients of θ and η; replay and moving averages add to them.
    """

    config: AgentConfig
    num_devices: int
    shares: list[Share]
    env_steps: int
    num_steps: int
    told: int

    @property
    def flops(self) -> float:
        """FLOPs of a step, of the device with the most."""
        return self._on_device(lambda share: share.step.flops)

    @property
    def arguments(self) -> int:
        """Bytes that lie on a device from step to step, and those that a step comes with."""
        return int(self._on_device(lambda share: share.step.arguments))

    @property
    def memory(self) -> int:
        """Bytes of a device, at most: kinds run one after another."""
        return self.arguments + max(share.step.memory - share.step.arguments for share in self.shares)

    def hours(self, flops_per_second: float) -> float:
        """Return how long the whole run takes at that speed of a device."""
        return self.num_steps * self.flops / flops_per_second / 3600

    def _on_device(self, fn: Callable[[Share], float]) -> float:
        hosts = [fn(share) for share in self.shares if share.is_host]
        return sum(fn(share) for share in self.shares if not share.is_host) + max(hosts, default=0)


def plan_online(config: OnlineConfig, num_devices: int, num_steps: float) -> Plan:
    """Plan a lifetime of so many environment steps whose batch is split over devices.

    Raises:
      ValueError: naming the setting that is bad, or that the devices do not divide.
    """
    config.validate()
    whole, replay = config, config.replay
    check_divided(config, num_devices, f"the {num_devices} devices")
    if replay.capacity:
        part = dict(capacity=replay.capacity // num_devices, batch_size=replay.batch_size // num_devices)
        config = config.replace(replay=dataclasses.replace(replay, **part))
    config = config.replace(batch_size=config.batch_size // num_devices)
    config = config.replace(minibatches=math.gcd(config.minibatches, config.pass_size))  # a device's part of each
    environment = _environment(config.env)
    if isinstance(environment, Environment):
        config = with_bins(config, environment)
    learner = build_learner(config, environment.num_actions, config.is_frozen)
    if isinstance(environment, Environment):
        program = make_online_program(learner, environment)
        state = jax.eval_shape(program.init, _key())
        step, of_learner = costs_of(lambda state: program.run(state, 1), state, donated=0), state.learner
    else:
        of_learner = jax.eval_shape(learner.init, _key(), batch_shape(config, environment))
        experience, lifetime = apart(of_learner.lifetime)
        state, trajectories = of_learner, trajectory_shapes(config, learner.setup.agent, environment, learner.is_meta)
        parts = experience, of_learner._replace(lifetime=lifetime), *trajectories
        step = costs_of(experience_apart(learner.learn), *parts, donated=0)
        step = _with_acting(step, config, learner.setup, environment, of_learner.agent.params, learner.is_meta)
    update = _update(config, learner.setup, environment, of_learner.meta_params, of_learner.lifetime.agent)
    sizes_of = _num(of_learner.params), _num(of_learner.meta_params)
    share = Share(config.env, not is_pure(config.env), 1, 1, *sizes_of, update, step, num_bytes(state))
    env_steps = whole.num_env_steps(learner.is_meta)
    if learner.is_meta:  # as compiled: θ's gradient in each update, twice on the way back but once in one; η's there
        num_told = (3 * config.num_updates - 1 + config.stride) * sizes_of[0] + config.num_updates * sizes_of[1]
    else:
        num_told = config.num_updates * config.epochs * whole.minibatches * sizes_of[0]
    told = 4 * num_told if num_devices > 1 else 0
    return Plan(whole, num_devices, [share], env_steps, max(1, int(num_steps) // env_steps), told)


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
    shares = [_share_of_agents(config, names, num_devices, num_hosts) for names in kinds.values()]
    env_steps = config.num_env_steps(is_meta=True) * len(envs)
    # A sum for each kind in pure environments, and from each device that of its agents on the host.
    num_sums = sum(not share.is_host for share in shares) + min(num_devices, num_hosts)
    told = 4 * num_sums * shares[0].num_meta_params if num_devices > 1 else 0
    return Plan(config, num_devices, shares, env_steps, num_steps, told)


def _share_of_agents(config: PopulationConfig, names: Sequence[str], num_devices: int, num_hosts: int) -> Share:
    """Return a device's share of agents of one kind, each in one of the environments of these names.

    Of environments on the host, of which there are `num_hosts` of all kinds, that with the most actions counts.
    """
    environment = max(map(_environment, names), key=lambda environment: environment.num_actions)
    setup = make_setup(config, environment.num_actions)
    meta_params = jax.eval_shape(lambda key: setup.rule.random_meta_params(key, 2), _key())
    is_host = isinstance(environment, Seen)
    if isinstance(environment, Environment):
        program = environment.program
        agent = make_agent(config, setup, program)
        num = len(names) // mesh_size(len(names), num_devices)
        start = jax.eval_shape(lambda key: acting.init_actor(program, setup.agent, key, config.batch_size), _key())
        state = jax.eval_shape(agent.init, _key(), meta_params, start)
        states = jax.tree.map(lambda x: jax.ShapeDtypeStruct((num, *x.shape), x.dtype), state)
        group_step = make_group_step(agent, make_mesh(1, cpu_devices(), AXIS), config.vmap_agents)
        step = costs_of(group_step, meta_params, states, donated=1)
    else:
        agent = make_agent(config, setup, environment)
        num = min(len(names), -(-num_hosts // num_devices))
        prepared = jax.eval_shape(setup.agent.prepare, batch_shape(config, environment))
        state = jax.eval_shape(agent.init, _key(), meta_params, prepared)
        experience, lifetime = apart(state.lifetime)
        trajectories = trajectory_shapes(config, setup.agent, environment, True)
        parts = experience, state._replace(lifetime=lifetime), meta_params, *trajectories
        step = costs_of(make_host_learn(agent), *parts, donated=0)
        step = _with_acting(step, config, setup, environment, state.lifetime.agent.params, True).times(num)
        step = step._replace(  # all are begun before the first one ends
            arguments=step.arguments + (num - 1) * (num_bytes(state) + num_bytes(trajectories)),
            outputs=num * step.outputs,
            aliased=num * step.aliased,
        )
    of_agent = state.lifetime.agent
    update = _update(config, setup, environment, meta_params, of_agent)
    kind = names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else "")
    sizes = _num(of_agent.params), _num(meta_params)
    return Share(kind, is_host, len(names), num, *sizes, update, step, num * num_bytes(state))


def describe(plan: Plan, accelerators: Sequence[str] = tuple(ACCELERATORS)) -> str:
    """Return tables of what a plan costs, and of how long it takes on accelerators, some of `ACCELERATORS`."""
    rows = [{"": name} | {share.kind: logs.quantity(fn(share)) for share in plan.shares} for name, fn in _ROWS.items()]
    budget = {
        "devices": plan.num_devices,
        "environment steps of a step": logs.quantity(plan.env_steps),
        "steps": logs.quantity(plan.num_steps),
        "environment steps in all": logs.quantity(plan.env_steps * plan.num_steps),
        "FLOP of a step, fullest device": logs.quantity(plan.flops),
        "bytes of memory, fullest device": logs.quantity(plan.memory),
        "bytes of gradients summed over devices in a step": logs.quantity(plan.told),
    }
    share = f"h at {100 * UTILISATION:.0f} %"
    times = []
    for one in map(ACCELERATORS.__getitem__, accelerators):
        row = {"": one.name, "memory": "fits" if plan.memory <= one.memory else f"does not fit: {advice(plan)}"}
        for name, peak in (("bf16", one.bf16), ("fp32", one.fp32)):
            row[f"{name}: h at peak"] = logs.quantity(plan.hours(peak)) if peak else "-"
            row[f"{name}: {share}"] = logs.quantity(plan.hours(UTILISATION * peak)) if peak else "-"
        times.append({name: row[name] for name in sorted(row, key=lambda name: name == "memory")})
    tables = rows, [{"": name, "the whole run": str(value)} for name, value in budget.items()], times
    return "\n\n".join(map(logs.table, tables))


def advice(plan: Plan) -> str:
    """Say which setting to change where a plan does not fit into a device's memory."""
    config, replay = plan.config, plan.config.replay
    if 2 * plan.arguments < plan.memory:
        if config.gradient_mode != "mixed":
            return "--config.gradient_mode=mixed"
        name = "replay.batch_size" if replay.capacity else "batch_size"
        return f"--config.{name} below {replay.batch_size if replay.capacity else config.batch_size}"
    if max(share.num_on_device for share in plan.shares) > 1:
        return f"--num_devices above {plan.num_devices}"
    if replay.capacity:
        return f"--config.replay.capacity below {replay.capacity}"
    return f"--config.batch_size below {config.batch_size}"


_ROWS: dict[str, Callable[[Share], float]] = {
    "agents": lambda share: share.num_agents,
    "agents on a device, at most": lambda share: share.num_on_device,
    "parameters of θ": lambda share: share.num_params,
    "parameters of η": lambda share: share.num_meta_params,
    "FLOP of an update of θ": lambda share: share.update.flops,
    "bytes moved by an update of θ": lambda share: share.update.moved,
    "FLOP of a step, on a device": lambda share: share.step.flops,
    "bytes moved by a step": lambda share: share.step.moved,
    "bytes of arguments": lambda share: share.step.arguments,
    "bytes of temporary memory": lambda share: share.step.temporary,
    "bytes of new results, on a device": lambda share: share.step.outputs - share.step.aliased,
    "bytes of a checkpoint, of a device": lambda share: share.checkpoint,
}


def _with_acting(
    step: Costs, config: AgentConfig, setup: Setup, environment: Seen, params: Any, is_meta: bool
) -> Costs:
    """Add to a step on the host what acting before it costs, one step of the batch after the other."""
    core_state = jax.eval_shape(lambda: setup.agent.initial_state(config.batch_size))
    is_first = jax.ShapeDtypeStruct((config.batch_size,), bool)

    def act(params, key, observation, is_first, core_state):
        prepared = setup.agent.prepare(observation)
        return acting.act(setup.agent, setup.rule.policy, params, key, prepared, is_first, core_state)

    one = costs_of(act, params, _key(), batch_shape(config, environment), is_first, core_state)
    all_of = one.times(config.num_env_steps(is_meta) // config.batch_size)
    return step._replace(flops=step.flops + all_of.flops, moved=step.moved + all_of.moved)


def _update(config: AgentConfig, setup: Setup, environment: Environment | Seen, meta_params: Any, state: Any) -> Costs:
    """Return what one update of θ costs, with what is replayed."""
    size = config.replay.batch_size if config.replay.capacity else config.batch_size
    one = trajectory_shape(
        setup.agent, batch_shape(config, environment, size), config.unroll, environment.num_actions, (1,)
    )
    step = make_agent_step(setup, config.gradient_mode)
    return costs_of(lambda meta_params, state, one: step(meta_params, state, one, None), meta_params, state, one)


def _environment(name: str) -> Environment | Seen:
    """Return a pure environment itself, of others what they show."""
    if not is_pure(name):
        return seen(name)
    environment = make_environment(name, 1, 0)
    assert isinstance(environment, Environment)
    return environment


def _key() -> Any:
    return jax.eval_shape(lambda: jax.random.key(0))


def _num(tree: Any) -> int:
    return sum(math.prod(x.shape) for x in jax.tree.leaves(tree))
