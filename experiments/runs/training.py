"""Lifetimes as runs: logged, checkpointed, stopped and resumed, in pure environments and on the host.

metrics.csv has, besides the columns of all runs: cpu_seconds (of the process, all threads, since the run was started
or resumed), peak_memory_mb, episodes and return (of those that ended since the row before, nan if none did),
human_normalised on Atari, what the learner reports (means over iterations), what is known of a toy in closed form, and
of trials the returns in tasks that are held out (`exact_metrics.py`). In pure environments last_iterations.npz is
written, too: the metrics of every iteration since the last but one row, [seeds, iterations], and env_steps
[iterations].
"""

import contextlib
import functools
import hashlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from agents.environments.host import HostEnvironment
from agents.environments.names import is_pure, make_environment
from experiments.results import reading
from experiments.runs import exact_metrics, settings
from experiments.runs.loaded_agent import load_teacher
from frodo import devices, files
from frodo.regimes.in_jax import LivesInJax, chunk_of
from frodo.regimes.learner import build_learner, check_teacher
from frodo.regimes.life_rows import lives_of
from frodo.regimes.lifetimes import check_split
from frodo.regimes.on_host import LivesOnHost
from frodo.runs.callbacks import by_name
from frodo.runs.cores import use_one_thread
from frodo.runs.driver import drive, end_program
from frodo.runs.folders import RunOptions, folder_of
from frodo.runs.run import FIRST_COLUMNS, Run
from frodo.settings.config import OnlineConfig
from frodo.settings.observations import note_layout
from frodo.settings.value_bins import with_bins, with_bins_of
from toy_envs.base import Environment

SMALL = 10**8  # multiplications of an update's largest products, up to which it is run by one thread


def train(
    config: OnlineConfig,
    options: RunOptions,
    *,
    experiment: str,
    name: str,
    make: Callable[[str, int, int], Environment | HostEnvironment] = make_environment,
    callbacks: Sequence[Any] = (),
    row_steps: float = math.inf,
) -> dict[str, Any]:
    """Run one configuration for all seeds and write its results folder.

    With `options.learning_rates` each seed runs once with each of them; metrics.csv then has a column for it, and one
    for `is_finite`: a seed whose parameters are no longer finite goes on, where else the run is stopped.

    Args:
      config, options, experiment, name: what is run, how, and in which folder (`folder_of`).
      make: makes the environment from its name, the size of the batch and a seed.
      callbacks: see each row, before `options.log_to` does.
      row_steps: environment steps from one row to the next, at most; of pure environments.
    Returns:
      the summary, which is also in summary.json: env_steps of a seed; steps_per_cpu_second, compilation left out; and
      for each metric of metrics.csv `<metric>`, its mean over the last fifth of the run, a number for each seed.
    Raises:
      ValueError: if the environment or a setting is not what it should be.
      NotFiniteError: if ten meta-gradients in a row, or the agent's parameters, were not finite.
    """
    config.validate()
    if config.num_actors < 1 or (config.num_actors > 1 and is_pure(config.env)):
        where = f" for {config.env}, whose environments are not stepped on the host" if is_pure(config.env) else ""
        raise ValueError(f"num_actors is {config.num_actors}, expected {'1' if where else 'at least 1'}{where}")
    choose_threads(config, options)
    check_split(config, options.num_devices)
    environment = make(config.env, config.batch_size, options.seeds[0])
    config = _with_bins(config, environment, options, experiment, name)
    teacher = load_teacher(config)
    how: dict[str, Any] = dict(meta_params=settings.initial_meta_params(config), num_devices=options.num_devices)
    check_teacher(config, teacher)
    make_learner = functools.partial(build_learner, config, environment.num_actions, config.is_frozen, teacher=teacher)
    note_layout(config.network, environment.observation_shape)
    lives = lives_of(options.seeds, options.learning_rates)
    lives_at_once, why_as_long = len(lives.seeds), ""
    if isinstance(environment, Environment):
        learner = make_learner()
        env_steps = config.num_env_steps(learner.is_meta)
        iterations = max(1, options.steps // env_steps)
        chunk = chunk_of(iterations, env_steps, row_steps)  # of which a run has a whole number
        how["of_iterations"] = exact_metrics.iteration_metrics(environment, learner)
        how["of_rows"] = exact_metrics.log_metrics(environment, learner, chunk * env_steps)
        how |= dict(chunk=chunk, is_quick=_is_quick(config, options))
        steps = iterations // chunk * chunk * env_steps
        regime: LivesInJax | LivesOnHost = LivesInJax(config, environment, make_learner, lives, steps, **how)
    else:
        environment.close()
        own_size = config.batch_size // jax.process_count()
        how["make"] = lambda seed: make(config.env, own_size, seed)
        regime = LivesOnHost(config, environment, make_learner, lives, options.steps, **how)
        if lives_at_once > 1:  # seeds run one after the other: those that are done would not go on
            lives_at_once, why_as_long = 1, "its first seeds are done"
    about = {"teacher": _checksum(teacher and teacher.params)}
    run = Run(options, experiment=experiment, name=name, config=config, why_as_long=why_as_long, about=about)
    with run:
        end_program(drive(regime, run, [*callbacks, *by_name(options.log_to)]), run)
        summary = _summary(run, lives_at_once)
        run.finish(summary)
    return summary


def choose_threads(config: OnlineConfig, options: RunOptions) -> None:
    """Have one thread run a small lifetime in JAX; a program calls this before anything begins JAX.

    It is small, by the size of an update's largest products, where two threads would take as long as one.
    """
    if len(options.seeds) * max(1, len(options.learning_rates)) > 1 or options.num_devices or not is_pure(config.env):
        return
    batch_size = config.replay.batch_size if config.replay.capacity else config.batch_size
    width = max(*config.network.hidden, config.network.core, getattr(config.rule.settings, "lstm", 0), 0)
    if batch_size * config.unroll * width**2 < SMALL:
        use_one_thread()


def _is_quick(config: OnlineConfig, options: RunOptions) -> bool:
    """Whether to save on compilation: of a grid's programs, which run for seconds; those with minibatches get slow."""
    return bool(options.learning_rates) and config.minibatches == 1


def _with_bins(
    config: OnlineConfig, environment: Environment | HostEnvironment, options: RunOptions, experiment: str, name: str
) -> OnlineConfig:
    """Return settings in which a rule's bins are known: those of the run that goes on, or that fit the environment."""
    path = folder_of(options, experiment, name) / "config.json"
    if options.resume:
        wrong = (OSError, ValueError, LookupError, TypeError, AttributeError)  # the run itself says what it is
        with contextlib.suppress(*wrong):
            recorded = with_bins_of(config, files.read_json(path)["config"])
            recorded.validate()
            config = recorded
    (found,) = devices.agree(getattr(config.rule.settings, "max_value", 0) or 0)  # process 0 alone has the folder
    if found and config.rule.settings.max_value is None:
        return config.replace(rule=config.rule.replace(max_value=found))
    return with_bins(config, environment)


def _checksum(params: Any) -> str:
    """Return what tells the θ of one teacher from that of another, "" for none."""
    if params is None:
        return ""
    arrays = [np.asarray(x).tobytes() for x in jax.tree.leaves(jax.device_get(params))]
    return hashlib.sha256(b"".join(arrays)).hexdigest()[:16]


def _summary(run: Run, lives_at_once: int) -> dict[str, Any]:
    """Return the summary of a run that is over, from its metrics.csv."""
    results = reading.read(run.folder)
    own = [name for name in results.columns if name not in (*FIRST_COLUMNS, "learning_rate")]
    rates, speeds = run.options.learning_rates, []
    for rows in reading.lives(results):  # between neighbouring rows: compilation, before the first one, is left out
        with np.errstate(divide="ignore"):
            speeds.extend(np.diff(results.columns["env_steps"][rows]) / np.diff(results.columns["cpu_seconds"][rows]))
    speeds = [speed for speed in speeds if speed < np.inf]
    return {
        "seeds": list(run.options.seeds),
        **({"learning_rates": list(rates)} if rates else {}),
        "env_steps": int(results.columns["env_steps"].max()),
        "steps_per_cpu_second": lives_at_once * float(np.median(speeds)) if speeds else float("nan"),
        **{name: reading.final_values(results, name).tolist() for name in own},
    }
