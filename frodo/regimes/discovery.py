"""The population regime as a call: rows of all agents, the rule that they found, and how it goes on."""

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from agents.environments.adapt import as_environment
from agents.environments.host import HostEnvironment
from agents.types import Array, Params
from agents.validation import check_count, check_type, checked_key
from frodo import devices
from frodo.logs import note
from frodo.regimes.arguments import check_known_values, check_meta_params
from frodo.regimes.online import host_seeds
from frodo.regimes.population import AgentResults, Population, PopulationState
from frodo.regimes.strategies import Generations
from frodo.rules.files import Origin, Rule, get_rule, population_config
from frodo.runs.driver import Advanced, Driven, Regime, drive, go_on_or_end
from frodo.runs.run import opened
from frodo.settings import population_presets, presets
from frodo.settings.config import PopulationConfig
from frodo.settings.observations import note_layout
from frodo.settings.registry import RULES, make_update_rule
from frodo.settings.strategies import StrategyConfig
from frodo.settings.unused import paths, refuse_unused


def reduce_results(
    window: Sequence[list[AgentResults]], indices: Sequence[Sequence[int]], names: Sequence[str]
) -> dict[str, Any]:
    """Turn the results of several meta-steps into one row.

    Args:
      window: what `Population.step` returned, one entry for each meta-step.
      indices: of the population.
      names: of the agents' environments; agents with the same name are taken together.
    Returns:
      return/<name>, the mean return of the episodes that ended; end_return/<name>, that of meta-steps in which a
      lifetime ended; means of outer_loss and meta_gradient_norm; and lifetimes and resets in all.
    """
    window = jax.device_get(devices.gather(window))
    per_name: dict[str, list[AgentResults]] = {name: [] for name in names}
    for own, group in zip(indices, zip(*window, strict=True), strict=True):
        stacked: AgentResults = jax.tree.map(lambda *xs: np.stack(xs), *group)
        for j, i in enumerate(own):
            per_name[names[i]].append(jax.tree.map(lambda x, j=j: x[:, j], stacked))
    row: dict[str, Any] = {}
    for name, agents in per_name.items():
        row[f"return/{name}"] = _mean_return(agents, [x.is_over | True for x in agents])
        row[f"end_return/{name}"] = _mean_return(agents, [x.is_over & x.is_finite for x in agents])
    everyone = [agent for agents in per_name.values() for agent in agents]
    for name in ("outer_loss", "meta_gradient_norm"):
        values = np.concatenate([agent.metrics[name] for agent in everyone])
        values = values[np.isfinite(values)]  # one that waits for its replay has none
        row[name] = float(values.mean()) if len(values) else float("nan")
    for name in ("lifetimes", "resets"):
        row[name] = int(sum(agent.metrics[name][-1] for agent in everyone))
    return row


def tell_not_finite(
    window: Sequence[list[AgentResults]], indices: Sequence[Sequence[int]], names: Sequence[str], told: set[str]
) -> None:
    """Say of each environment once that an agent in it was made anew; `told` are those of which it was said."""
    agents = [i for own in indices for i in own]
    for results in jax.device_get(devices.gather(window)):
        is_finite = np.concatenate([group.is_finite for group in results])
        for i in (agents[j] for j in np.flatnonzero(~is_finite)):
            if names[i] not in told:
                told.add(names[i])
                note(
                    f"agent {i}, in {names[i]}, is made anew, as its parameters or meta-gradient are not finite: by "
                    "what it learned, or by what the environment showed; `resets` counts such agents"
                )


def _mean_return(agents: Sequence[AgentResults], masks: Sequence[Array]) -> float:
    total = lambda name: sum(float(np.sum(x.metrics[name] * mask)) for x, mask in zip(agents, masks, strict=True))
    count = total("episodes")
    return total("return_sum") / count if count else float("nan")


class Discovery(NamedTuple):
    """What a population discovered.

    Attributes:
      rule: the rule with its η: `rule.save(path)` writes it, every function that takes a rule takes it.
      metrics: of every meta-step, [meta-steps] each: return/<name> and end_return/<name> of each environment (the mean
        return of all episodes, and of those at the end of lifetimes; nan where none ended), outer_loss,
        meta_gradient_norm, lifetimes and resets.
      state: the population's, to go on from; of a run with `strategy.generations` another one, which cannot.
    """

    rule: Rule
    metrics: dict[str, np.ndarray]
    state: PopulationState

    def save(self, path: Path | str) -> None:
        """Write the rule, as `Rule.save`."""
        self.rule.save(path)


class Populations(Regime):
    """The meta-steps of a population.

    Args:
      config, environments, key: those of `Population`.
      names: of the environments, in rows.
      num_steps: meta-steps.
      meta_params: the initial η; None for random.
      start: the state to go on from, which stays as it is; None to begin.
      every: meta-steps between two rows; a run stops, and is saved, at a row.
      make: agent, meta-step -> an environment on the host, to go on in; None for the one given.
      env_steps_before: those in which η was trained before, for its origin.
      is_kept: whether the rows are kept for the result.
    """

    unit = "meta-steps"

    def __init__(
        self,
        config: PopulationConfig,
        environments: Sequence[Any],
        key: Array,
        names: Sequence[str],
        num_steps: int,
        *,
        meta_params: Params | None = None,
        start: PopulationState | None = None,
        every: int = 1,
        seed: int = 0,
        make: Callable[[int, int], HostEnvironment] | None = None,
        env_steps_before: int = 0,
        is_kept: bool = False,
    ):
        self.population = Population(config, environments, key)
        if start is None:
            self.population.check(meta_params)
        self._config, self._names, self._meta_params, self._start = config, tuple(names), meta_params, start
        self.total, self._every, self._seed, self._make = num_steps, every, seed, make
        self._env_steps_before, self._is_kept = env_steps_before, is_kept
        self._hosts = {i: one for i, one in enumerate(environments) if isinstance(one, HostEnvironment)}
        self._told: set[str] = set()  # environments whose agents were made anew
        self._num_resets = 0
        self.rows: list[dict[str, Any]] = []

    def init(self) -> PopulationState:
        if self._start is not None:
            return jax.tree.map(jnp.copy, self._start)
        return self.population.init(self._meta_params)

    def begin(self, state: PopulationState, step: int, driven: Driven) -> PopulationState:
        self.rows = list(driven.told or [])
        if step and self._make:  # they are not to be seeded as they were at another meta-step
            for i, one in self._hosts.items():
                one.close()
                self._hosts[i] = self._make(i, step)
        self.population.start(state, self._hosts, driven.is_stopping)
        return state

    def advance(self, state: PopulationState, step: int) -> Advanced:
        window: list[list[AgentResults]] = []
        while not window or (step % self._every and step < self.total):
            state, results = self.population.step(state)
            window.append(results)
            step += 1
        row = reduce_results(window, self.population.indices, self._names)
        if row["resets"] > self._num_resets:
            tell_not_finite(window, self.population.indices, self._names, self._told)
        self._num_resets = row["resets"]
        if self._is_kept:
            self.rows.append(row)
        env_steps = step * self.population.env_steps
        first = {"seed": self._seed, "update": step, "env_steps": env_steps, "env_frames": env_steps}
        returns = [x for name, x in row.items() if name.startswith("return/") and np.isfinite(x)]
        text = f"return {np.mean(returns):.3f}" if returns else "no episode ended"
        return Advanced(state, step, [first | row], text + (f", {row['resets']} resets" if row["resets"] else ""))

    def updates(self, step: int) -> int:
        """Return how often η has moved up to a step of the run."""
        return step

    def told(self) -> Any:
        return self.rows if self._is_kept else None

    def close(self, *exception: Any) -> None:
        self.population.__exit__(*exception or (None, None, None))
        if self._make and not self.population.hangs:  # to close one that hangs might hang, too
            for one in self._hosts.values():
                one.close()

    def rule(self, state: PopulationState, step: int, cpu_seconds: float | None = None) -> Rule:
        """Return the rule with its η as it is."""
        origin = Origin(self._names, self._env_steps_before + step * self.population.env_steps, cpu_seconds)
        return Rule(self._config.rule.name, self._config.agent_only(), jax.device_get(state.meta_params), origin)


def regime_of(
    config: PopulationConfig,
    environments: Sequence[Any],
    key: Array,
    names: Sequence[str],
    num_steps: int,
    *,
    meta_params: Params | None = None,
    start: PopulationState | None = None,
    is_kept: bool = False,
    env_steps_before: int = 0,
    **of_meta_steps: Any,
) -> Populations | Generations:
    """Return the meta-steps of a population, and the generations after them, if there are any; arguments as of both.

    Raises:
      ValueError: where there is something to go on from, which generations cannot, or nothing to do.
    """
    before: dict[str, Any] = dict(meta_params=meta_params, start=start, env_steps_before=env_steps_before)
    population = functools.partial(Populations, config, environments, key, names, num_steps, **before, **of_meta_steps)
    if not config.strategy.generations:
        return population(is_kept=is_kept)
    if start is not None:
        raise ValueError(f"start is given, expected none with strategy.generations ({config.strategy.generations})")
    rule = make_update_rule(config.rule)
    check_meta_params(rule, 2, meta_params)
    initial = meta_params
    if initial is None:
        initial = rule.random_meta_params(jax.random.split(key)[0], 2)  # as `Population.init` does
    seed = of_meta_steps.get("seed", 0)
    how: dict[str, Any] = dict(seed=seed, env_steps_before=env_steps_before, is_kept=is_kept)
    first = population() if num_steps else None
    return Generations(first, config, environments, jax.random.fold_in(key, 2**31 - 1), names, initial, **how)


def discover(
    environments: Mapping[str, Any] | Sequence[Any],
    rule: Rule | str = "frodo",
    *,
    num_meta_steps: int,
    key: Array,
    start: Discovery | None = None,
    folder: Path | str | None = None,
    callbacks: Sequence[Any] = (),
    **settings: Any,
) -> Discovery:
    """Discover a rule by a population of agents, one in each environment, over many lifetimes (Oh et al. 2025).

    Args:
      environments: one for each agent, of the kinds that `discover_online` takes; with names, or numbered from 0.
      rule: a learned `Rule`, a name that `load_rule` takes, or a learned one in `RULES`, such as 'frodo' or 'disco'.
        With a name in `RULES`, η is random initially and agents are those of `population_presets.small`.
      num_meta_steps: each is M updates of every agent and one step of η; at least 1, or with `strategy.generations` 0.
      key: of all randomness in JAX.
      start: an earlier discovery in the same environments, whose agents and η go on.
      folder: as that of `discover_online`.
      callbacks: as those of `discover_online`; there is a row for each meta-step.
      **settings: fields of `PopulationConfig` that replace the defaults. Where all environments show pictures, agents
        have the torso for pictures, unless these say otherwise.
    Returns:
      The rule with the discovered η, metrics of every meta-step, and the state to go on from.
    Raises:
      ValueError: naming the setting that is not known, is bad, changes nothing, or does not fit the environments.
      TypeError: if an environment is of no kind that is known.
    """
    key = checked_key(key)
    strategy = settings.get("strategy")
    has_generations = isinstance(strategy, StrategyConfig) and strategy.generations > 0
    check_count("num_meta_steps", num_meta_steps, 0 if has_generations else 1)
    if start is not None:
        check_type("start", start, Discovery, "what `discover` returned")
        check_type("start.state", start.state, PopulationState, "that of a discovery without strategy.generations")
    if isinstance(environments, str):
        raise ValueError(f"environments is {environments!r}, expected a list of environments, one for each agent")
    if not isinstance(environments, Mapping):
        expected = "a mapping from names to environments, or a sequence of them"
        check_type("environments", environments, Sequence, expected)
        environments = {str(i): environment for i, environment in enumerate(environments)}
    names = list(environments)
    if isinstance(rule, str) and rule in RULES:
        config, meta_params = population_presets.small(rule), None
    else:
        given = get_rule(rule)
        config, meta_params = PopulationConfig(**vars(population_config(given))), given.meta_params
    size = settings.get("batch_size", config.batch_size)
    check_count("batch_size", size)
    seeds = host_seeds(key, 1 + len(names), len(names))  # the population splits the key into as many
    agents = [as_environment(x, size, seed) for x, seed in zip(environments.values(), seeds, strict=True)]
    if all(presets.is_picture(agent.observation_shape, agent.observation_dtype) for agent in agents):
        config = presets.with_images(config, presets.atari("").network)
    sizes = {agent.num_envs for agent in agents if isinstance(agent, HostEnvironment)}
    config = config.replace(**({"batch_size": sizes.pop()} if len(sizes) == 1 else {}) | settings)
    for agent in agents:
        check_known_values(config, agent)
    for shape in {agent.observation_shape for agent in agents}:
        note_layout(config.network, shape)
    earlier = start.rule.origin.env_steps if start and start.rule.origin else 0
    regime = regime_of(
        config,
        agents,
        key,
        names,
        num_meta_steps,
        meta_params=meta_params,
        start=start and start.state,
        env_steps_before=earlier or 0,
        is_kept=True,
    )
    refuse_unused(config, paths(settings), is_in_jax=not all(isinstance(agent, HostEnvironment) for agent in agents))
    about = {"key": str(jax.random.key_data(key).tolist()), "environments": ", ".join(names)}
    about["start"] = str(earlier)

    def result(state: Any, step: int) -> Discovery:
        metrics = {name: np.array([row[name] for row in regime.rows]) for name in (regime.rows or [{}])[0]}
        return Discovery(regime.rule(state, step), metrics, jax.tree.map(jnp.copy, state))

    with opened(folder, "discover", config.rule.name, config, num_meta_steps, about, "num_meta_steps") as run:
        stopped = drive(regime, run, callbacks, result)
        go_on_or_end(stopped, run)
    return result(stopped.state, stopped.step)
