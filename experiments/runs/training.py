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
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from agents.environments.host import HostEnvironment
from agents.environments.names import is_pure, make_environment
from experiments.results import reading
from experiments.runs import exact_metrics, settings
from frodo import devices, files
from frodo.regimes.in_jax import LivesInJax, chunk_of
from frodo.regimes.learner import Learner, build_learner, check_teacher
from frodo.regimes.life_rows import lives_of
from frodo.regimes.lifetimes import check_split, check_tasks
from frodo.regimes.on_host import LivesOnHost
from frodo.runs.callbacks import by_name
from frodo.runs.cores import use_one_thread
from frodo.runs.driver import drive, end_program
from frodo.runs.folders import folder_of
from frodo.runs.memory import batch_shape, check_agents
from frodo.runs.options import RunOptions
from frodo.runs.run import FIRST_COLUMNS, Run
from frodo.settings.config import OnlineConfig
from frodo.settings.observations import note_layout
from frodo.settings.value_bins import with_bins, with_bins_of
from meta.updates.distillation import Teacher
from toy_envs.base import Environment

SMALL = 10**8  # multiplications of an update's largest products, up to which it is run by one thread


def train(
    config: OnlineConfig,
    options: RunOptions,
    *,
    experiment: str,
    name: str,
    load_teacher: Callable[[], Teacher | None] = lambda: None,
    make: Callable[[str, int, int], Environment | HostEnvironment] = make_environment,
) -> dict[str, Any]:
    """Run one configuration for all seeds and write its results folder.

    With `options.learning_rates` each seed lives once with each of them; metrics.csv then has a column for it, and one
    for `is_finite`: a life whose parameters are no longer finite goes on, where else the run is stopped.

    Args:
      config, options, experiment, name: what is run, how, and in which folder (`folder_of`).
      load_teacher: loads the agent of `config.distillation.teacher`, once it is decided how many threads JAX has.
      make: makes the environment from its name, the size of the batch and a seed.
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
    num_lives = _num_lives(options)
    check_split(config, options.num_devices)
    environment = make(config.env, config.batch_size, options.seeds[0])
    config = _with_bins(config, environment, options, experiment, name)
    teacher, meta_params = load_teacher(), settings.initial_meta_params(config)
    check_teacher(config, teacher)
    make_learner = functools.partial(build_learner, config, environment.num_actions, config.is_frozen, teacher=teacher)
    note_layout(config.network, environment.observation_shape)
    # On a host, seeds run one after the other: those that are done would not go on.
    is_extensible = isinstance(environment, Environment) or num_lives == 1
    why_as_long = "" if is_extensible else "its first seeds are done"
    lives = lives_of(options.seeds, options.learning_rates)
    how: dict[str, Any] = dict(meta_params=meta_params, num_devices=options.num_devices)
    about = {"teacher": _checksum(teacher)}
    if isinstance(environment, Environment):
        regime: LivesInJax | LivesOnHost = _in_jax(config, environment, make_learner, lives, options, how)
    else:
        environment.close()
        own_size = config.batch_size // jax.process_count()
        how["make"] = lambda seed: make(config.env, own_size, seed)
        regime = LivesOnHost(config, environment, make_learner, lives, options.steps, **how)
    run = Run(options, experiment=experiment, name=name, config=config, why_as_long=why_as_long, about=about)
    with run:
        end_program(drive(regime, run, by_name(options.log_to)), run)
        summary = _summary(run, lives_at_once=num_lives if isinstance(environment, Environment) else 1)
        run.finish(summary)
    return summary


def choose_threads(config: OnlineConfig, options: RunOptions) -> None:
    """Have one thread run a small life in JAX; a program calls this before anything begins JAX."""
    if _num_lives(options) == 1 and is_pure(config.env) and _is_small(config) and not options.num_devices:
        use_one_thread()


def _num_lives(options: RunOptions) -> int:
    return len(options.seeds) * max(1, len(options.learning_rates))


def _in_jax(config, environment, make_learner, lives, options: RunOptions, how) -> LivesInJax:
    """Make the regime of a run in a pure environment, of as many whole chunks as there are in the iterations."""
    learner = make_learner()
    env_steps = config.num_env_steps(learner.is_meta)
    iterations = max(1, options.steps // env_steps)
    chunk = chunk_of(iterations, env_steps)
    how["of_iterations"] = exact_metrics.iteration_metrics(environment, learner)
    how["of_rows"] = exact_metrics.log_metrics(environment, learner, chunk * env_steps)
    steps = iterations // chunk * chunk * env_steps
    how |= dict(chunk=chunk, is_quick=_is_quick(config, options))
    return LivesInJax(config, environment, make_learner, lives, steps, **how)


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


def _checksum(teacher: Teacher | None) -> str:
    """Return what tells the θ of one teacher from that of another, "" for none."""
    if teacher is None:
        return ""
    arrays = [np.asarray(x).tobytes() for x in jax.tree.leaves(jax.device_get(teacher.params))]
    return hashlib.sha256(b"".join(arrays)).hexdigest()[:16]


def _is_small(config: OnlineConfig) -> bool:
    """Whether two threads would take as long as one: by the size of an update's largest products."""
    batch_size = config.replay.batch_size if config.replay.capacity else config.batch_size
    width = max(*config.network.hidden, config.network.core, getattr(config.rule.settings, "lstm", 0), 0)
    return batch_size * config.unroll * width**2 < SMALL


def check_learner(learner: Learner, environment: Environment | HostEnvironment, num_lives: int = 1) -> None:
    """Raise a ValueError before anything is written: the network, say, may not suit the observations, or memory."""
    check_tasks(learner, environment)
    config = learner.config
    state = jax.eval_shape(learner.init, jax.random.key(0), batch_shape(config, environment))
    of_all = jax.tree.map(lambda x: jax.ShapeDtypeStruct((num_lives, *x.shape), x.dtype), state)
    check_agents(config, learner.setup.agent, environment, learner.is_meta, of_all)


def _summary(run: Run, lives_at_once: int) -> dict[str, Any]:
    """Return the summary of a run that is over, from its metrics.csv."""
    results = reading.read(run.folder)
    own = [name for name in results.columns if name not in (*FIRST_COLUMNS, "learning_rate")]
    rates = run.options.learning_rates
    return {
        "seeds": list(run.options.seeds),
        **({"learning_rates": list(rates)} if rates else {}),
        "env_steps": int(results.columns["env_steps"].max()),
        "steps_per_cpu_second": _steps_per_cpu_second(results, lives_at_once),
        **{name: reading.final_values(results, name).tolist() for name in own},
    }


def _steps_per_cpu_second(results: reading.Results, lives_at_once: int) -> float:
    """Return the median over pairs of neighbouring rows: compilation, before the first row, is left out."""
    rates = []
    for rows in reading.lives(results):
        with np.errstate(divide="ignore"):
            rates.extend(np.diff(results.columns["env_steps"][rows]) / np.diff(results.columns["cpu_seconds"][rows]))
    rates = [rate for rate in rates if rate < np.inf]
    return lives_at_once * float(np.median(rates)) if rates else float("nan")
