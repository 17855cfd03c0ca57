"""Discovery by a population as a run: its settings, its folder, the rules on the way, and its curve."""

import contextlib
import dataclasses
from typing import Any

import jax
import numpy as np

from agents.environments.names import make_environment
from experiments.results import plots, reading
from experiments.runs import settings
from frodo.regimes.discovery import Populations, regime_of
from frodo.rules.files import config_for, load_settings
from frodo.runs.callbacks import Callback, by_name
from frodo.runs.driver import Driven, drive, end_program
from frodo.runs.errors import UsageError, caused_by
from frodo.runs.folders import RunOptions, of_process
from frodo.runs.run import Run
from frodo.settings.config import PopulationConfig

NUM_ROWS, NUM_RULES = 200, 10  # log points at least, of long runs, and rules on the way
MAX_STEPS_OF_A_ROW = 100  # a run stops, and is saved, at a row


@dataclasses.dataclass
class DiscoverConfig(PopulationConfig):
    """A population, where its agents live, and what its rule begins with.

    Attributes:
      envs: Names of environments, one agent for each entry.
      init_meta_params: The initial η: a discovered or fitted rule, or '' for random.
    """

    envs: tuple[str, ...] = ()
    init_meta_params: str = ""


def configure(rule: str, envs: tuple[str, ...], preset: str = "small", init_meta_params: str = "") -> DiscoverConfig:
    """Return the settings for a rule by its name, or for one that begins with a discovered one."""
    settings.check_kinds(rule, init_meta_params)
    config = DiscoverConfig(**vars(settings.population(rule, envs, preset)), envs=envs)
    if init_meta_params:
        config = config_for(load_settings(init_meta_params), config).replace(init_meta_params=init_meta_params)
    return config


def one_seed(options: RunOptions, what: str) -> int:
    """Return the only seed of a run that has one."""
    if len(options.seeds) != 1:
        raise UsageError(f"--seeds={','.join(map(str, options.seeds))}: {what} has one seed")
    return options.seeds[0]


def run(config: DiscoverConfig, options: RunOptions) -> dict[str, Any]:
    """Discover, and write rule and curve into the run folder; returns the summary."""
    config.validate()
    seed = one_seed(options, "a population")
    options = of_process(options, "discover", config.rule.name)
    make: Any = lambda i, step: make_environment(config.envs[i], config.batch_size, environment_seed(seed, i, step))
    environments = [make(i, 0) for i in range(len(config.envs))]
    every = min(max(1, options.steps // NUM_ROWS), MAX_STEPS_OF_A_ROW)
    how: dict[str, Any] = dict(meta_params=settings.initial_meta_params(config), every=every, seed=seed, make=make)
    with caused_by("--envs"):
        regime = regime_of(config, environments, jax.random.key(seed), config.envs, options.steps, **how)
    with contextlib.closing(regime), Run(options, experiment="discover", name=config.rule.name, config=config) as run:
        num = options.steps + config.strategy.generations
        on_the_way = RulesOnTheWay(run, regime, max(1, num // NUM_RULES), options.steps)
        stopped = drive(regime, run, [*by_name(options.log_to), on_the_way])
        end_program(stopped, run)
        cpu_seconds = run.clock.cpu_seconds()
        regime.rule(stopped.state, stopped.step, cpu_seconds).save(run.folder / "rule.npz")
        logged = reading.read(run.folder)
        names = [name for name in logged.columns if name.startswith(("return/", "end_return/"))]
        summary: dict[str, Any] = {name: float(reading.final_values(logged, name)[0]) for name in names}
        summary |= {name: int(logged.columns[name][-1]) for name in ("lifetimes", "resets")}
        summary |= {"meta_steps": options.steps, "generations": config.strategy.generations}
        summary |= {"cpu_seconds_per_meta_step": cpu_seconds / num}
        run.finish(summary)
    figure = draw(logged, config, regime.population.env_steps if isinstance(regime, Populations) else 0)
    return summary | {"rule": str(run.folder / "rule.npz")} | ({"figure": figure} if figure else {})


class RulesOnTheWay(Callback):
    """What the rule was at the first row after each so many moves of η, in rules/<moves>.npz.

    Moves are meta-steps and generations; what the rule is between the two is also written.
    """

    def __init__(self, run: Run, regime: Any, every: int, meta_steps: int):
        self._folder, self._regime, self._every, self._meta_steps = run.folder / "rules", regime, every, meta_steps

    def begin(self, driven: Driven) -> None:
        self._driven, self._last = driven, self._regime.updates(driven.latest.step)

    def see(self, row: dict[str, Any]) -> None:
        state, step = self._driven.latest.state, self._driven.latest.step
        num = self._regime.updates(step)
        is_due = num // self._every > self._last // self._every or num == self._meta_steps
        if is_due or self._regime.is_over(state, step):
            self._regime.rule(state, step).save(self._folder / f"{num:06d}.npz")
        self._last = num


def environment_seed(seed: int, agent: int, meta_step: int) -> int:
    """Return the seed of an agent's environments from a meta-step on; populations of other seeds share none."""
    return int(np.random.SeedSequence((seed, agent, meta_step)).generate_state(1)[0])


def draw(results: reading.Results, config: DiscoverConfig, env_steps: int) -> str:
    """Draw the returns into the run's folder; returns the figure's path, "" where there is none.

    `env_steps` are those of one meta-step; 0 where there are generations besides, and the axis has environment steps.
    """
    path, title = results.folder / "discovery.png", f"Discovery of the rule {config.rule.name}"
    for prefix, ylabel in (("end_return", "mean return at the end of lifetimes"), ("return", "mean return")):
        found = {env: reading.curve(results, f"{prefix}/{env}") for env in dict.fromkeys(config.envs)}
        found = {env: curve for env, curve in found.items() if np.isfinite(curve.y).any()}
        if found and not plots.can_draw():
            return ""
        if found:
            curves = [curve._replace(label=env, x=curve.x / (env_steps or 1)) for env, curve in found.items()]
            plots.curves(
                path, curves, title=title, xlabel="meta-steps" if env_steps else "environment steps", ylabel=ylabel
            )
            return str(path)
    return ""
