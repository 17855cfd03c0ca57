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
import resource
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from agents import splitting
from agents.environments.atari57 import human_normalised
from agents.environments.envpool import ATARI_PREPROCESSING
from agents.environments.host import HostEnvironment
from agents.environments.names import is_pure, make_environment
from agents.host_acting import ActedIteration, HostActor, Waiting, actor_keys
from agents.types import Array, Params
from experiments.results import reading
from experiments.runs import exact_metrics
from experiments.runs.devices import use_one_thread
from experiments.runs.errors import RunError
from experiments.runs.options import RunOptions
from experiments.runs.run import FIRST_COLUMNS, Run
from frodo import devices, files
from frodo.config import OnlineConfig
from frodo.learner import Control, Learner, LearnerState, build_learner, check_teacher
from frodo.learner import split as split_learner
from frodo.logs import Progress
from frodo.online import (
    OnlineProgram,
    check_split,
    check_tasks,
    make_host_learn,
    make_online_program,
    of_all_actors,
    why_stopped,
)
from meta.distillation import Teacher
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
    load_teacher: Callable[[], Teacher | None] = lambda: None,
    make: Callable[[str, int, int], Environment | HostEnvironment] = make_environment,
) -> dict[str, Any]:
    """Run one configuration for all seeds and write its results folder.

    With `options.learning_rates` each seed lives once with each of them; metrics.csv then has a column for it, and one
    for `is_finite`: a life whose parameters are no longer finite goes on, where else the run is stopped.

    Args:
      config, options, experiment, name: what is run, how, and in which folder (`folder_of`).
      meta_params: η at the start, what `settings.initial_meta_params` loads; None for random.
      load_teacher: loads the agent of `config.distillation.teacher`, once it is decided how many threads JAX has.
      make: makes the environment from its name, the size of the batch and a seed.
    Returns:
      the summary, which is also in summary.json: env_steps of a seed; steps_per_cpu_second, compilation left out; and
      for each metric of metrics.csv `<metric>`, its mean over the last fifth of the run, a number for each seed.
    Raises:
      ValueError: if the environment or a setting is not what it should be.
      RunError: if ten meta-gradients in a row, or the agent's parameters, were not finite.
    """
    config.validate()
    if config.num_actors < 1 or (config.num_actors > 1 and is_pure(config.env)):
        where = f" for {config.env}, whose environments are not stepped on the host" if is_pure(config.env) else ""
        raise ValueError(f"num_actors is {config.num_actors}, expected {'1' if where else 'at least 1'}{where}")
    if len(_lives(options)) == 1 and is_pure(config.env) and _is_small(config) and not options.num_devices:
        use_one_thread()
    check_split(config, options.num_devices)
    environment = make(config.env, config.batch_size, options.seeds[0])
    assert bool(config.init_meta_params) == (meta_params is not None)
    teacher = load_teacher()
    check_teacher(config, teacher)
    make_learner = functools.partial(build_learner, config, environment.num_actions, config.is_frozen, teacher=teacher)
    _check_learner(make_learner(), environment)
    num_lives = len(_lives(options))
    # On a host, seeds run one after the other: those that are done would not go on.
    is_extensible = isinstance(environment, Environment) or num_lives == 1
    why_as_long = "" if is_extensible else "its first seeds are done"
    with Run(
        options,
        experiment=experiment,
        name=name,
        config=config,
        why_as_long=why_as_long,
        teacher=_checksum(teacher),
    ) as run:
        if isinstance(environment, Environment):
            _train_in_jax(run, config, environment, make_learner, meta_params)
        else:
            _train_on_host(run, config, environment, make_learner, meta_params, make)
        summary = _summary(run, lives_at_once=num_lives if isinstance(environment, Environment) else 1)
        run.finish(summary)
    return summary


def _checksum(teacher: Teacher | None) -> str:
    """Return what tells the θ of one teacher from that of another, "" for none."""
    if teacher is None:
        return ""
    arrays = [np.asarray(x).tobytes() for x in jax.tree.leaves(jax.device_get(teacher.params))]
    return hashlib.sha256(b"".join(arrays)).hexdigest()[:16]


def _lives(options: RunOptions) -> list[tuple[float | None, int]]:
    """Return learning rate and seed of every life; None for the rate of the settings."""
    return [(rate, seed) for rate in options.learning_rates or (None,) for seed in options.seeds]


def _is_small(config: OnlineConfig) -> bool:
    """Whether two threads would take as long as one: by the size of an update's largest products."""
    batch_size = config.replay.batch_size if config.replay.capacity else config.batch_size
    width = max(*config.network.hidden, config.network.core, getattr(config.rule.settings, "lstm", 0), 0)
    return batch_size * config.unroll * width**2 < SMALL


def _is_quick(config: OnlineConfig, options: RunOptions) -> bool:
    """Whether to save on compilation: of a grid's programs, which run for seconds; those with minibatches get slow."""
    return bool(options.learning_rates) and config.minibatches == 1


def _check_learner(learner: Learner, environment: Environment | HostEnvironment) -> None:
    """Raise a ValueError before anything is written: the network, say, may not suit the observations."""
    check_tasks(learner, environment)
    dtype = environment.observation_dtype if isinstance(environment, HostEnvironment) else jnp.float32
    observation = jnp.zeros((learner.config.batch_size, *environment.observation_shape), dtype)
    jax.eval_shape(learner.init, jax.random.key(0), observation)


def _train_in_jax(
    run: Run,
    config: OnlineConfig,
    environment: Environment,
    make_learner: Callable[..., Learner],
    meta_params: Params | None,
) -> None:
    """Run all lives by one program, as many at a time as there are devices: what they differ in is data.

    With `num_devices`, one after the other is split over so many.
    """
    lives = _lives(run.options)
    seeds = jnp.array([seed for _, seed in lives])
    rates = jnp.array([rate for rate, _ in lives]) if run.options.learning_rates else None
    learner = make_learner()
    of_iterations = exact_metrics.iteration_metrics(environment, learner)

    def program_with(rate: Array | None) -> OnlineProgram:
        return make_online_program(make_learner(learning_rate=rate), environment, of_iterations)

    program = program_with(None)
    iterations = max(1, run.options.steps // program.env_steps)
    chunk = _chunk(iterations)
    chunk_steps = chunk * program.env_steps
    over_lives = jax.vmap if config.vmap_seeds else lambda fn: lambda states: jax.lax.map(fn, states)
    is_split = bool(run.options.num_devices)
    group = len(lives) if config.vmap_seeds else 1 if is_split else devices.num_shares(len(lives))
    shared_out = (lambda fn: fn) if is_split else functools.partial(devices.shared_out, num=group)
    split = splitting.over(run.options.num_devices)

    def run_lives(states_and_rates):
        return over_lives(lambda both: program_with(both[1]).run(both[0], chunk))(states_and_rates)

    run_chunk = split(
        jax.jit(
            lambda states, rates: shared_out(run_lives)((states, rates)),
            donate_argnums=0,
            compiler_options=devices.quick_to_compile() if _is_quick(config, run.options) else {},
        )
    )
    measure = exact_metrics.log_metrics(environment, learner, chunk_steps)
    evaluate = split(jax.jit(shared_out(jax.vmap(lambda state: splitting.whole(measure(state))))))
    init = shared_out(jax.vmap(lambda seed: program.init(jax.random.key(seed), meta_params)))
    init = split(jax.jit(init, compiler_options=devices.quick_to_compile()))

    states, start = _restored(run, [init(own) for own in _groups(seeds, group)], group)
    rates_of = [None] * len(states) if rates is None else _groups(rates, group)
    last = start + (iterations * program.env_steps - start) // chunk_steps * chunk_steps
    progress = Progress(total=last * len(lives), start=start * len(lives))
    for step in range(start + chunk_steps, last + 1, chunk_steps):
        done = [run_chunk(own, rate) for own, rate in zip(states, rates_of, strict=True)]
        states = [own for own, _, _ in done]
        metrics = _stacked([outputs for _, outputs, _ in done])  # of each name [lives, iterations]
        logged = _reduced(metrics) | _stacked([evaluate(own) for own in states])
        if rates is None:
            for own, _, control in done:
                _check(run, control, own.learner.params)
        else:
            logged["is_finite"] = np.concatenate([_are_finite(own.learner.params) for own in states]).astype(int)
        rows = _rows(config, lives, step // program.env_steps, step, run, logged)
        run.log(rows)
        progress.update(step * len(lives), _text(rows))
        if step == last:
            env_steps = step - program.env_steps * np.arange(chunk)[::-1]
            files.write_arrays(run.folder / "last_iterations.npz", metrics | {"env_steps": env_steps})
        is_due, run.interrupted = devices.agree(run.is_due() or step == last, run.interrupted)
        if is_due or run.interrupted:
            whole = _joined(states)
            run.save(whole, step)
            run.stop_if_interrupted(whole, step)


def _chunk(iterations: int) -> int:
    """Return the iterations between log points: a run is a whole number of chunks, and leaves out few iterations."""
    largest = max(1, min(CHUNK, iterations // CHUNKS))
    return min(range(largest, largest // 2, -1), key=lambda chunk: iterations % chunk)


def _restored(run: Run, begun: Sequence[Any], group: int) -> tuple[list[Any], int]:
    """Return the groups of lives, as they lie where they begin, and the step from which they go on."""
    whole, start = run.restore(_joined(begun))
    placed = [devices.scatter(own, start, like) for own, like in zip(_groups(whole, group), begun, strict=True)]
    return [own for own, _ in placed], placed[0][1]


def _groups(states: Any, size: int) -> list[Any]:
    """Cut a pytree [lives, ...] into groups of so many."""
    num = len(jax.tree.leaves(states)[0])
    return [jax.tree.map(lambda x, i=i: x[i : i + size], states) for i in range(0, num, size)]


def _joined(groups: Sequence[Any]) -> Any:
    """Join groups on one device: a program over several has them wait for each other, and is ended after 40 s of it."""
    groups = [devices.gather(own) for own in groups]
    if len(groups) == 1:
        return groups[0]
    here = jax.device_put(list(groups), jax.local_devices()[0])
    return jax.tree.map(lambda *x: jnp.concatenate(x), *here)


def _stacked(metrics: Sequence[dict[str, Array]]) -> dict[str, np.ndarray]:
    """Join the metrics of groups on the host."""
    found = jax.device_get(list(metrics))
    return {name: np.concatenate([own[name] for own in found]) for name in found[0]}


def _train_on_host(
    run: Run,
    config: OnlineConfig,
    environment: HostEnvironment,
    make_learner: Callable[..., Learner],
    meta_params: Params | None,
    make: Callable[[str, int, int], Any],
) -> None:
    """Run one life after the other, each with its own environments and actor threads, until it is complete.

    With `num_devices` its batch is split over so many; of several processes each has its part of the environments.
    """
    lives, steps = _lives(run.options), run.options.steps
    num_processes, process = jax.process_count(), jax.process_index()
    split = splitting.over(run.options.num_devices)
    learner = make_learner()
    schedule, env_steps = config.schedule(learner.is_meta), config.num_env_steps(learner.is_meta)

    def learn(replay, state, trajectories, validation, rate):
        state = state._replace(lifetime=state.lifetime._replace(replay=replay))
        return make_host_learn(make_learner(learning_rate=rate))(state, trajectories, validation)

    init = jax.jit(lambda *of: split_learner(learner.init(*of)), compiler_options=devices.quick_to_compile())
    learn = jax.jit(learn, donate_argnums=0)  # the replay is changed in place; the actor reads other parts of the state
    learn = split(functools.partial(_learn_of_all, learn))
    observation = jnp.zeros((config.batch_size, *environment.observation_shape), environment.observation_dtype)
    environment.close()

    def initial_state(index: int) -> dict[str, Any]:
        actor_key, learner_key = jax.random.split(jax.random.key(lives[index][1]))
        learner_state = split(init)(learner_key, observation, meta_params)
        keys = actor_keys(actor_key, config.num_actors)
        return {"index": index, "step": 0, "actor_key": keys, "learner": learner_state}

    state, start = _restored_on_host(run, initial_state(0))
    progress = Progress(total=steps * len(lives), start=start)
    agent, policy = learner.setup.agent, learner.setup.rule.policy
    acting_params = lambda agent: splitting.here(learner.setup.acting_params(agent))
    for index in range(state["index"], len(lives)):
        rate, seed = lives[index]
        if index > state["index"]:
            state = initial_state(index)
        window: list[dict[str, Any]] = []
        returns: list[float] = []
        text = ""
        next_row = state["step"]
        params, num_actors = acting_params(state["learner"].agent), config.num_actors
        keys = _of_process(jnp.reshape(state["actor_key"], num_actors))
        own_seeds = _environment_seeds(seed + state["step"], num_actors * num_processes)[process * num_actors :]
        with contextlib.ExitStack() as stack:
            actors: list[HostActor] = []
            for key, own_seed in zip(keys, own_seeds[:num_actors], strict=True):
                own_size = config.batch_size // num_processes
                environment = stack.enter_context(contextlib.closing(make(config.env, own_size, own_seed)))
                num_parts = num_actors * num_processes
                explored = -(-config.exploration // num_parts), state["step"] // num_parts
                actor = HostActor(environment, agent, policy, schedule, params, key, *explored)
                actors.append(stack.enter_context(actor))
            waiting = Waiting(actors)
            is_last = state["step"] >= steps
            while not is_last:
                number = state["step"] // env_steps % num_actors  # they take turns
                acted = actors[number].get()
                before = state["learner"]
                others = before._replace(lifetime=before.lifetime._replace(replay=()))
                learner_state, metrics, control = learn(before.lifetime.replay, others, acted, rate)
                params = acting_params(learner_state.agent)
                for actor in actors:
                    actor.params = params
                window.append(jax.device_get(metrics))
                if rate is None:
                    _check(run, control, learner_state.params)
                returns.extend(acted.returns)
                step = state["step"] + env_steps
                keys = keys.at[number].set(acted.key)
                actor_key = jnp.reshape(keys, jnp.shape(state["actor_key"]))
                state = {"index": index, "step": step, "actor_key": actor_key, "learner": learner_state}
                asked = (run.is_due(), run.interrupted, environment.is_complete)
                is_due, run.interrupted, is_complete = devices.agree(*asked)
                is_last = step >= steps or bool(is_complete)
                done = (index + 1) * steps if is_last else index * steps + step
                if step >= next_row or is_last:
                    stacked = {name: np.stack([metrics[name] for metrics in window])[None] for name in window[0]}
                    totals = devices.total(len(returns), sum(returns))
                    stacked |= zip(("episodes", "return_sum"), np.array(totals).reshape(2, 1, 1), strict=True)
                    logged = _reduced(stacked) | {name: np.array([x]) for name, x in waiting.shares().items()}
                    if rate is not None:
                        one = jax.tree.map(lambda x: x[None], learner_state.params)
                        logged["is_finite"] = np.asarray(_are_finite(one)).astype(int)
                    rows = _rows(config, lives[index : index + 1], step // env_steps, step, run, logged)
                    run.log(rows)
                    text = _text(rows)
                    next_row += max(env_steps, steps // ROWS)
                    window, returns = [], []
                progress.update(done, text)
                if is_due or run.interrupted or done == steps * len(lives):
                    whole = state | {"learner": devices.gather(state["learner"])}
                    run.save(whole, done)
                    run.stop_if_interrupted(whole, done)


def _learn_of_all(learn: Callable[..., Any], replay: Any, state: LearnerState, acted: ActedIteration, rate: Any) -> Any:
    return learn(replay, state, *of_all_actors(acted), rate)


def _restored_on_host(run: Run, begun: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """Return the life that process 0 goes on with, as it lies where it begins, and the steps that are done."""
    whole, start = run.restore(begun | {"learner": devices.gather(begun["learner"])})
    learner, start = devices.scatter(whole["learner"], start, begun["learner"])
    return devices.of_first({name: whole[name] for name in begun if name != "learner"}) | {"learner": learner}, start


def _of_process(keys: Array) -> Array:
    """Return the random keys of this process's actors: those of process 0 are the keys themselves."""
    process = jax.process_index()
    return jax.vmap(lambda key: jax.random.fold_in(key, process))(keys) if process else keys


def _environment_seeds(seed: int, num_actors: int) -> list[int]:
    """Return the seeds of the actors' environments: the first has the run's, others none that another seed has."""
    others = [int(np.random.SeedSequence((seed, number)).generate_state(1)[0]) for number in range(1, num_actors)]
    return [seed, *(other % 2**31 for other in others)]


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


def _rows(config: OnlineConfig, lives, update: int, step: int, run: Run, logged) -> list[dict[str, Any]]:
    suite, _, game = config.env.partition("/")
    shared = {
        "update": update,
        "env_steps": step,
        "env_frames": step * (ATARI_PREPROCESSING["frame_skip"] if suite == "atari" else 1),
        **cost(run),
    }
    rows = []
    for i, (rate, seed) in enumerate(lives):
        own = {} if rate is None else {"learning_rate": rate}
        rows.append({"seed": seed, **own, **shared, **{k: v[i] for k, v in logged.items()}})
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


@jax.jit
def _are_finite(params: Params) -> Array:
    """Say of each of several agents, [N, ...], whether its parameters are finite."""
    finite = [jnp.all(jnp.isfinite(x), axis=tuple(range(1, x.ndim))) for x in jax.tree.leaves(params)]
    return jnp.all(jnp.stack(finite), axis=0)


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
