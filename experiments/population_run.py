"""A population of agents as a program runs it: groups of pure environments, actor threads for others, devices and
processes."""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding, PartitionSpec

from agents import acting
from agents.environments import HostEnvironment, make_environment
from agents.host_acting import HostActor
from agents.networks import Agent, make_agent
from agents.types import Array, Params
from experiments import rules
from experiments.population_config import DiscoverConfig
from experiments.runs.devices import make_mesh, quick_to_compile
from experiments.runs.errors import UsageError
from frodo.rule import make_outer, make_rule, spec_for
from meta import population
from meta.experience import who_acts
from meta.population import AXIS, Member, MemberState
from toy_envs.base import Environment


class PopulationState(NamedTuple):
    meta_params: Params
    meta_opt_state: Any
    groups: tuple[MemberState, ...]  # [n, ...] each
    hosts: tuple[MemberState, ...]


class _Group(NamedTuple):
    """Agents whose environments share a program: what acts and learns for all of them."""

    indices: list[int]  # of its agents in the population
    agent: Agent
    member: Member
    mesh: jax.sharding.Mesh
    step: Callable[..., Any]
    renew: Callable[..., MemberState]


class _Host(NamedTuple):
    """An agent whose environment is stepped on the host."""

    number: int
    environment: HostEnvironment
    agent: Agent
    policy: acting.Policy
    member: Member
    device: jax.Device
    step: Callable[..., Any]
    renew: Callable[..., MemberState]


class Population:
    """Owns the environments of a population's agents; a context manager, which stops their actor threads.

    Agents whose environments share a program are a group. Those on the host are stepped by a thread each.
    """

    def __init__(self, config: DiscoverConfig, seed: int):
        self._config, self._seed, self._key = config, seed, jax.random.key(seed)
        self._quick = quick_to_compile()
        self._devices = jax.devices()[: config.num_devices or None]
        self._on_exit = contextlib.ExitStack()
        a = config.agent
        self.steps_per_meta_step = config.lifetime().steps * len(config.envs)
        self._initial_meta_params = rules.initial_meta_params(a)
        self._shared_optimizer = None if config.is_optimizer_per_agent else a.meta_optimizer.make()
        self._everywhere = NamedSharding(make_mesh(len(self._devices), self._devices, AXIS), PartitionSpec())
        self._environments: list[Any] = [
            make_environment(env, a.batch_size, seed + i) for i, env in enumerate(config.envs)
        ]
        programs: dict[Environment, list[int]] = {}
        self._hosts: list[_Host] = []
        for i, environment in enumerate(self._environments):
            if isinstance(environment, Environment):
                programs.setdefault(environment.program, []).append(i)
            elif jax.process_count() > 1:
                raise UsageError(
                    f"--envs: {config.envs[i]} is stepped on the host, expected toy environments with several processes"
                )
            else:
                self._hosts.append(self._make_host(i, environment))
        self._groups = [self._make_group(program, indices) for program, indices in programs.items()]
        self._actors: list[HostActor] = []
        self._apply = jax.jit(
            lambda meta_params, opt_state, updates, weights: population.apply_updates(
                meta_params, updates, weights, self._shared_optimizer, opt_state
            )
        )

    def _make_group(self, program: Environment, indices: list[int]) -> _Group:
        agent, _, member = self._make_member(program, self._config.envs[indices[0]], program.num_actions)
        mesh = self._make_mesh(len(indices))
        step = jax.jit(population.make_group_step(member, mesh, self._config.vmap_agents), donate_argnums=1)
        renew = jax.jit(population.make_group_renew(member, mesh), donate_argnums=0, compiler_options=self._quick)
        return _Group(indices, agent, member, mesh, step, renew)

    def _make_host(self, number: int, environment: HostEnvironment) -> _Host:
        agent, policy, member = self._make_member(None, self._config.envs[number], environment.num_actions)
        device = self._devices[len(self._hosts) % len(self._devices)]
        renew = jax.jit(member.renew, compiler_options=self._quick)
        return _Host(number, environment, agent, policy, member, device, jax.jit(member.learn), renew)

    def _make_member(
        self, program: Environment | None, env: str, num_actions: int
    ) -> tuple[Agent, acting.Policy, Member]:
        a = self._config.agent
        rule = make_rule(a.rule)
        spec = spec_for(a.rule, env, num_actions)
        agent = make_agent(a.network, spec, num_actions)
        outer = make_outer(a.rule, a.network, spec)
        meta_optimizer = optax.identity() if self._shared_optimizer else a.meta_optimizer.make()
        member = population.make_member(
            self._config.lifetime(), program, agent, rule, a.optimizer.make(), outer, meta_optimizer, num_actions
        )
        return agent, rule.policy, member

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
        for group in self._groups:
            states = []
            for i in group.indices:
                env_key, key = jax.random.split(keys[i])
                states.append((key, acting.init_actor(self._environments[i], group.agent, env_key, a.batch_size)))
            key, actor = jax.tree.map(lambda *xs: jnp.stack(xs), *states)
            sharding = NamedSharding(group.mesh, PartitionSpec(AXIS))
            begin_all = jax.vmap(group.member.init, in_axes=(0, None, 0))
            begin_all = jax.jit(begin_all, out_shardings=sharding, compiler_options=self._quick)
            groups.append(begin_all(key, meta_params, actor))
        hosts = []
        for host in self._hosts:
            observation = host.agent.prepare(jnp.asarray(host.environment.reset().observation))
            begin = jax.jit(host.member.init, compiler_options=self._quick)
            hosts.append(begin(*jax.device_put((keys[host.number], meta_params, observation), host.device)))
        opt_state = self._shared_optimizer.init(meta_params) if self._shared_optimizer else ()
        opt_state = jax.device_put(opt_state, self._everywhere)
        return PopulationState(meta_params, opt_state, tuple(groups), tuple(hosts))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception) -> None:
        self._on_exit.close()

    def start(self, state: PopulationState, step: int) -> None:
        """Let the actor threads begin, in environments that are not seeded as they were at another meta-step."""
        a = self._config.agent
        for host, member in zip(self._hosts, state.hosts, strict=True):
            environment: Any = host.environment
            if step:
                environment.close()
                env = self._config.envs[host.number]
                environment = make_environment(env, a.batch_size, self._seed + host.number + step)
            actor = HostActor(
                environment,
                host.agent,
                host.policy,
                who_acts(member.agent, member.experience).params,
                member.key,
                a.unroll,
                a.num_fresh(is_meta=True),
                a.validation_unroll,
            )
            self._actors.append(self._on_exit.enter_context(actor))

    def step(self, state: PopulationState) -> tuple[PopulationState, list[dict[str, Array]]]:
        """Take one meta-step; the metrics are a list of groups, [n] each, then of host agents."""
        outputs, groups, hosts, metrics, ended = [], [], [], [], []
        for group, members in zip(self._groups, state.groups, strict=True):
            meta_params = jax.device_put(state.meta_params, NamedSharding(group.mesh, PartitionSpec()))
            members, update, weight, num_over, own = group.step(meta_params, members)
            groups.append(members)
            ended.append(num_over)
            outputs.append((update, weight))
            metrics.append(own)
        for host, actor, member in zip(self._hosts, self._actors, state.hosts, strict=True):
            experience = actor.get()
            assert experience.validation is not None
            meta_params = jax.device_put(state.meta_params, host.device)
            member, update, weight, own = host.step(
                meta_params, member._replace(key=experience.key), experience.trajectories, experience.validation
            )
            if own["is_over"]:
                member = host.renew(member, experience.validation.observation[0])
                actor.renew(member.agent.params)
            else:
                actor.params = who_acts(member.agent, member.experience).params
            hosts.append(member)
            own |= {"episodes": len(experience.returns), "return_sum": sum(experience.returns)}
            outputs.append((update, weight))
            metrics.append({k: np.asarray(v)[None] for k, v in own.items()})
        for i, num_over in enumerate(ended):
            if int(num_over):
                groups[i] = self._groups[i].renew(groups[i], metrics[i]["is_over"])
        updates, weights = zip(*jax.device_put(outputs, self._everywhere), strict=True)
        meta_params, opt_state = self._apply(state.meta_params, state.meta_opt_state, updates, weights)
        return PopulationState(meta_params, opt_state, tuple(groups), tuple(hosts)), metrics

    def agree(self, *numbers: int) -> list[int]:
        """Return the largest of what the processes have of each number: all of them call this at the same time."""
        if jax.process_count() == 1:
            return list(numbers)
        return np.max(multihost_utils.process_allgather(np.array(numbers)), axis=0).tolist()

    def gather(self, state: PopulationState) -> PopulationState:
        """Return the state with the agents of all processes."""
        if jax.process_count() == 1:
            return state
        data = jax.tree.map(lambda x: jax.random.key_data(x) if _is_key(x) else x, state)
        whole = multihost_utils.process_allgather(data, tiled=True)
        return jax.tree.map(lambda x, y: jax.random.wrap_key_data(y) if _is_key(x) else y, state, whole)

    def scatter(self, whole: PopulationState, step: int, like: PopulationState) -> tuple[PopulationState, int]:
        """Share out what `gather` returned, as `like` is over the devices, and its step: those of process 0."""
        if jax.process_count() == 1:
            return whole, step
        data = jax.tree.map(lambda x: jax.random.key_data(x) if _is_key(x) else x, whole)
        data, first_step = multihost_utils.broadcast_one_to_all((data, np.array(step)))

        def share(x: np.ndarray, old: Array) -> Array:
            if _is_key(old):
                return jax.random.wrap_key_data(share(x, jax.random.key_data(old)))
            return jax.make_array_from_callback(x.shape, old.sharding, lambda index: x[index])

        return jax.tree.map(share, data, like), int(first_step)

    def reduce(self, window: Sequence[list[dict[str, Array]]]) -> dict[str, Any]:
        """Turn the metrics of several meta-steps into one row."""
        if jax.process_count() > 1:
            window = multihost_utils.process_allgather(window, tiled=True)
        window = jax.device_get(window)
        stacked = [{k: np.stack([step[g][k] for step in window]) for k in window[0][g]} for g in range(len(window[0]))]
        row: dict[str, Any] = {}
        order = [group.indices for group in self._groups] + [[host.number] for host in self._hosts]
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
            values = np.concatenate([agent[name] for agent in everyone])
            values = values[np.isfinite(values)]  # one that waits for its replay has none
            row[name] = float(values.mean()) if len(values) else float("nan")
        for name in ("lifetimes", "resets"):
            row[name] = int(sum(agent[name][-1] for agent in everyone))
        return row

    def returns(self, row: dict[str, Any]) -> list[float]:
        values = [value for name, value in row.items() if name.startswith("return/") and np.isfinite(value)]
        return values or [float("nan")]


def _is_key(x: Any) -> bool:
    return jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def _ratio(total: float, count: float) -> float:
    return total / count if count else float("nan")
