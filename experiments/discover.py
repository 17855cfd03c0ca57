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

import contextlib
import dataclasses
from typing import Any

import jax
import numpy as np
from absl import flags

from agents.environments.host import HostEnvironment
from agents.environments.names import make_environment
from experiments.results import plots, reading
from experiments.runs import command_line, planning, settings
from experiments.runs.errors import UsageError, caused_by
from experiments.runs.folders import of_process
from experiments.runs.options import RunOptions
from experiments.runs.processes import define_process_flags, join
from experiments.runs.run import Run
from frodo import devices, logs, population_presets
from frodo.config import PopulationConfig
from frodo.population import Population, PopulationState, reduce_results, tell_not_finite
from frodo.rule_files import Origin, Rule, config_for, load_settings

NUM_ROWS, NUM_RULES = 200, 10  # log points at least, of long runs, and rules on the way
MAX_STEPS_OF_A_ROW = 100  # a run stops, and is saved, at a row


@dataclasses.dataclass
class DiscoverConfig(PopulationConfig):
    """A population, where its agents live, and what its rule begins with."""

    envs: tuple[str, ...] = ()  # one agent for each entry
    init_meta_params: str = ""  # what η is at the start: a discovered rule, or "" for random


def run(config: DiscoverConfig, options: RunOptions) -> dict[str, Any]:
    """Discover, and write rule and curve into the run folder; returns the summary."""
    config.validate()
    if len(options.seeds) != 1:
        raise UsageError(f"--seeds={','.join(map(str, options.seeds))}: a population has one seed")
    options = of_process(options, "discover", config.rule.name)
    meta_params = settings.initial_meta_params(config)
    (seed,) = options.seeds
    make = lambda i, step: make_environment(config.envs[i], config.batch_size, environment_seed(seed, i, step))
    environments = [make(i, 0) for i in range(len(config.envs))]
    hosts: dict[int, Any] = {i: one for i, one in enumerate(environments) if isinstance(one, HostEnvironment)}
    with contextlib.ExitStack() as on_exit:
        on_exit.callback(lambda: [one.close() for one in hosts.values()])
        with caused_by("--envs"):
            population = Population(config, environments, jax.random.key(seed))
        on_exit.callback(lambda: [hosts.pop(i) for i in list(hosts) if population.hangs])  # to close one might hang
        state = population.init(meta_params)  # before anything is written: the network may not suit an environment
        run = on_exit.enter_context(Run(options, experiment="discover", name=config.rule.name, config=config))
        on_exit.enter_context(population)
        state, start = devices.scatter(*run.restore(devices.gather(state)), state)
        if start:  # they are not to be seeded as they were at another meta-step
            for i in hosts:
                hosts[i].close()
                hosts[i] = make(i, start)
        population.start(state, hosts, lambda: run.interrupted)
        summary = _discover(run, config, population, state, start)
        run.finish(summary)
    summary["rule"] = str(run.folder / "rule.npz")
    if figure := draw(reading.read(run.folder), config, population.env_steps):
        summary["figure"] = figure
    return summary


def environment_seed(seed: int, agent: int, meta_step: int) -> int:
    """Return the seed of an agent's environments from a meta-step on; populations of other seeds share none."""
    return int(np.random.SeedSequence((seed, agent, meta_step)).generate_state(1)[0])


def _discover(
    run: Run, config: DiscoverConfig, population: Population, state: PopulationState, start: int
) -> dict[str, Any]:
    """Take the meta-steps that are left; returns what they came to."""
    num_steps = run.options.steps
    every = min(max(1, num_steps // NUM_ROWS), MAX_STEPS_OF_A_ROW)
    progress = logs.Progress(total=num_steps, start=start)
    window = []
    told: set[str] = set()  # environments whose agents were made anew

    def save(name: str, step: int, cpu_seconds: float | None) -> None:
        origin = Origin(config.envs, step * population.env_steps, cpu_seconds)
        rule = Rule(config.rule.name, config.agent_only(), jax.device_get(state.meta_params), origin)
        rule.save(run.folder / name)

    for step in range(start + 1, num_steps + 1):
        state, results = population.step(state)
        window.append(results)
        is_end = step == num_steps
        if step % every == 0 or is_end:
            row = reduce_results(window, population.indices, config.envs)
            if row["resets"]:
                for one in window:
                    tell_not_finite(one, population.indices, config.envs, told)
            window = []
            env_steps = step * population.env_steps
            first = {"seed": run.options.seeds[0], "update": step, "env_steps": env_steps, "env_frames": env_steps}
            run.log([first | run.cost() | row])
            returns = [value for name, value in row.items() if name.startswith("return/") and np.isfinite(value)]
            text = f"return {np.mean(returns):.3f}" if returns else "no episode ended"
            progress.update(step, text + (f", {row['resets']} resets" if row["resets"] else ""))
        if step % max(1, num_steps // NUM_RULES) == 0 or is_end:
            save(f"rules/{step:06d}.npz", step, None)
        if step % every == 0 or is_end:
            is_due, interrupted = devices.agree(run.is_due() or is_end, run.interrupted)
            if is_due or interrupted:
                whole = devices.gather(state)
                run.save(whole, step)
                run.stop_if_interrupted(whole, step, interrupted)
    save("rule.npz", num_steps, run.cpu_seconds())
    logged = reading.read(run.folder)
    names = [name for name in logged.columns if name.startswith(("return/", "end_return/"))]
    summary: dict[str, Any] = {name: float(reading.final_values(logged, name)[0]) for name in names}
    summary |= {name: int(logged.columns[name][-1]) for name in ("lifetimes", "resets")}
    return summary | {"meta_steps": num_steps, "cpu_seconds_per_meta_step": run.cpu_seconds() / num_steps}


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


def main(argv: list[str]) -> None:
    FLAGS = flags.FLAGS
    join()
    if FLAGS.init_meta_params:
        command_line.not_both("rule", "init_meta_params")
    envs = population_presets.ENVS.get(FLAGS.preset, ())
    if FLAGS["envs"].present or not envs:
        envs = settings.parse_envs(FLAGS.envs)
    with caused_by("--init_meta_params" if FLAGS.init_meta_params else "--rule"):
        preset = configure(FLAGS.rule, envs, FLAGS.preset, FLAGS.init_meta_params)
    config, options = command_line.parse_options(argv, preset)
    if FLAGS.num_devices and not FLAGS.plan:
        raise UsageError(f"--num_devices={FLAGS.num_devices}: it is of --plan; a run has --config.num_devices")
    if FLAGS.plan:
        planning.show_population(config, envs, options.steps)
        return
    with caused_by(f"--preset={FLAGS.preset}"):
        settings.parse_envs(",".join(envs))  # a plan knows environments that cannot be made
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
    command_line.define_flags(
        DiscoverConfig(), seeds="0", steps="2000", without=("envs", "init_meta_params", "distillation")
    )
    command_line.start(main)
