"""Lifetimes as runs: logged, checkpointed, stopped and resumed, in pure environments and on the host.

metrics.csv has, besides the columns of all runs: cpu_seconds (of the process, all threads, since the run was started
or resumed), peak_memory_mb, episodes and return (of those that ended since the row before, nan if none did),
human_normalised on Atari, what the learner reports (means over iterations), and what is known of a toy in closed form
(`exact_metrics.py`). In pure environments last_iterations.npz is written, too: the metrics of every iteration since the
last but one row, [seeds, iterations], and env_steps [iterations].
"""

import contextlib
import functools
import resource
import sys
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from agents.environments.atari57 import human_normalised
from agents.environments.envpool import ATARI_PREPROCESSING
from agents.environments.host import HostEnvironment
from agents.environments.names import is_pure, make_environment
from agents.host_acting import HostActor
from agents.types import Params
from experiments.results import reading
from experiments.runs import exact_metrics
from experiments.runs.devices import use_one_thread
from experiments.runs.errors import RunError
from experiments.runs.options import RunOptions
from experiments.runs.run import FIRST_COLUMNS, Run
from frodo import devices, files
from frodo.config import OnlineConfig
from frodo.learner import Control, Learner, build_learner
from frodo.logs import Progress
from frodo.online import make_online_program, why_stopped
from toy_envs.base import Environment

CHUNK, CHUNKS = 100, 20  # iterations between log points in pure environments, at most, and log points at least
SMALL = 10**8  # multiplications of an update's largest products, up to which it is run by one thread
ROWS = 200  # log points of a seed on the host, at most


def train(
    config: OnlineConfig,
    options: RunOptions,
    *,
    experiment: str,
    name: str,
    meta_params: Params | None = None,
    make: Callable[[str, int, int], Environment | HostEnvironment] = make_environment,
) -> dict[str, Any]:
    """Run one configuration for all seeds and write its results folder.

    Args:
      config, options, experiment, name: what is run, how, and in which folder (`folder_of`).
      meta_params: η at the start, what `settings.initial_meta_params` loads; None for random.
      make: makes the environment from its name, the size of the batch and a seed.
    Returns:
      the summary, which is also in summary.json: env_steps of a seed; steps_per_cpu_second, compilation left out; and
      for each metric of metrics.csv `<metric>`, its mean over the last fifth of the run, a number for each seed.
    Raises:
      ValueError: if the environment or a setting is not what it should be.
      RunError: if ten meta-gradients in a row, or the agent's parameters, were not finite.
    """
    config.validate()
    if len(options.seeds) == 1 and is_pure(config.env) and _is_small(config):
        use_one_thread()
    environment = make(config.env, config.batch_size, options.seeds[0])
    assert bool(config.init_meta_params) == (meta_params is not None)
    learner = _make_learner(config, environment)
    # On a host, seeds run one after the other: those that are done would not go on.
    is_extensible = isinstance(environment, Environment) or len(options.seeds) == 1
    with Run(options, experiment=experiment, name=name, config=config, is_extensible=is_extensible) as run:
        if isinstance(environment, Environment):
            _train_in_jax(run, config, environment, learner, meta_params)
        else:
            _train_on_host(run, config, environment, learner, meta_params, make)
        summary = _summary(run, seeds_at_once=len(options.seeds) if isinstance(environment, Environment) else 1)
        run.finish(summary)
    return summary


def _is_small(config: OnlineConfig) -> bool:
    """Whether two threads would take as long as one: by the size of an update's largest products."""
    batch_size = config.replay.batch_size if config.replay.capacity else config.batch_size
    width = max(*config.network.hidden, config.network.core, getattr(config.rule.settings, "lstm", 0), 0)
    return batch_size * config.unroll * width**2 < SMALL


def _make_learner(config: OnlineConfig, environment: Environment | HostEnvironment) -> Learner:
    """Make the learner, or raise a ValueError before anything is written: the network may not suit the observations."""
    learner = build_learner(config, environment.num_actions, config.is_frozen)
    dtype = environment.observation_dtype if isinstance(environment, HostEnvironment) else jnp.float32
    observation = jnp.zeros((config.batch_size, *environment.observation_shape), dtype)
    jax.eval_shape(learner.init, jax.random.key(0), observation)
    return learner


def _train_in_jax(
    run: Run, config: OnlineConfig, environment: Environment, learner: Learner, meta_params: Params | None
) -> None:
    """Run all seeds as one program, shared out over the devices."""
    seeds = run.options.seeds
    program = make_online_program(learner, environment, exact_metrics.iteration_metrics(environment, learner))
    iterations = max(1, run.options.steps // program.env_steps)
    chunk = max(1, min(CHUNK, iterations // CHUNKS))
    chunk_steps = chunk * program.env_steps
    over_seeds = jax.vmap if config.vmap_seeds else lambda fn: lambda states: jax.lax.map(fn, states)
    shared_out = functools.partial(devices.shared_out, num=len(seeds))
    run_chunk = jax.jit(shared_out(over_seeds(lambda state: program.run(state, chunk))), donate_argnums=0)
    evaluate = jax.jit(shared_out(jax.vmap(exact_metrics.log_metrics(environment, learner))))
    init = shared_out(jax.vmap(lambda key: program.init(key, meta_params)))
    init = jax.jit(init, compiler_options=devices.quick_to_compile())

    states, start = run.restore(init(jax.vmap(jax.random.key)(jnp.array(seeds))))
    last = start + (iterations * program.env_steps - start) // chunk_steps * chunk_steps
    progress = Progress(total=last * len(seeds), start=start * len(seeds))
    for step in range(start + chunk_steps, last + 1, chunk_steps):
        states, metrics, control = run_chunk(states)
        metrics = jax.device_get(metrics)  # of each name [seeds, iterations]
        _check(run, control, states.learner.params)
        logged = _reduced(metrics) | jax.device_get(evaluate(states))
        rows = _rows(config, seeds, step // program.env_steps, step, run, logged)
        run.log(rows)
        progress.update(step * len(seeds), _text(rows))
        if step == last:
            env_steps = step - program.env_steps * np.arange(chunk)[::-1]
            files.write_arrays(run.folder / "last_iterations.npz", metrics | {"env_steps": env_steps})
        run.save_if_due(states, step, is_end=step == last)
        run.stop_if_interrupted(states, step)


def _train_on_host(
    run: Run,
    config: OnlineConfig,
    environment: HostEnvironment,
    learner: Learner,
    meta_params: Params | None,
    make: Callable[[str, int, int], Any],
) -> None:
    """Run one seed after the other, each with its own environments and actor thread, until it is complete."""
    seeds, steps = run.options.seeds, run.options.steps
    schedule, env_steps = config.schedule(learner.is_meta), config.num_env_steps(learner.is_meta)

    def learn(replay, state, trajectories, validation):
        state = state._replace(lifetime=state.lifetime._replace(replay=replay))
        return learner.learn(state, trajectories, validation)

    init = jax.jit(learner.init, compiler_options=devices.quick_to_compile())
    learn = jax.jit(learn, donate_argnums=0)  # the replay is changed in place; the actor reads other parts of the state
    observation = environment.reset().observation
    environment.close()

    def initial_state(index: int) -> dict[str, Any]:
        actor_key, learner_key = jax.random.split(jax.random.key(seeds[index]))
        learner_state = init(learner_key, observation, meta_params)
        return {"index": index, "step": 0, "actor_key": actor_key, "learner": learner_state}

    state, start = run.restore(initial_state(0))
    progress = Progress(total=steps * len(seeds), start=start)
    agent, policy = learner.setup.agent, learner.setup.rule.policy
    for index in range(state["index"], len(seeds)):
        if index > state["index"]:
            state = initial_state(index)
        window: list[dict[str, Any]] = []
        returns: list[float] = []
        text = ""
        next_row = state["step"]
        with (
            contextlib.closing(make(config.env, config.batch_size, seeds[index] + state["step"])) as environment,
            HostActor(environment, agent, policy, schedule, state["learner"].params, state["actor_key"]) as actor,
        ):
            is_last = state["step"] >= steps
            while not is_last:
                acted = actor.get()
                before = state["learner"]
                others = before._replace(lifetime=before.lifetime._replace(replay=()))
                learner_state, metrics, control = learn(
                    before.lifetime.replay, others, acted.trajectories, acted.validation
                )
                actor.params = learner_state.params
                window.append(jax.device_get(metrics))
                _check(run, control, learner_state.params)
                returns.extend(acted.returns)
                step = state["step"] + env_steps
                state = {"index": index, "step": step, "actor_key": acted.key, "learner": learner_state}
                is_last = step >= steps or environment.is_complete
                done = (index + 1) * steps if is_last else index * steps + step
                if step >= next_row or is_last:
                    stacked = {name: np.stack([metrics[name] for metrics in window])[None] for name in window[0]}
                    stacked |= {"episodes": np.array([[len(returns)]]), "return_sum": np.array([[sum(returns)]])}
                    rows = _rows(config, (seeds[index],), step // env_steps, step, run, _reduced(stacked))
                    run.log(rows)
                    text = _text(rows)
                    next_row += max(env_steps, steps // ROWS)
                    window, returns = [], []
                progress.update(done, text)
                run.save_if_due(state, done, is_end=done == steps * len(seeds))
                run.stop_if_interrupted(state, done)


def _reduced(metrics: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Reduce metrics [seeds, iterations] to one for each seed: a mean without nan; of counts the sum or the last."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # means of nothing
        reduced = {name: np.nanmean(values.astype(np.float64), axis=1) for name, values in metrics.items()}
        reduced["return"] = reduced.pop("return_sum") / reduced["episodes"]
        reduced["episodes"] = metrics["episodes"].sum(axis=1)
        if "skipped" in metrics:
            reduced["skipped"] = metrics["skipped"][:, -1]
    return reduced


def cost(run: Run) -> dict[str, Any]:
    """Return the run's CPU seconds so far, and the largest memory of its process."""
    kilobyte = 2**20 if sys.platform == "darwin" else 2**10
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // kilobyte
    return {"cpu_seconds": round(run.cpu_seconds(), 3), "peak_memory_mb": peak}


def _rows(config: OnlineConfig, seeds, update: int, step: int, run: Run, logged) -> list[dict[str, Any]]:
    suite, _, game = config.env.partition("/")
    shared = {
        "update": update,
        "env_steps": step,
        "env_frames": step * (ATARI_PREPROCESSING["frame_skip"] if suite == "atari" else 1),
        **cost(run),
    }
    rows = [{"seed": seed, **shared, **{k: v[i] for k, v in logged.items()}} for i, seed in enumerate(seeds)]
    if suite == "atari":
        for row in rows:
            row["human_normalised"] = human_normalised(game, row["return"])
    return rows


def _text(rows: list[dict[str, Any]]) -> str:
    """Return what the line of progress says of the newest rows."""
    name = "error" if "error" in rows[0] else "return"
    skipped = sum(row.get("skipped", 0) for row in rows)
    value = np.mean([row[name] for row in rows])
    return f"{name} {value:.3f}" + (f", {skipped:.0f} non-finite meta-gradients skipped" if skipped else "")


def _check(run: Run, control: Control, params: Params) -> None:
    """Stop a run that learns nothing more; the checkpoint from before stays."""
    if reason := why_stopped(control, params):
        raise RunError(
            f"{reason}: stopped; checkpoints in {run.folder}, if a minute had passed, are from before; try a smaller "
            "optimizer.learning_rate, meta_optimizer.learning_rate or max_gradient_norm"
        )


def _summary(run: Run, seeds_at_once: int) -> dict[str, Any]:
    """Return the summary of a run that is over, from its metrics.csv."""
    results = reading.read(run.folder)
    own = [name for name in results.columns if name not in FIRST_COLUMNS]
    return {
        "seeds": list(run.options.seeds),
        "env_steps": int(results.columns["env_steps"].max()),
        "steps_per_cpu_second": _steps_per_cpu_second(results, seeds_at_once),
        **{name: reading.final_values(results, name).tolist() for name in own},
    }


def _steps_per_cpu_second(results: reading.Results, seeds_at_once: int) -> float:
    """Return the median over pairs of neighbouring rows: compilation, before the first row, is left out."""
    rates = []
    for seed in np.unique(results.columns["seed"]):
        rows = results.columns["seed"] == seed
        with np.errstate(divide="ignore"):
            rates.extend(np.diff(results.columns["env_steps"][rows]) / np.diff(results.columns["cpu_seconds"][rows]))
    rates = [rate for rate in rates if rate < np.inf]
    return seeds_at_once * float(np.median(rates)) if rates else float("nan")
