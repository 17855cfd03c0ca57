"""How a lifetime is run, logged, checkpointed and stopped, in both runtimes: what every experiment shares.

metrics.csv has, besides the columns of all runs: cpu_seconds (of the process, all threads, since the run was started
or resumed), peak_memory_mb, episodes and return (of those that ended since the row before, nan if none did),
human_normalised on Atari, what the learner reports (means over iterations), and what is known of a toy in closed form
(`exact_metrics.py`). Fused runs also write last_iterations.npz: the metrics of every iteration since the last but one
row, [seeds, iterations], and env_steps [iterations].
"""

import functools
import resource
import sys
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from agents.environments import ATARI_PREPROCESSING, HostEnvironment, human_normalised, make_environment
from agents.host_acting import HostActor
from agents.types import Params
from experiments import rules
from experiments.results import reading
from experiments.runs import devices, exact_metrics
from experiments.runs.errors import RunError
from experiments.runs.logs import Progress
from experiments.runs.options import RunOptions
from experiments.runs.run import FIRST_COLUMNS, Run
from frodo import files, online
from frodo.online import Learner, LearnerState, OnlineConfig
from meta.experience import who_acts
from toy_envs.base import Environment

CHUNK, CHUNKS = 100, 20  # iterations between log points of fused runs, at most, and log points at least
ROWS = 200  # log points of a seed of host runs, at most


def train(
    config: OnlineConfig,
    options: RunOptions,
    *,
    experiment: str,
    name: str,
    make: Callable[[str, int, int], Environment | HostEnvironment] = make_environment,
) -> dict[str, Any]:
    """Run one configuration for all seeds and write its results folder.

    Args:
      config, options, experiment, name: what, how, and where (`folder`).
      make: makes the environment from its name, the size of the batch and a seed.
    Returns:
      the summary, which is also in summary.json: env_steps of a seed; steps_per_cpu_second, compilation left out; and
      for each metric of metrics.csv `<metric>`, its mean over the last fifth of the run, a number for each seed.
    Raises:
      UsageError: if the environment or a setting is not what it should be.
      RunError: if ten meta-gradients in a row, or the agent's parameters, were not finite.
    """
    config.validate()
    environment = make(config.env, config.batch_size, options.seeds[0])
    is_host = isinstance(environment, HostEnvironment)
    meta_params = rules.initial_meta_params(config)
    learner = _make_learner(config, environment, meta_params)
    # On a host, seeds run one after the other: those that are done would not go on.
    is_extensible = not is_host or len(options.seeds) == 1
    with Run(options, experiment=experiment, name=name, config=config, is_extensible=is_extensible) as run:
        if isinstance(environment, Environment):
            _train_fused(run, config, environment, meta_params)
        else:
            _train_on_host(run, config, environment, learner, make)
        summary = _summary(run, seeds_at_once=len(options.seeds) if isinstance(environment, Environment) else 1)
        run.finish(summary)
    return summary


def _make_learner(
    config: OnlineConfig, environment: Environment | HostEnvironment, meta_params: Params | None
) -> Learner:
    """Make the learner, or raise a ValueError before anything is written: the network may not suit the observations."""
    learner = online.make_learner(config, environment.num_actions, meta_params)
    dtype = environment.observation_dtype if isinstance(environment, HostEnvironment) else jnp.float32
    observation = jnp.zeros((config.batch_size, *environment.observation_shape), dtype)
    jax.eval_shape(lambda key: learner.init(key, learner.agent.prepare(observation)), jax.random.key(0))
    return learner


def _train_fused(run: Run, config: OnlineConfig, environment: Environment, meta_params: Params | None) -> None:
    """Run all seeds as one program, shared out over the devices."""
    seeds = run.options.seeds
    fused = online.make_fused(
        config, environment, functools.partial(exact_metrics.iteration_metrics, environment), meta_params
    )
    iterations = max(1, run.options.steps // fused.steps_per_iteration)
    chunk = max(1, min(CHUNK, iterations // CHUNKS))
    chunk_steps = chunk * fused.steps_per_iteration
    over_seeds = jax.vmap if config.vmap_seeds else lambda fn: lambda states: jax.lax.map(fn, states)
    shared_out = functools.partial(devices.shared_out, num=len(seeds))
    run_chunk = jax.jit(shared_out(over_seeds(lambda state: fused.run(state, chunk))), donate_argnums=0)
    evaluate = jax.jit(shared_out(jax.vmap(exact_metrics.log_metrics(environment, fused.learner))))

    states = jax.jit(shared_out(jax.vmap(fused.init)))(jax.vmap(jax.random.key)(jnp.array(seeds)))
    states, start = run.restore(states)
    last = start + (iterations * fused.steps_per_iteration - start) // chunk_steps * chunk_steps
    progress = Progress(total=last * len(seeds), start=start * len(seeds))
    for step in range(start + chunk_steps, last + 1, chunk_steps):
        states, metrics = run_chunk(states)
        metrics = jax.device_get(metrics)  # of each name [seeds, iterations]
        _check(run, metrics, states.learner.agent.params)
        logged = _reduced(metrics) | jax.device_get(evaluate(states))
        rows = _rows(config, seeds, step // fused.steps_per_iteration, step, run, logged)
        run.log(rows)
        progress.update(step * len(seeds), _text(rows))
        if step == last:
            env_steps = step - fused.steps_per_iteration * np.arange(chunk)[::-1]
            files.write_arrays(run.folder / "last_iterations.npz", metrics | {"env_steps": env_steps})
        run.save_if_due(states, step, is_end=step == last)
        run.stop_if_interrupted(states, step)


def _train_on_host(run: Run, config: OnlineConfig, environment: HostEnvironment, learner: Learner, make) -> None:
    """Run one seed after the other, each with its own environments and actor thread, until it is complete."""
    seeds, steps = run.options.seeds, run.options.steps
    steps_per_iteration = online.steps_per_iteration(config, learner.is_meta)

    def learn(replay, state, trajectories, validation):
        state = state._replace(experience=state.experience._replace(replay=replay))
        return learner.learn(state, trajectories, validation)

    learn = jax.jit(learn, donate_argnums=0)  # the replay is changed in place; the actor reads other parts of the state
    observation = learner.agent.prepare(jnp.asarray(environment.reset().observation))
    environment.close()

    def initial_state(index: int) -> dict[str, Any]:
        actor_key, learner_key = jax.random.split(jax.random.key(seeds[index]))
        return {"index": index, "step": 0, "actor_key": actor_key, "learner": learner.init(learner_key, observation)}

    state, start = run.restore(initial_state(0))
    progress = Progress(total=steps * len(seeds), start=start)
    for index in range(state["index"], len(seeds)):
        if index > state["index"]:
            state = initial_state(index)
        environment = make(config.env, config.batch_size, seeds[index] + state["step"])
        policy = learner.rule.policy
        window: list[dict[str, Any]] = []
        returns: list[float] = []
        text = ""
        next_row = state["step"]
        params = _acting_params(state["learner"])
        with HostActor(
            environment,
            learner.agent,
            policy,
            params,
            state["actor_key"],
            config.unroll,
            config.num_fresh(learner.is_meta),
            config.validation_unroll if learner.is_meta else 0,
        ) as actor:
            is_last = state["step"] >= steps
            while not is_last:
                experience = actor.get()
                before = state["learner"]
                others = before._replace(experience=before.experience._replace(replay=()))
                learner_state, metrics = learn(
                    before.experience.replay, others, experience.trajectories, experience.validation
                )
                actor.params = _acting_params(learner_state)
                window.append(jax.device_get(metrics))
                _check(run, window[-1], learner_state.agent.params)
                returns.extend(experience.returns)
                step = state["step"] + steps_per_iteration
                state = {"index": index, "step": step, "actor_key": experience.key, "learner": learner_state}
                is_last = step >= steps or environment.is_complete
                done = (index + 1) * steps if is_last else index * steps + step
                if step >= next_row or is_last:
                    stacked = {name: np.stack([metrics[name] for metrics in window])[None] for name in window[0]}
                    stacked |= {"episodes": np.array([[len(returns)]]), "return_sum": np.array([[sum(returns)]])}
                    rows = _rows(config, (seeds[index],), step // steps_per_iteration, step, run, _reduced(stacked))
                    run.log(rows)
                    text = _text(rows)
                    next_row += max(steps_per_iteration, steps // ROWS)
                    window, returns = [], []
                progress.update(done, text)
                run.save_if_due(state, done, is_end=done == steps * len(seeds))
                run.stop_if_interrupted(state, done)


def _acting_params(state: LearnerState) -> Params:
    return who_acts(state.agent, state.experience).params


def _reduced(metrics: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Metrics [seeds, iterations] to one number a seed: the mean where not nan, of counts the sum or the last."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # means of nothing
        reduced = {name: np.nanmean(values.astype(np.float64), axis=1) for name, values in metrics.items()}
        reduced["return"] = reduced.pop("return_sum") / reduced["episodes"]
        reduced["episodes"] = metrics["episodes"].sum(axis=1)
        reduced |= {name: metrics[name][:, -1] for name in ("skipped", "skipped_in_a_row") if name in metrics}
    return reduced


def cost(run: Run) -> dict[str, Any]:
    """What the run has needed so far, and its process at most."""
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
    """What the line of progress says of the newest rows."""
    name = "error" if "error" in rows[0] else "return"
    skipped = sum(row.get("skipped", 0) for row in rows)
    value = np.mean([row[name] for row in rows])
    return f"{name} {value:.3f}" + (f", {skipped:.0f} non-finite meta-gradients skipped" if skipped else "")


def _check(run: Run, metrics: dict[str, np.ndarray], params: Params) -> None:
    """Stop the run, with the checkpoint from before, where it learns nothing more."""
    reason = ""
    if np.max(metrics.get("skipped_in_a_row", 0)) >= online.MAX_SKIPPED_IN_A_ROW:
        reason = f"{online.MAX_SKIPPED_IN_A_ROW} meta-gradients in a row were not finite"
    elif not _all_finite(params):
        reason = "the agent's parameters are not finite"
    if reason:
        raise RunError(
            f"{reason}: stopped; checkpoints in {run.folder}, if a minute had passed, are from before; try a smaller "
            "optimizer.learning_rate, meta_optimizer.learning_rate or max_gradient_norm"
        )


@jax.jit
def _all_finite(params: Params) -> jax.Array:
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(params)]))


def _summary(run: Run, seeds_at_once: int) -> dict[str, Any]:
    """What is left of a run when it is over, from its own metrics.csv."""
    results = reading.read(run.folder)
    own = [name for name in results.columns if name not in FIRST_COLUMNS]
    return {
        "seeds": list(run.options.seeds),
        "env_steps": int(results.columns["env_steps"].max()),
        "steps_per_cpu_second": _steps_per_cpu_second(results, seeds_at_once),
        **{name: reading.final_values(results, name).tolist() for name in own},
    }


def _steps_per_cpu_second(results: reading.Results, seeds_at_once: int) -> float:
    """The median over pairs of rows that follow each other: what was compiled before the first row is left out."""
    rates = []
    for seed in np.unique(results.columns["seed"]):
        rows = results.columns["seed"] == seed
        with np.errstate(divide="ignore"):
            rates.extend(np.diff(results.columns["env_steps"][rows]) / np.diff(results.columns["cpu_seconds"][rows]))
    rates = [rate for rate in rates if rate < np.inf]
    return seeds_at_once * float(np.median(rates)) if rates else float("nan")
