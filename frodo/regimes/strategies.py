"""Evolution strategies for η: in a generation agents with different η live whole lifetimes, and η moves by their ranks.

The returns at the end of lifetimes are ranked in each environment, or of whole lifetimes where no episode ends in their
last part; the fitness of an η is the mean of its ranks. evosax makes the generations, and moves the mean. The lifetimes
of a generation in an environment are one program, and go on part by part, so that a run can be stopped within one.

Sources: OpenAI-ES: Salimans et al. 2017. SNES: Wierstra et al. 2014.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import scipy.stats

from agents.types import Array, Params
from frodo import devices
from frodo.logs import note
from frodo.regimes.arguments import are_finite
from frodo.regimes.learner import build_learner
from frodo.regimes.lifetimes import OnlineState, make_online_program
from frodo.rules.files import Origin, Rule
from frodo.runs.driver import Advanced, Driven, Regime
from frodo.runs.memory import check, needs, num_bytes
from frodo.runs.run import FIRST_COLUMNS
from frodo.settings.config import PopulationConfig
from frodo.settings.registry import make_update_rule
from frodo.settings.strategies import StrategyConfig
from toy_envs.base import Environment

PART_STEPS = 400_000  # environment steps of all lifetimes between two stops, at most, or one iteration
LAST = 0.1  # the share of a life at its end, whose returns are ranked


class StrategyState(NamedTuple):
    """A generation under way.

    Attributes:
      key: of all randomness to come.
      strategy: evosax's state, which has the mean.
      candidates: the η of this generation, [n, ...] each.
      lifetimes: in each environment, [n, ...].
      sums: of returns and of episodes, over whole lifetimes and over their last parts, [environments, 4, n].
      num_lifetimes: that are over, those of meta-steps before included.
      num_failed: those of them whose parameters were not finite at their end.
    """

    key: Array
    strategy: Any
    candidates: Params
    lifetimes: tuple[OnlineState, ...]
    sums: Array
    num_lifetimes: Array
    num_failed: Array


def make_strategy(config: StrategyConfig, meta_params: Params) -> tuple[Any, Any]:
    """Return evosax's algorithm for such an η, and its parameters.

    Raises:
      ModuleNotFoundError: if evosax is not installed.
    """
    try:
        from evosax.algorithms import SNES, Open_ES
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"evolution strategies need {error.name}: pip install 'frodo-rl[strategies]'"
        ) from None
    if config.kind == "snes":
        snes = SNES(config.size, meta_params, optimizer=optax.sgd(1.0))
        return snes, snes.default_params.replace(std_init=jnp.asarray(config.stddev))
    stddev = optax.constant_schedule(config.stddev)
    open_es = Open_ES(config.size, meta_params, optimizer=optax.adam(config.learning_rate), std_schedule=stddev)
    return open_es, open_es.default_params


def fitness_of(returns: np.ndarray) -> np.ndarray:
    """Turn returns [environments, n] into fitness, the lower the better: minus the mean rank; nan is the worst."""
    ranks = scipy.stats.rankdata(np.where(np.isfinite(returns), returns, -np.inf), axis=1)
    return -np.mean(ranks, axis=0).astype(np.float32)


def ranked(returns: np.ndarray) -> np.ndarray:
    """Choose from returns [environments, 2, n], of whole lifetimes and of their last parts, what is ranked."""
    whole, last = returns[:, 0], returns[:, 1]
    return np.where(np.isfinite(last).any(axis=1, keepdims=True), last, whole)


class Strategies:
    """Generations of lifetimes.

    Args:
      config: of the agents, with `strategy`; a life has the one number of environment steps in `budgets`.
      environments: pure ones; each η has a life in every one.
    Raises:
      ValueError: naming an environment that is not pure, if there are several processes, or if all lifetimes of a
        generation need more memory than there is.
    """

    def __init__(self, config: PopulationConfig, environments: Sequence[Any]):
        if jax.process_count() > 1:
            raise ValueError(
                f"strategy.generations is {config.strategy.generations}, expected 0 with several processes"
            )
        for i, environment in enumerate(environments):
            if not isinstance(environment, Environment):
                raise ValueError(f"environment {i} is stepped on the host, expected pure ones for strategy.generations")
        self._config, self._environments, self._num = config, list(environments), config.strategy.size
        self._devices = jax.devices()[: config.num_devices or None]
        shapes = make_update_rule(config.rule).meta_param_shapes()
        like = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        self._strategy, self._params = make_strategy(config.strategy, like)
        self._env_steps = config.num_env_steps(is_meta=False)
        self._length = config.budgets[0] // self._env_steps  # iterations of a life
        self._part = max(1, min(self._length, PART_STEPS // (self._env_steps * self._num)))
        self._parts = -(-self._length // self._part)  # of a life
        self._runs: dict[Environment, Any] = {}
        self._kept, self._acted = 0, 0  # bytes
        self._inits = [self._make(environment, like) for environment in self._environments]
        check({"strategy.size": self._kept + self._acted})

    @property
    def num_stops(self) -> int:
        """How often a generation can be stopped, the last time at its end."""
        return self._parts * len(self._environments)

    def env_steps(self, stops: int) -> int:
        """Return the environment steps up to a stop, counted from the first generation."""
        generations, rest = divmod(stops, self.num_stops)
        number, parts = divmod(rest, self._parts)
        iterations = (generations * len(self._environments) + number) * self._length + parts * self._part
        return iterations * self._env_steps * self._num

    def _make(self, environment: Environment, meta_params: Params) -> Any:
        learner = build_learner(self._config, environment.num_actions, is_frozen=True)
        over_lifetimes = (
            jax.vmap if self._config.vmap_agents else lambda fn: lambda lifetimes: jax.lax.map(fn, lifetimes)
        )
        if environment.program not in self._runs:
            program = make_online_program(learner, environment.program)

            def run(lifetimes: OnlineState, iterations: int):
                run_all = over_lifetimes(lambda life: program.run(life, iterations)[:2])
                lifetimes, metrics = devices.shared_out(run_all, self._num, self._devices)(lifetimes)
                return lifetimes, metrics["return_sum"], metrics["episodes"]

            self._runs[environment.program] = jax.jit(run, static_argnums=1, donate_argnums=0)
        of_environment = make_online_program(learner, environment)
        init = devices.shared_out(lambda both: jax.vmap(of_environment.init)(*both), self._num, self._devices)
        many = lambda x: jax.ShapeDtypeStruct((self._num, *x.shape), x.dtype)
        shapes = jax.eval_shape(init, jax.tree.map(many, (jax.eval_shape(jax.random.key, 0), meta_params)))
        num = self._num if self._config.vmap_agents else devices.mesh_size(self._num, len(self._devices))
        acted = needs(self._config, learner.setup.agent, environment, False, (), num)
        self._kept, self._acted = self._kept + num_bytes(shapes), max(self._acted, sum(acted.values()))
        return jax.jit(init, compiler_options=devices.quick_to_compile())

    def init(self, key: Array, meta_params: Params, num_lifetimes: int = 0, num_failed: int = 0) -> StrategyState:
        """Begin the first generation around an η; numbers are those of lifetimes before."""
        key, own_key = jax.random.split(key)
        strategy = self._strategy.init(own_key, meta_params, self._params)
        return self._begun(key, strategy, jnp.asarray(num_lifetimes), jnp.asarray(num_failed))

    def _begun(self, key: Array, strategy: Any, *numbers: Array) -> StrategyState:
        """Begin a generation; both η of a pair live with the same keys."""
        # Arrays of a checkpoint are tied to a device: where lifetimes lie is for `shared_out` to say.
        data, strategy = jax.device_get((jax.random.key_data(key), strategy))
        key = jax.random.wrap_key_data(jnp.asarray(data))
        key, ask_key, *keys = jax.random.split(key, 2 + len(self._environments))
        candidates, strategy = self._strategy.ask(ask_key, strategy, self._params)
        pairs = lambda key: jnp.tile(jax.random.split(key, self._num // 2), 2)
        lifetimes = tuple(init((pairs(own), candidates)) for init, own in zip(self._inits, keys, strict=True))
        sums = jnp.zeros((len(self._environments), 4, self._num))
        return StrategyState(key, strategy, candidates, lifetimes, sums, *numbers)

    def mean(self, state: StrategyState) -> Params:
        """Return η, the mean of the generation."""
        return self._strategy.get_mean(state.strategy)

    def advance(self, state: StrategyState, stops: int) -> tuple[StrategyState, np.ndarray | None]:
        """Go on to the next stop; at the end of a generation, return its returns [environments, 2, n], too.

        They are the mean returns of whole lifetimes and of their last parts; nan where no episode ended.
        """
        number, part = divmod(stops % self.num_stops, self._parts)
        first = part * self._part
        num = min(self._part, self._length - first)
        run = self._runs[self._environments[number].program]
        lifetimes, returns, episodes = run(state.lifetimes[number], num)
        is_last = first + jnp.arange(num) >= self._length - max(1, round(LAST * self._length))
        whole = (returns, episodes, returns * is_last, episodes * is_last)
        added = jax.device_get([jnp.sum(x, axis=1) for x in whole])
        all_of_them = (*state.lifetimes[:number], lifetimes, *state.lifetimes[number + 1 :])
        state = state._replace(lifetimes=all_of_them, sums=state.sums.at[number].add(np.stack(added)))
        if (stops + 1) % self.num_stops:
            return state, None
        return self._told(state)

    def _told(self, state: StrategyState) -> tuple[StrategyState, np.ndarray]:
        """Move η by the ranks of a generation that is over, and begin the next one."""
        sums = np.asarray(jax.device_get(state.sums), np.float64)
        with np.errstate(invalid="ignore"):
            found = sums[:, ::2] / sums[:, 1::2]
        is_finite = np.stack([np.asarray(are_finite(lifetimes.learner.params)) for lifetimes in state.lifetimes])
        fitness = fitness_of(np.where(is_finite, ranked(found), np.nan))
        key, tell_key = jax.random.split(state.key)
        strategy, _ = self._strategy.tell(
            tell_key, state.candidates, jnp.asarray(fitness), state.strategy, self._params
        )
        num_lifetimes = state.num_lifetimes + is_finite.size
        return self._begun(key, strategy, num_lifetimes, state.num_failed + int(np.sum(~is_finite))), found


class Generations(Regime):
    """The meta-steps of a population, if there are any, and then generations of an evolution strategy.

    Args:
      first: the meta-steps; None for none.
      config, environments: those of `Strategies`.
      key: of the generations.
      names: of the environments, in rows.
      meta_params: η before all.
      env_steps_before: those in which η was trained before, for its origin.
      is_kept: whether the rows are kept for the result.
    """

    def __init__(
        self,
        first: Any,
        config: PopulationConfig,
        environments: Sequence[Any],
        key: Array,
        names: Sequence[str],
        meta_params: Params,
        *,
        seed: int = 0,
        env_steps_before: int = 0,
        is_kept: bool = False,
    ):
        self.strategies = Strategies(config, environments)
        self._first, self._num_first = first, first.total if first else 0
        self._config, self._key, self._names, self._meta_params = config, key, tuple(names), meta_params
        self._seed, self._before, self._is_kept = seed, env_steps_before, is_kept
        self._end = self._num_first + config.strategy.generations * self.strategies.num_stops
        self.total = int(self.done(self._end))
        self.rows: list[dict[str, Any]] = []
        self._told: set[str] = set()  # environments of which `_tell` spoke

    def init(self) -> tuple[Any, StrategyState]:
        return self._first.init() if self._first else (), self.strategies.init(self._key, self._meta_params)

    def begin(self, state: tuple[Any, StrategyState], step: int, driven: Driven) -> tuple[Any, StrategyState]:
        first, own = state
        if step < self._num_first:
            first = self._first.begin(first, step, driven)
        self.rows = list(driven.told or [])
        return first, own

    def advance(self, state: tuple[Any, StrategyState], step: int) -> Advanced:
        first, own = state
        if step < self._num_first:
            advanced = self._first.advance(first, step)
            if advanced.step == self._num_first:
                numbers = (advanced.rows[-1][name] for name in ("lifetimes", "resets"))
                own = self.strategies.init(self._key, advanced.state.meta_params, *numbers)
            self._keep(advanced.rows)
            return advanced._replace(state=(advanced.state, own))
        own, found = self.strategies.advance(own, step - self._num_first)
        step += 1
        if found is None:
            return Advanced((first, own), step)
        self._tell(found)
        row = self._row(found, own, step)
        self._keep([row])
        returns = [x for name, x in row.items() if name.startswith("end_return/") and np.isfinite(x)]
        return Advanced((first, own), step, [row], f"return {np.mean(returns):.3f}" if returns else "no episode ended")

    def _tell(self, found: np.ndarray) -> None:
        """Say once of each environment that what is ranked there is not what is asked for."""
        for name, (whole, last) in zip(self._names, np.isfinite(found).any(axis=2), strict=True):
            if not last and name not in self._told:
                self._told.add(name)
                what = "those of whole lifetimes are ranked" if whole else "nothing is ranked there"
                note(f"{name}: no episode ended in the last tenth of a lifetime: {what}; longer budgets have more ends")

    def _row(self, found: np.ndarray, state: StrategyState, step: int) -> dict[str, Any]:
        """Return a row of a generation that is over, with the columns of a population's."""
        env_steps = int(self.done(step))
        row: dict[str, Any] = {"seed": self._seed, "update": self.updates(step)}
        row |= {"env_steps": env_steps, "env_frames": env_steps}
        for name in dict.fromkeys(self._names):
            own = found[[x == name for x in self._names]]
            for i, column in enumerate(("return", "end_return")):
                is_there = np.isfinite(own[:, i])
                row[f"{column}/{name}"] = float(np.mean(own[:, i][is_there])) if is_there.any() else float("nan")
        return row | {
            "outer_loss": float("nan"),
            "meta_gradient_norm": float("nan"),
            "lifetimes": int(state.num_lifetimes),
            "resets": int(state.num_failed),
        }

    def _keep(self, rows: Sequence[Any]) -> None:
        if self._is_kept:
            self.rows += [{x: value for x, value in row.items() if x not in FIRST_COLUMNS} for row in rows]

    def updates(self, step: int) -> int:
        """Return how often η has moved up to a step of the run: meta-steps and generations."""
        return min(step, self._num_first) + max(0, step - self._num_first) // self.strategies.num_stops

    def is_over(self, state: Any, step: int) -> bool:
        return step >= self._end

    def done(self, step: int) -> float:
        num = min(step, self._num_first)
        of_first = num * self._first.population.env_steps if self._first else 0
        return of_first + self.strategies.env_steps(max(0, step - self._num_first))

    def told(self) -> Any:
        return self.rows if self._is_kept else None

    def close(self, *exception: Any) -> None:
        if self._first:
            self._first.close(*exception)

    def rule(self, state: tuple[Any, StrategyState], step: int, cpu_seconds: float | None = None) -> Rule:
        """Return the rule with its η as it is: after meta-steps, or the mean of the generation."""
        first, own = state
        meta_params = first.meta_params if step < self._num_first else self.strategies.mean(own)
        origin = Origin(self._names, self._before + int(self.done(step)), cpu_seconds)
        return Rule(self._config.rule.name, self._config.agent_only(), jax.device_get(meta_params), origin)
