"""Discover a rule by a population of agents in many environments, over many lifetimes.

    python -m experiments.discover --steps=2000
    python -m experiments.discover --envs=toy/catch,toy/grid_world/0-7,envpool/CartPole-v1 --rule=frodo

--steps are meta-steps: each is M updates of every agent and one step of η. Writes one run folder,
results/discover/<rule>/. metrics.csv has one row per log point with `return/<env>`, the mean return of the episodes
that ended, and `end_return/<env>`, that of the last meta-step of lifetimes that ended; summary.json their means over
the last fifth of the run, and lifetimes and resets in all. rule.npz is η with its configuration, rules/<meta-step>.npz
what it was on the way; discovery.png is the return at the end of lifetimes, or of all episodes where no lifetime ends.
"""

import dataclasses
import tempfile
from typing import Any

import jax
import numpy as np
from absl import flags

from experiments import population_config, population_run, rules
from experiments.population_config import DiscoverConfig
from experiments.results import plots, reading
from experiments.runs import command_line, devices, logs, settings, training
from experiments.runs.errors import UsageError
from experiments.runs.folders import check_free, folder_of
from experiments.runs.logs import Progress
from experiments.runs.options import RunOptions
from experiments.runs.run import Run

NUM_ROWS, NUM_RULES = 200, 10  # log points at least, of long runs, and rules on the way
MAX_STEPS_OF_A_ROW = 100  # a run stops, and is saved, at a row


def run(config: DiscoverConfig, options: RunOptions) -> dict[str, Any]:
    """Discover, and write rule and curve into the run folder; returns the summary."""
    config.validate()
    if len(options.seeds) != 1:
        raise UsageError(f"--seeds={','.join(map(str, options.seeds))}: a population has one seed")
    if jax.process_index():  # process 0 has the run's folder
        folder = tempfile.TemporaryDirectory()
        out = folder_of(options, "discover", config.agent.rule.name)
        options = dataclasses.replace(options, out=folder.name, resume=False, resume_out=str(out))
    if not options.resume:
        check_free(folder_of(options, "discover", config.agent.rule.name), options)
    population = population_run.Population(config, options.seeds[0])
    state = population.init()  # before anything is written: the network may not suit an environment
    every = min(max(1, options.steps // NUM_ROWS), MAX_STEPS_OF_A_ROW)
    with Run(options, experiment="discover", name=config.agent.rule.name, config=config) as run, population:
        state, start = population.scatter(*run.restore(population.gather(state)), state)
        population.start(state, start)
        progress = Progress(total=options.steps, start=start)
        window = []
        for step in range(start + 1, options.steps + 1):
            state, metrics = population.step(state)
            window.append(metrics)
            if step % every == 0 or step == options.steps:
                row = population.reduce(window)
                window = []
                env_steps = step * population.steps_per_meta_step
                first = {"seed": options.seeds[0], "update": step, "env_steps": env_steps, "env_frames": env_steps}
                run.log([first | training.cost(run) | row])
                skipped = f", {row['resets']} resets" if row["resets"] else ""
                progress.update(step, f"return {np.mean(population.returns(row)):.3f}{skipped}")
            if step % max(1, options.steps // NUM_RULES) == 0 or step == options.steps:
                origin = rules.Origin(config.envs, step * population.steps_per_meta_step, None)
                rules.save(
                    run.folder / "rules" / f"{step:06d}.npz", config.agent, jax.device_get(state.meta_params), origin
                )
            if step % every == 0 or step == options.steps:
                is_due, run.interrupted = population.agree(run.is_due() or step == options.steps, run.interrupted)
                if is_due or run.interrupted:
                    whole = population.gather(state)
                    run.save(whole, step)
                    run.stop_if_interrupted(whole, step)
        results = reading.read(run.folder)
        origin = rules.Origin(config.envs, options.steps * population.steps_per_meta_step, run.cpu_seconds())
        rules.save(run.folder / "rule.npz", config.agent, jax.device_get(state.meta_params), origin)
        names = [name for name in results.columns if name.startswith(("return/", "end_return/"))]
        summary: dict[str, Any] = {name: float(reading.final_values(results, name)[0]) for name in names}
        summary |= {name: int(results.columns[name][-1]) for name in ("lifetimes", "resets")}
        summary["meta_steps"] = options.steps
        summary["cpu_seconds_per_meta_step"] = run.cpu_seconds() / options.steps
        run.finish(summary)
    summary["rule"] = str(run.folder / "rule.npz")
    if figure := draw(results, config, population.steps_per_meta_step):
        summary["figure"] = figure
    return summary


def draw(results: reading.Results, config: DiscoverConfig, steps_per_meta_step: int) -> str:
    """Draw the returns into the run's folder; returns the figure's path, "" where no episode ended."""
    envs = list(dict.fromkeys(config.envs))
    for prefix, ylabel in (("end_return", "mean return at the end of lifetimes"), ("return", "mean return")):
        found = [env for env in envs if np.isfinite(results.columns[f"{prefix}/{env}"]).any()]
        if found:
            series = [(env, reading.curve(results, f"{prefix}/{env}")) for env in found]
            curves = [curve._replace(label=env, x=curve.x / steps_per_meta_step) for env, curve in series]
            path, title = results.folder / "discovery.png", f"Discovery of the rule {config.agent.rule.name}"
            plots.curves(path, curves, title=title, xlabel="meta-steps", ylabel=ylabel)
            return str(path)
    return ""


def main(argv: list[str]) -> None:
    FLAGS = flags.FLAGS
    devices.join(FLAGS.coordinator, FLAGS.num_processes, FLAGS.process_id, FLAGS.timeout)
    preset = population_config.preset(FLAGS.rule, settings.parse_envs(FLAGS.envs), FLAGS.preset)
    if FLAGS.init_meta_params:
        command_line.not_both("rule", "init_meta_params")
        agent, _ = rules.load(FLAGS.init_meta_params, preset.agent)
        preset = dataclasses.replace(preset, agent=dataclasses.replace(agent, init_meta_params=FLAGS.init_meta_params))
    config, options = command_line.parse_options(argv, preset)
    summary = run(config, options)
    if not jax.process_index():
        print(logs.table([{"": name, "value": value} for name, value in summary.items()]))


if __name__ == "__main__":
    flags.DEFINE_string(
        "envs", "toy/catch,toy/grid_world/0-2", "Environments, one agent each, such as toy/grid_world/0-7."
    )
    flags.DEFINE_string("rule", "disco", "Rule at random η: disco, frodo or learned_loss.")
    flags.DEFINE_string("init_meta_params", "", "Begin with this rule: disco103, or a file that `discover` wrote.")
    flags.DEFINE_enum("preset", "small", list(population_config.PRESETS), "Settings that --config overrides.")
    flags.DEFINE_string("coordinator", "", "host:port of process 0, where several processes run one population.")
    flags.DEFINE_integer("num_processes", 1, "Processes of the population.")
    flags.DEFINE_integer("process_id", 0, "Which of them this one is.")
    flags.DEFINE_integer("timeout", 60, "Seconds to wait for the other processes.")
    without = ("envs", "agent.env", "agent.rule.name", "agent.init_meta_params", "agent.is_frozen", "agent.vmap_seeds")
    command_line.define_flags(DiscoverConfig(), seeds="0", steps="2000", without=without)
    command_line.start(main)
