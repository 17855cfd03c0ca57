"""Lifetimes in pure environments: all lives of a run by one program."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from agents import splitting
from agents.types import Array, Params
from experiments.runs import exact_metrics
from frodo import devices, files
from frodo.config import OnlineConfig
from frodo.learner import Control, Learner
from frodo.logs import Progress, note
from frodo.not_finite import what_was_shown
from frodo.observations import note_sizes
from frodo.online import MAX_SKIPPED_IN_A_ROW, OnlineProgram, make_online_program
from frodo.runs.life_rows import are_finite, check, lives_of, progress_text, reduced, rows_of
from frodo.runs.options import RunOptions
from frodo.runs.run import Run
from frodo.value_bins import BinWatch
from toy_envs.base import Environment

CHUNK, CHUNKS = 100, 20  # iterations between log points, at most, and log points at least
# Or more iterations, if they are no more environment steps: to measure takes as long as many of them.
CHUNK_STEPS = 1000


def train_in_jax(
    run: Run,
    config: OnlineConfig,
    environment: Environment,
    make_learner: Callable[..., Learner],
    meta_params: Params | None,
) -> None:
    """Run all lives by one program, as many at a time as there are devices: what they differ in is data.

    With `num_devices`, one after the other is split over so many.
    """
    lives = lives_of(run.options)
    seeds = jnp.array([seed for _, seed in lives])
    rates = jnp.array([rate for rate, _ in lives]) if run.options.learning_rates else None
    learner = make_learner()
    of_iterations = exact_metrics.iteration_metrics(environment, learner)

    def program_with(rate: Array | None) -> OnlineProgram:
        return make_online_program(make_learner(learning_rate=rate), environment, of_iterations)

    program = program_with(None)
    iterations = max(1, run.options.steps // program.env_steps)
    chunk = _chunk(iterations, program.env_steps)
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

    def what_was_shown_to(states: Any, control: Control, number: int, step: int) -> str:
        """Run the first life of a group that cannot go on again, and say what its environments showed."""
        if jax.process_count() > 1:
            return "what the environments showed was not looked at, with several processes"
        is_over = ~np.asarray(are_finite(states.learner.params))
        is_over |= np.max(np.asarray(control.skipped_in_a_row), axis=1) >= MAX_SKIPPED_IN_A_ROW
        life = number * group + int(np.argmax(is_over))
        saved, start = run.last_saved(_joined([init(own) for own in _groups(seeds, group)]))
        note(f"seed {lives[life][1]} is run again from step {start} on, to see what its environments show")
        state = jax.tree.map(lambda x: x[life], saved)
        found = split(jax.jit(program.search))(state, (step - start) // program.env_steps)
        shape = state.actor.time_step.observation.shape[1:]
        return what_was_shown(found, config.env, shape, start // config.batch_size)

    states, start = _restored(run, [init(own) for own in _groups(seeds, group)], group)
    if not start:
        note_sizes(states[0].actor.time_step.observation.addressable_shards[0].data)
    rates_of = [None] * len(states) if rates is None else _groups(rates, group)
    last = start + (iterations * program.env_steps - start) // chunk_steps * chunk_steps
    progress, bins = Progress(total=last * len(lives), start=start * len(lives)), BinWatch()
    for step in range(start + chunk_steps, last + 1, chunk_steps):
        done = [run_chunk(own, rate) for own, rate in zip(states, rates_of, strict=True)]
        states = [own for own, _, _ in done]
        metrics = _stacked([outputs for _, outputs, _ in done])  # of each name [lives, iterations]
        bins.look(metrics)
        logged = reduced(metrics) | _stacked([evaluate(own) for own in states])
        if rates is None:
            for i, (own, _, control) in enumerate(done):
                look = functools.partial(what_was_shown_to, own, control, i, step)
                check(run, control, own.learner.params, look, "since the last checkpoint, or the start, ")
        else:
            logged["is_finite"] = np.concatenate([are_finite(own.learner.params) for own in states]).astype(int)
        rows = rows_of(config, lives, step // program.env_steps, step, run, logged)
        run.log(rows)
        progress.update(step * len(lives), progress_text(rows))
        if step == last:
            env_steps = step - program.env_steps * np.arange(chunk)[::-1]
            files.write_arrays(run.folder / "last_iterations.npz", metrics | {"env_steps": env_steps})
        is_due, interrupted = devices.agree(run.is_due() or step == last, run.interrupted)
        if is_due or interrupted:
            whole = _joined(states)
            run.save(whole, step)
            run.stop_if_interrupted(whole, step, interrupted)


def _chunk(iterations: int, env_steps: int) -> int:
    """Return the iterations between log points: a run is a whole number of chunks, and leaves out few iterations."""
    largest = max(1, min(max(CHUNK, CHUNK_STEPS // env_steps), iterations // CHUNKS))
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


def _is_quick(config: OnlineConfig, options: RunOptions) -> bool:
    """Whether to save on compilation: of a grid's programs, which run for seconds; those with minibatches get slow."""
    return bool(options.learning_rates) and config.minibatches == 1
