"""Discover a rule by a population of agents in many environments, over many lifetimes.

    python -m experiments.discover --steps=2000
    python -m experiments.discover --envs=toy/catch,toy/grid_world/0-7,envpool/CartPole-v1 --rule=frodo
    python -m experiments.discover --preset=disco57 --plan --num_devices=64

--steps are meta-steps: each is M updates of every agent and one step of η. Writes one run folder,
results/discover/<rule>/. metrics.csv has one row per log point with `return/<env>`, the mean return of the episodes
that ended, and `end_return/<env>`, that of the last meta-step of lifetimes that ended; summary.json their means over
the last fifth of the run, and lifetimes and resets in all. rule.npz is η with its configuration, rules/<meta-step>.npz
what it was on the way; discovery.png is the return at the end of lifetimes, or of all episodes where no lifetime ends.
"""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np
from absl import flags

from agents.environments.names import make_environment
from experiments.results import plots, reading
from experiments.runs import command_line, planning, settings
from experiments.runs.processes import define_process_flags, join
from frodo import logs
from frodo.regimes.discovery import Populations
from frodo.rules.files import config_for, load_settings
from frodo.runs.callbacks import Callback, by_name
from frodo.runs.driver import Driven, drive, end_program
from frodo.runs.errors import UsageError, caused_by
from frodo.runs.folders import of_process
from frodo.runs.options import RunOptions
from frodo.runs.run import Run
from frodo.settings import population_presets
from frodo.settings.config import PopulationConfig

NUM_ROWS, NUM_RULES = 200, 10  # log points at least, of long runs, and rules on the way
MAX_STEPS_OF_A_ROW = 100  # a run stops, and is saved, at a row


@dataclasses.dataclass
class DiscoverConfig(PopulationConfig):
    """A population, where its agents live, and what its rule begins with.

    Attributes:
      envs: Names of environments, one agent for each entry.
      init_meta_params: What η is at the start: a discovered or fitted rule, or '' for random.
    """

    envs: tuple[str, ...] = ()
    init_meta_params: str = ""


def run(config: DiscoverConfig, options: RunOptions) -> dict[str, Any]:
    """Discover, and write rule and curve into the run folder; returns the summary."""
    config.validate()
    if len(options.seeds) != 1:
        raise UsageError(f"--seeds={','.join(map(str, options.seeds))}: a population has one seed")
    options = of_process(options, "discover", config.rule.name)
    (seed,) = options.seeds
    make: Any = lambda i, step: make_environment(config.envs[i], config.batch_size, environment_seed(seed, i, step))
    environments = [make(i, 0) for i in range(len(config.envs))]
    every = min(max(1, options.steps // NUM_ROWS), MAX_STEPS_OF_A_ROW)
    how: dict[str, Any] = dict(meta_params=settings.initial_meta_params(config), every=every, seed=seed, make=make)
    with caused_by("--envs"):
        regime = Populations(config, environments, jax.random.key(seed), config.envs, options.steps, **how)
    with regime, Run(options, experiment="discover", name=config.rule.name, config=config) as run:
        on_the_way = RulesOnTheWay(run.folder, regime, max(1, options.steps // NUM_RULES))
        stopped = drive(regime, run, [*by_name(options.log_to), on_the_way])
        end_program(stopped, run)
        regime.rule(stopped.state, options.steps, run.clock.cpu_seconds()).save(run.folder / "rule.npz")
        summary = _summary(run, options.steps)
        run.finish(summary)
    summary["rule"] = str(run.folder / "rule.npz")
    if figure := draw(reading.read(run.folder), config, regime.population.env_steps):
        summary["figure"] = figure
    return summary


class RulesOnTheWay(Callback):
    """What the rule was at the first row after each so many meta-steps, in rules/<meta-step>.npz."""

    def __init__(self, folder: Path, regime: Populations, every: int):
        self._folder, self._regime, self._every = folder, regime, every

    def begin(self, driven: Driven) -> None:
        self._driven, self._last = driven, driven.latest.step

    def see(self, row: dict[str, Any]) -> None:
        state, step = self._driven.latest.state, self._driven.latest.step
        if step // self._every > self._last // self._every or step == self._regime.total:
            self._regime.rule(state, step).save(self._folder / f"rules/{step:06d}.npz")
        self._last = step


def environment_seed(seed: int, agent: int, meta_step: int) -> int:
    """Return the seed of an agent's environments from a meta-step on; populations of other seeds share none."""
    return int(np.random.SeedSequence((seed, agent, meta_step)).generate_state(1)[0])


def _summary(run: Run, num_steps: int) -> dict[str, Any]:
    """Return what the run came to."""
    logged = reading.read(run.folder)
    names = [name for name in logged.columns if name.startswith(("return/", "end_return/"))]
    summary: dict[str, Any] = {name: float(reading.final_values(logged, name)[0]) for name in names}
    summary |= {name: int(logged.columns[name][-1]) for name in ("lifetimes", "resets")}
    return summary | {"meta_steps": num_steps, "cpu_seconds_per_meta_step": run.clock.cpu_seconds() / num_steps}


def draw(results: reading.Results, config: DiscoverConfig, env_steps: int) -> str:
    """Draw the returns into the run's folder; returns the figure's path, "" where no episode ended.

    `env_steps` are those of one meta-step.
    """
    envs = list(dict.fromkeys(config.envs))
    for prefix, ylabel in (("end_return", "mean return at the end of lifetimes"), ("return", "mean return")):
        found = [env for env in envs if np.isfinite(results.columns[f"{prefix}/{env}"]).any()]
        if found:
            series = [(env, reading.curve(results, f"{prefix}/{env}")) for env in found]
            curves = [curve._replace(label=env, x=curve.x / env_steps) for env, curve in series]
            path, title = results.folder / "discovery.png", f"Discovery of the rule {config.rule.name}"
            plots.curves(path, curves, title=title, xlabel="meta-steps", ylabel=ylabel)
            return str(path)
    return ""


def configure(rule: str, envs: tuple[str, ...], preset: str = "small", init_meta_params: str = "") -> DiscoverConfig:
    """Return the settings for a rule by its name, or for one that begins with a discovered one."""
    config = DiscoverConfig(**vars(settings.population(rule, envs, preset)), envs=envs)
    if init_meta_params:
        config = config_for(load_settings(init_meta_params), config).replace(init_meta_params=init_meta_params)
    return config


def preset() -> DiscoverConfig:
    FLAGS = flags.FLAGS
    if FLAGS.init_meta_params:
        command_line.not_both("rule", "init_meta_params")
    envs = population_presets.ENVS.get(FLAGS.preset, ())
    if FLAGS["envs"].present or not envs:
        envs = settings.parse_envs(FLAGS.envs)
    with caused_by("--init_meta_params" if FLAGS.init_meta_params else "--rule"):
        return configure(FLAGS.rule, envs, FLAGS.preset, FLAGS.init_meta_params)


def main(argv: list[str]) -> None:
    FLAGS = flags.FLAGS
    join()
    config, options = command_line.parse_options(argv, preset())
    if FLAGS.num_devices and not FLAGS.plan:
        raise UsageError(f"--num_devices={FLAGS.num_devices}: it is of --plan; a run has --config.num_devices")
    if FLAGS.plan:
        planning.show_population(config, config.envs, options.steps)
        return
    with caused_by(f"--preset={FLAGS.preset}"):
        settings.parse_envs(",".join(config.envs))  # a plan knows environments that cannot be made
    summary = run(config, options)
    if not jax.process_index():
        print(logs.table([{"": name, "value": value} for name, value in summary.items()]))


if __name__ == "__main__":
    flags.DEFINE_string(
        "envs",
        "toy/catch,toy/grid_world/0-2",
        "Environments, one agent each, such as toy/grid_world/0-7; a paper's preset has its own.",
    )
    flags.DEFINE_string("rule", "disco", "Rule at random η: disco, frodo or learned_loss.")
    flags.DEFINE_string("init_meta_params", "", f"Begin with this rule: {settings.STARTS}.")
    flags.DEFINE_enum("preset", "small", list(population_presets.PRESETS), "Settings that --config overrides.")
    define_process_flags()
    planning.define_plan_flags()
    text = "Devices of the plan; those of a run are --config.num_devices."
    flags.DEFINE_integer("num_devices", 0, text, lower_bound=0)
    without = ("envs", "init_meta_params", "distillation")
    command_line.define_flags(DiscoverConfig(), seeds="0", steps="2000", without=without, preset=preset)
    command_line.start(main)
