"""The population regime: many agents in many environments discover one rule over many lifetimes.

Agents whose environments share a program are a group: one compiled program on a mesh of devices. Each of the others has
an environment on the host, which a thread steps. What one agent does in a meta-step is in `meta/updates/population.py`.
"""

import collections
import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from agents.acting import in_jax as acting
from agents.acting.in_jax import Actor
from agents.acting.on_host import ActedIteration, HostActor
from agents.environments.host import HostEnvironment, NotFiniteError
from agents.environments.suites import Seen
from agents.types import Array, Params
from frodo.devices import make_mesh, quick_to_compile
from frodo.regimes.arguments import check_meta_params
from frodo.runs.memory import batch_shape, check, needs
from frodo.settings.config import PopulationConfig, make_setup
from frodo.settings.registry import make_update_rule
from meta.updates.experience import apart, experience_apart, make_lifetime
from meta.updates.lifetime import Setup
from meta.updates.population import (
    AXIS,
    AgentOutput,
    GroupOutput,
    PopulationAgent,
    PopulationAgentState,
    apply_updates,
    make_group_renew,
    make_group_step,
    make_population_agent,
    total,
)
from toy_envs.base import Environment, cloned


class PopulationState(NamedTuple):
    meta_params: Params
    meta_opt_state: Any
    groups: tuple[PopulationAgentState, ...]  # [n, ...] each
    hosts: tuple[PopulationAgentState, ...]


class AgentResults(NamedTuple):
    """Results of agents in one meta-step, [n] each."""

    is_over: Array  # their lifetimes ended
    is_finite: Array  # nothing went wrong
    metrics: dict[str, Array]


class _Group(NamedTuple):
    """Agents whose environments share a program, and the functions that act and learn for all of them."""

    indices: list[int]  # of its agents in the population
    setup: Setup
    mesh: Mesh
    begin: Callable[..., PopulationAgentState]
    step: Callable[..., tuple[PopulationAgentState, GroupOutput]]
    renew: Callable[..., PopulationAgentState]


class _HostFunctions(NamedTuple):
    """What agents on the host with as many actions share, compiled once for each shape of observation and device."""

    setup: Setup
    init: Callable[..., PopulationAgentState]
    learn: Callable[..., Any]  # of `make_host_learn`
    renew: Callable[..., PopulationAgentState]


class _Host(NamedTuple):
    """An agent whose environment is stepped on the host."""

    number: int  # its place in the population
    environment: HostEnvironment
    functions: _HostFunctions
    device: jax.Device


def make_host_learn(agent: PopulationAgent) -> Callable[..., Any]:
    """Make `agent.learn` with the experience as an argument of its own, to be changed in place; η follows the state."""
    return experience_apart(lambda state, meta_params, *acted: agent.learn(meta_params, state, *acted))


def make_agent(
    config: PopulationConfig, setup: Setup, environment: Environment | HostEnvironment | Seen
) -> PopulationAgent:
    """Make the functions of the agents in an environment; they act themselves in a pure one."""
    actor = None
    if isinstance(environment, Environment):
        actor = Actor(environment, setup.agent, setup.rule.policy, config.exploration)
    meta_optimizer = config.meta_optimizer.make() if config.is_optimizer_per_agent else optax.identity()
    lifetime = make_lifetime(config, setup, environment.num_actions, is_meta=True)
    return make_population_agent(lifetime, actor, meta_optimizer, config.budgets, config.num_env_steps(True))


class Population:
    """Agents, each in its environment; a context manager, which stops the threads that act on the host.

    Args:
      config: the settings that the agents have in common.
      environments: one for each agent: pure ones, which are batched here, or batches on the host of `batch_size`.
      key: of all randomness in JAX.
    Raises:
      ValueError: naming the setting that is bad, or does not fit the environments or the number of devices.
    """

    def __init__(self, config: PopulationConfig, environments: Sequence[Environment | HostEnvironment], key: Array):
        config.validate()
        if not environments:
            raise ValueError("environments are empty, expected at least one: a population needs an agent")
        self._config, self._environments, self._key = config, list(environments), key
        self._rule, self._quick = make_update_rule(config.rule), quick_to_compile()
        self._devices = jax.devices()[: config.num_devices or None]
        self._on_exit = contextlib.ExitStack()
        self._shared_optimizer = None if config.is_optimizer_per_agent else config.meta_optimizer.make()
        self._everywhere = NamedSharding(make_mesh(len(self._devices), self._devices, AXIS), PartitionSpec())
        self.env_steps = config.num_env_steps(is_meta=True) * len(environments)  # of one meta-step
        programs: dict[Environment, list[int]] = {}
        self._hosts: list[_Host] = []
        for i, environment in enumerate(self._environments):
            if isinstance(environment, Environment):
                programs.setdefault(environment.program, []).append(i)
            elif jax.process_count() > 1:
                raise ValueError(f"environment {i} is stepped on the host, expected pure ones with several processes")
            else:
                self._hosts.append(self._make_host(i, environment))
        self._groups = [self._make_group(program, indices) for program, indices in programs.items()]
        self._actors: list[HostActor] = []
        self._is_stopping: Callable[[], Any] = lambda: False
        self._sum = jax.jit(lambda updates: total(*updates))
        self._apply = jax.jit(
            lambda meta_params, opt_state, updates, weights: apply_updates(
                meta_params, updates, weights, self._shared_optimizer, opt_state
            )
        )

    def _make_group(self, program: Environment, indices: list[int]) -> _Group:
        if jax.process_count() > 1 and len(indices) % len(self._devices):
            raise ValueError(
                f"{len(indices)} agents of one kind, expected a multiple of the {len(self._devices)} devices"
            )
        setup = make_setup(self._config, program.num_actions)
        agent = make_agent(self._config, setup, program)
        mesh = make_mesh(len(indices), self._devices, AXIS)
        sharding = NamedSharding(mesh, PartitionSpec(AXIS))
        begin = jax.vmap(agent.init, in_axes=(0, None, 0))
        begin = jax.jit(begin, out_shardings=sharding, compiler_options=self._quick)
        step = jax.jit(make_group_step(agent, mesh, self._config.vmap_agents), donate_argnums=1)
        renew = jax.jit(make_group_renew(agent, mesh), donate_argnums=0, compiler_options=self._quick)
        return _Group(indices, setup, mesh, begin, step, renew)

    def _make_host(self, index: int, environment: HostEnvironment) -> _Host:
        if environment.num_envs != self._config.batch_size:
            raise ValueError(
                f"batch_size is {self._config.batch_size}, expected {environment.num_envs}, as many environments as "
                f"agent {index} has"
            )
        known = [host.functions for host in self._hosts if host.environment.num_actions == environment.num_actions]
        if not known:
            setup = make_setup(self._config, environment.num_actions)
            agent = make_agent(self._config, setup, environment)
            init, renew = (jax.jit(x, compiler_options=self._quick) for x in (agent.init, agent.renew))
            known = [_HostFunctions(setup, init, jax.jit(make_host_learn(agent), donate_argnums=0), renew)]
        device = self._devices[len(self._hosts) % len(self._devices)]
        return _Host(index, environment, known[0], device)

    def check(self, meta_params: Params | None = None) -> None:
        """Raise a ValueError where a network does not suit an environment, or agents need more memory than there is."""
        config, parts = self._config, collections.Counter[str]()
        if meta_params is None:
            meta_params = self._rule.meta_param_shapes()
        for group in self._groups:
            environment: Any = self._environments[group.indices[0]]
            agent, num = group.setup.agent, len(group.indices)
            start = functools.partial(acting.init_actor, environment, agent, batch_size=config.batch_size)
            one = self._key, jax.eval_shape(start, self._key)
            all_of = jax.tree.map(lambda x, num=num: jax.ShapeDtypeStruct((num, *x.shape), x.dtype), one)
            state = jax.eval_shape(group.begin, all_of[0], meta_params, all_of[1])
            parts += needs(config, agent, environment, True, state, num if config.vmap_agents else 1)
        for host in self._hosts:
            agent = host.functions.setup.agent
            observation = jax.eval_shape(agent.prepare, batch_shape(config, host.environment))
            state = jax.eval_shape(host.functions.init, self._key, meta_params, observation)
            parts += needs(config, agent, host.environment, True, state)
        check(parts)

    def init(self, meta_params: Params | None = None) -> PopulationState:
        """Make every agent's first lifetime, and η at random if it is not given."""
        check_meta_params(self._rule, 2, meta_params)
        meta_key, *keys = jax.random.split(self._key, 1 + len(self._environments))
        if meta_params is None:
            draw = jax.jit(self._rule.random_meta_params, static_argnums=1, compiler_options=self._quick)
            meta_params = draw(meta_key, 2)
        meta_params = jax.device_put(meta_params, self._everywhere)
        groups = []
        for group in self._groups:
            states = []
            for i in group.indices:
                env_key, key = jax.random.split(keys[i])
                environment: Any = self._environments[i]
                states.append(
                    (key, acting.init_actor(environment, group.setup.agent, env_key, self._config.batch_size))
                )
            key, actor = cloned(jax.tree.map(lambda *xs: jnp.stack(xs), *states))
            groups.append(group.begin(key, meta_params, actor))
        hosts = []
        for host in self._hosts:
            observation = host.functions.setup.agent.prepare(jnp.asarray(host.environment.reset().observation))
            arguments = jax.device_put((keys[host.number], meta_params, observation), host.device)
            hosts.append(host.functions.init(*arguments))
        opt_state = self._shared_optimizer.init(meta_params) if self._shared_optimizer else ()
        opt_state = jax.device_put(opt_state, self._everywhere)
        return PopulationState(meta_params, opt_state, tuple(groups), tuple(hosts))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception) -> None:
        for actor in self._actors:
            actor.stop()  # all of them before the first one is waited for
        self._on_exit.__exit__(*exception)

    @property
    def hangs(self) -> bool:
        """Whether the step of an environment hangs, which was left behind: they are not to be closed then."""
        return any(actor.hangs() for actor in self._actors)

    def start(
        self,
        state: PopulationState,
        others: Mapping[int, HostEnvironment] | None = None,
        is_stopping: Callable[[], Any] = lambda: False,
    ) -> None:
        """Start the threads that act on the host; an entry of `others` replaces the environment of its index.

        Where `is_stopping` and an environment's step hangs, `step` raises KeyboardInterrupt.
        """
        self._is_stopping = is_stopping
        for host, agent in zip(self._hosts, state.hosts, strict=True):
            setup = host.functions.setup
            actor = HostActor(
                (others or {}).get(host.number, host.environment),
                setup.agent,
                setup.rule.policy,
                self._config.schedule(is_meta=True),
                setup.acting_params(agent.lifetime.acting),
                agent.key,
                self._config.exploration,
                int(agent.num_steps),
                np.isfinite(self._config.max_abs_reward),
            )
            self._actors.append(self._on_exit.enter_context(actor))

    def step(self, state: PopulationState) -> tuple[PopulationState, list[AgentResults]]:
        """Take one meta-step, which uses up the state; the results are of groups, then of agents on the host.

        They are in the order of `indices`.
        """
        updates, groups, hosts, results, ended = [], [], [], [], []
        for group, agents in zip(self._groups, state.groups, strict=True):
            meta_params = jax.device_put(state.meta_params, NamedSharding(group.mesh, PartitionSpec()))
            agents, output = group.step(meta_params, agents)
            groups.append(agents)
            ended.append(output.num_over)
            updates.append((output.update, output.weight))
            results.append(AgentResults(output.is_over, output.is_finite, output.metrics))
        of_hosts = list(zip(self._hosts, self._actors, state.hosts, strict=True))
        started = [self._learn_on_host(state.meta_params, *of_host) for of_host in of_hosts]  # on all devices at once
        of_devices: dict[jax.Device, list[tuple[Params, Array]]] = {}
        for (host, actor, _), learning in zip(of_hosts, started, strict=True):
            agent, own, one = self._end_on_host(host, actor, *learning)
            hosts.append(agent)
            of_devices.setdefault(host.device, []).append(own)
            results.append(one)
        updates.extend(map(self._sum, of_devices.values()))  # no device has to hold all of them
        for i, num_over in enumerate(ended):
            if int(num_over):
                groups[i] = self._groups[i].renew(groups[i], results[i].is_over)
        all_updates, weights = zip(*jax.device_put(updates, self._everywhere), strict=True)
        meta_params, opt_state = self._apply(state.meta_params, state.meta_opt_state, all_updates, weights)
        return PopulationState(meta_params, opt_state, tuple(groups), tuple(hosts)), results

    def _learn_on_host(self, meta_params: Params, host: _Host, actor: HostActor, agent: PopulationAgentState):
        """Let an agent begin to learn from what was acted; returns that, the state, and the output."""
        try:
            acted = actor.get(self._is_stopping)
        except NotFiniteError as error:
            raise NotFiniteError(f"agent {host.number}: {error}") from None
        meta_params, (experience, lifetime) = jax.device_put(meta_params, host.device), apart(agent.lifetime)
        others = agent._replace(key=acted.key, lifetime=lifetime)
        return acted, *host.functions.learn(experience, others, meta_params, acted.trajectories, acted.validation)

    def _end_on_host(
        self, host: _Host, actor: HostActor, acted: ActedIteration, agent: PopulationAgentState, output: AgentOutput
    ):
        """Wait until an agent has learned; returns its state, at a new lifetime or not, its update, and results."""
        functions, setup = host.functions, host.functions.setup
        assert acted.validation is not None
        if output.is_over:
            agent = functions.renew(agent, acted.validation.observation[0])
            actor.renew(setup.acting_params(agent.lifetime.acting))
        else:
            actor.params = setup.acting_params(agent.lifetime.acting)
        of_episodes: dict[str, Any] = {"episodes": len(acted.returns), "return_sum": sum(acted.returns)}
        metrics = output.metrics | of_episodes
        one = AgentResults(output.is_over, output.is_finite, metrics)
        return agent, (output.update, output.weight), jax.tree.map(lambda x: np.asarray(x)[None], one)

    @property
    def indices(self) -> list[list[int]]:
        """For each of the results the indices of its agents among the environments."""
        return [group.indices for group in self._groups] + [[host.number] for host in self._hosts]
