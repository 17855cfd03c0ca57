"""A population of agents as a program runs it: groups of pure environments, actor threads for others, devices and
processes."""

import contextlib
import os
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding, PartitionSpec

from agents import acting
from agents.acting import HostActor
from agents.environments import HostEnvironment, make_environment
from agents.networks import make_agent
from agents.types import Array, Params
from experiments import rules
from experiments.devices import make_mesh, quick_to_compile
from experiments.files import UsageError
from experiments.logs import note
from experiments.population_config import DiscoverConfig
from frodo.rule import make_outer, make_rule
from meta import population
from meta.experience import who_acts
from meta.population import AXIS, Member, MemberState
from toy_envs.base import Environment


def join(coordinator: str, num_processes: int, process_id: int, timeout: int) -> None:
    """Join the other processes of a population, if there are any.

    Where they do not come up within the timeout, the program ends with one line and exit code 2.

    Raises:
      UsageError: if the arguments do not go together.
    """
    if num_processes == 1 and not coordinator:
        return
    if not coordinator or not 0 <= process_id < num_processes:
        raise UsageError(
            f"--process_id={process_id}: with --num_processes={num_processes}, give --coordinator=host:port and a "
            "number below --num_processes to each process"
        )
    jax.config.update("jax_cpu_collectives_implementation", "gloo")

    def give_up() -> None:  # JAX itself would abort the process with a stack trace
        note(f"error: --coordinator={coordinator}: not all of {num_processes} processes came up within {timeout} s")
        os._exit(2)

    watch = threading.Timer(timeout, give_up)
    watch.start()
    jax.distributed.initialize(coordinator, num_processes, process_id, initialization_timeout=timeout + 60)
    watch.cancel()


class PopulationState(NamedTuple):
    meta_params: Params
    meta_opt_state: Any
    groups: tuple[MemberState, ...]  # [n, ...] each
    hosts: tuple[MemberState, ...]


class Population:
    """Owns the environments of a population's agents; a context manager, which stops their actor threads.

    Agents whose environments share a program are a group. Those on the host are stepped by a thread each.
    """

    def __init__(self, config: DiscoverConfig, seed: int):
        self._config, self._key = config, jax.random.key(seed)
        self._quick = quick_to_compile()
        self._devices = jax.devices()[: config.num_devices or None]
        self._on_exit = contextlib.ExitStack()
        a = config.agent
        self.steps_per_meta_step = config.lifetime().steps * len(config.envs)
        self._initial_meta_params = rules.initial_meta_params(a)
        self._shared_optimizer = None if config.is_optimizer_per_agent else a.meta_optimizer.make()
        environments = [make_environment(env, a.batch_size, seed + i) for i, env in enumerate(config.envs)]
        self._environments: list[Any] = environments
        groups: dict[Any, list[int]] = {}
        self._host_environments: dict[int, HostEnvironment] = {}
        for i, environment in enumerate(environments):
            if isinstance(environment, Environment):
                groups.setdefault(environment.program, []).append(i)
            else:
                self._host_environments[i] = environment
        self._indices = list(groups.values())  # of the agents of each group
        self._members = [self._make_member(program, program.num_actions) for program in groups]
        self._meshes = [self._make_mesh(len(indices)) for indices in self._indices]
        whole = make_mesh(len(self._devices), self._devices, AXIS)
        self._everywhere = NamedSharding(whole, PartitionSpec())
        self._replicated = [NamedSharding(mesh, PartitionSpec()) for mesh in self._meshes]
        self._steps = [
            jax.jit(population.make_group_step(member, mesh, config.vmap_agents), donate_argnums=1)
            for (_, member), mesh in zip(self._members, self._meshes, strict=True)
        ]
        if self._host_environments and jax.process_count() > 1:
            env = config.envs[min(self._host_environments)]
            raise UsageError(f"--envs: {env} is stepped on the host, expected toy environments with several processes")
        self._renew = [
            jax.jit(population.make_group_renew(member, mesh), donate_argnums=0, compiler_options=self._quick)
            for (_, member), mesh in zip(self._members, self._meshes, strict=True)
        ]
        self._host_devices = [self._devices[n % len(self._devices)] for n in range(len(self._host_environments))]
        self._host_members = [self._make_member(None, x.num_actions) for x in self._host_environments.values()]
        self._host_steps = [jax.jit(member.learn) for _, member in self._host_members]
        self._host_renew = [jax.jit(member.renew, compiler_options=self._quick) for _, member in self._host_members]
        self._actors: list[HostActor] = []
        self._apply = jax.jit(
            lambda meta_params, opt_state, updates, weights: population.apply_updates(
                meta_params, updates, weights, self._shared_optimizer, opt_state
            )
        )

    def _make_member(self, program: Environment | None, num_actions: int) -> tuple[Any, Member]:
        a = self._config.agent
        rule = make_rule(a.rule)
        spec = rule.spec(num_actions)
        agent = make_agent(a.network, spec, num_actions)
        outer = make_outer(a.rule, a.network, spec)
        meta_optimizer = optax.identity() if self._shared_optimizer else a.meta_optimizer.make()
        member = population.make_member(
            self._config.lifetime(), program, agent, rule, a.optimizer.make(), outer, meta_optimizer, num_actions
        )
        return (agent, rule), member

    def _make_mesh(self, num_agents: int) -> jax.sharding.Mesh:
        if jax.process_count() > 1 and num_agents % len(self._devices):
            raise UsageError(
                f"--envs: {num_agents} agents of one kind, expected a multiple of the {len(self._devices)} devices"
            )
        return make_mesh(num_agents, self._devices, AXIS)

    def init(self) -> PopulationState:
        """Make η and every agent's first lifetime."""
        a = self._config.agent
        meta_key, *keys = jax.random.split(self._key, 1 + len(self._environments))
        meta_params = self._initial_meta_params
        if meta_params is None:
            init = jax.jit(make_rule(a.rule).init_meta_params, static_argnums=1, compiler_options=self._quick)
            meta_params = init(meta_key, 2)
        meta_params = jax.device_put(meta_params, self._everywhere)
        groups = []
        for ((agent, _), member), indices, mesh in zip(self._members, self._indices, self._meshes, strict=True):
            states = []
            for i in indices:
                env_key, key = jax.random.split(keys[i])
                actor = acting.init_actor(self._environments[i], agent, env_key, a.batch_size)
                states.append((key, actor))
            sharding = NamedSharding(mesh, PartitionSpec(AXIS))
            stacked = jax.tree.map(lambda *xs: jnp.stack(xs), *states)
            make = jax.jit(
                jax.vmap(member.init, in_axes=(0, None, 0)), out_shardings=sharding, compiler_options=self._quick
            )
            groups.append(make(stacked[0], meta_params, stacked[1]))
        hosts = []
        for (i, environment), ((agent, _), member), device in zip(
            self._host_environments.items(), self._host_members, self._host_devices, strict=True
        ):
            observation = agent.prepare(jnp.asarray(environment.reset().observation))
            hosts.append(
                jax.jit(member.init, compiler_options=self._quick)(
                    *jax.device_put((keys[i], meta_params, observation), device)
                )
            )
        opt_state = self._shared_optimizer.init(meta_params) if self._shared_optimizer else ()
        opt_state = jax.device_put(opt_state, self._everywhere)
        return PopulationState(meta_params, opt_state, tuple(groups), tuple(hosts))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception) -> None:
        self._on_exit.close()

    def start(self, state: PopulationState) -> None:
        """Let the actor threads begin."""
        a = self._config.agent
        for environment, ((agent, rule), _), host in zip(
            self._host_environments.values(), self._host_members, state.hosts, strict=True
        ):
            params, num = who_acts(host.agent, host.experience).params, a.num_fresh(is_meta=True) + 1
            actor = HostActor(environment, agent, rule.policy, params, host.key, a.unroll, num)
            self._actors.append(self._on_exit.enter_context(actor))

    def step(self, state: PopulationState) -> tuple[PopulationState, list[dict[str, Array]]]:
        """Take one meta-step; the metrics are a list of groups, [n] each, then of host agents."""
        outputs, groups, hosts, metrics, ended = [], [], [], [], []
        for group_step, replicated, group in zip(self._steps, self._replicated, state.groups, strict=True):
            group, update, weight, num_over, own = group_step(jax.device_put(state.meta_params, replicated), group)
            groups.append(group)
            ended.append(num_over)
            outputs.append((update, weight))
            metrics.append(own)
        for actor, host_step, renew, host, device in zip(
            self._actors, self._host_steps, self._host_renew, state.hosts, self._host_devices, strict=True
        ):
            experience = actor.get()
            trajectories = jax.tree.map(lambda x: x[:-1], experience.trajectories)
            validation = jax.tree.map(lambda x: x[-1], experience.trajectories)
            host, update, weight, own = host_step(
                jax.device_put(state.meta_params, device), host, trajectories, validation
            )
            if own["is_over"]:
                host = renew(host, validation.observation[0])
            actor.params = who_acts(host.agent, host.experience).params
            hosts.append(host)
            own |= {"episodes": len(experience.returns), "return_sum": sum(experience.returns)}
            outputs.append((update, weight))
            metrics.append({k: np.asarray(v)[None] for k, v in own.items()})
        for i, (renew_group, num_over) in enumerate(zip(self._renew, ended, strict=True)):
            if int(num_over):
                groups[i] = renew_group(groups[i], metrics[i]["is_over"])
        updates, weights = zip(*jax.device_put(outputs, self._everywhere), strict=True)
        meta_params, opt_state = self._apply(state.meta_params, state.meta_opt_state, updates, weights)
        return PopulationState(meta_params, opt_state, tuple(groups), tuple(hosts)), metrics

    def gather(self, state: PopulationState) -> PopulationState:
        """Return the state with the agents of all processes."""
        if jax.process_count() == 1:
            return state
        is_key = lambda x: jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
        data = jax.tree.map(lambda x: jax.random.key_data(x) if is_key(x) else x, state)
        whole = multihost_utils.process_allgather(data, tiled=True)
        return jax.tree.map(lambda x, y: jax.random.wrap_key_data(y) if is_key(x) else y, state, whole)

    def reduce(self, window: Sequence[list[dict[str, Array]]]) -> dict[str, Any]:
        """Turn the metrics of several meta-steps into one row."""
        if jax.process_count() > 1:
            window = multihost_utils.process_allgather(window, tiled=True)
        window = jax.device_get(window)
        stacked = [{k: np.stack([step[g][k] for step in window]) for k in window[0][g]} for g in range(len(window[0]))]
        row: dict[str, Any] = {}
        order = [*self._indices, *([i] for i in self._host_environments)]
        per_env: dict[str, list] = {env: [] for env in self._config.envs}
        for indices, own in zip(order, stacked, strict=True):
            for j, i in enumerate(indices):
                per_env[self._config.envs[i]].append({k: v[:, j] for k, v in own.items()})
        total = lambda agents, name, mask=1.0: sum(float(np.sum(agent[name] * mask)) for agent in agents)
        for env, agents in per_env.items():
            row[f"return/{env}"] = _ratio(total(agents, "return_sum"), total(agents, "episodes"))
            ends = [
                {k: agent[k] * (agent["is_over"] & agent["is_finite"]) for k in ("return_sum", "episodes")}
                for agent in agents
            ]
            row[f"end_return/{env}"] = _ratio(total(ends, "return_sum"), total(ends, "episodes"))
        everyone = [agent for agents in per_env.values() for agent in agents]
        for name in ("outer_loss", "meta_gradient_norm"):
            row[name] = float(np.mean([agent[name] for agent in everyone]))
        for name in ("lifetimes", "resets"):
            row[name] = int(sum(agent[name][-1] for agent in everyone))
        return row

    def returns(self, row: dict[str, Any]) -> list[float]:
        values = [value for name, value in row.items() if name.startswith("return/") and np.isfinite(value)]
        return values or [float("nan")]


def _ratio(total: float, count: float) -> float:
    return total / count if count else float("nan")
