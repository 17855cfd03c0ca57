"""Lifetimes in environments on the host: one after the other, each with its actor threads."""

import contextlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from agents import splitting
from agents.environments.host import HostEnvironment
from agents.host_acting import HostActor, Waiting, actor_keys
from agents.types import Params
from frodo import devices
from frodo.config import OnlineConfig
from frodo.learner import Learner, split
from frodo.logs import Progress
from frodo.observations import note_sizes
from frodo.online import make_host_learn, of_all_actors
from frodo.runs.life_rows import are_finite, check, lives_of, progress_text, reduced, rows_of
from frodo.runs.run import Run
from frodo.value_bins import BinWatch
from meta.experience import jit_in_place

ROWS = 200  # log points of a seed, at most


def train_on_host(
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
    lives, steps = lives_of(run.options), run.options.steps
    num_processes, process = jax.process_count(), jax.process_index()
    on_devices = splitting.over(run.options.num_devices)
    learner = make_learner()
    schedule, env_steps = config.schedule(learner.is_meta), config.num_env_steps(learner.is_meta)

    def learn_from(state, trajectories, validation, rate):
        return make_host_learn(make_learner(learning_rate=rate))(state, trajectories, validation)

    init = jax.jit(lambda *of: split(learner.init(*of)), compiler_options=devices.quick_to_compile())
    learn_of_all = jit_in_place(learn_from)
    learn = on_devices(lambda state, acted, rate: learn_of_all(state, *of_all_actors(acted), rate))
    observation = jnp.zeros((config.batch_size, *environment.observation_shape), environment.observation_dtype)
    environment.close()

    def initial_state(index: int) -> dict[str, Any]:
        actor_key, learner_key = jax.random.split(jax.random.key(lives[index][1]))
        learner_state = on_devices(init)(learner_key, observation, meta_params)
        keys = actor_keys(actor_key, config.num_actors)
        return {"index": index, "step": 0, "actor_key": keys, "learner": learner_state}

    state, start = _restored(run, initial_state(0))
    progress, bins = Progress(total=steps * len(lives), start=start), BinWatch()
    agent, policy = learner.setup.agent, learner.setup.rule.policy
    is_clipped = np.isfinite(config.max_abs_reward)
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
        keys = jax.vmap(devices.own_key)(jnp.reshape(state["actor_key"], num_actors))
        own_seeds = _environment_seeds(seed + state["step"], num_actors * num_processes)[process * num_actors :]
        with contextlib.ExitStack() as stack:
            actors: list[HostActor] = []
            for key, own_seed in zip(keys, own_seeds[:num_actors], strict=True):
                own_size = config.batch_size // num_processes
                environment = make(config.env, own_size, own_seed)
                num_parts = num_actors * num_processes
                explored = -(-config.exploration // num_parts), state["step"] // num_parts
                actor = HostActor(environment, agent, policy, schedule, params, key, *explored, is_clipped)
                stack.callback(_close, environment, actor)
                actors.append(stack.enter_context(actor))
            waiting = Waiting(actors)
            is_last = state["step"] >= steps
            while not is_last:
                number = state["step"] // env_steps % num_actors  # they take turns
                try:
                    acted = actors[number].get(lambda: run.interrupted)
                except KeyboardInterrupt:
                    if num_processes == 1:  # else the others wait for this one
                        done = index * steps + state["step"]
                        run.save(state, done)
                        run.stop_if_interrupted(state, done)
                    raise
                if not (index or state["step"]):
                    note_sizes(acted.trajectories.observation[:1, :1])
                learner_state, metrics, control = learn(state["learner"], acted, rate)
                params = acting_params(learner_state.agent)
                for actor in actors:
                    actor.params = params
                window.append(jax.device_get(metrics))
                if rate is None:
                    check(run, control, learner_state.params)
                returns.extend(acted.returns)
                step = state["step"] + env_steps
                keys = keys.at[number].set(acted.key)
                actor_key = jnp.reshape(keys, jnp.shape(state["actor_key"]))
                state = {"index": index, "step": step, "actor_key": actor_key, "learner": learner_state}
                is_last = step >= steps or bool(devices.agree(environment.is_complete)[0])
                done = (index + 1) * steps if is_last else index * steps + step
                if step >= next_row or is_last:
                    stacked = {name: np.stack([metrics[name] for metrics in window])[None] for name in window[0]}
                    bins.look(stacked)
                    episodes, return_sum = devices.total(len(returns), sum(returns))
                    stacked |= {"episodes": np.array([[int(episodes)]]), "return_sum": np.array([[return_sum]])}
                    logged = reduced(stacked) | {name: np.array([x]) for name, x in waiting.shares().items()}
                    if rate is not None:
                        one = jax.tree.map(lambda x: x[None], learner_state.params)
                        logged["is_finite"] = np.asarray(are_finite(one)).astype(int)
                    rows = rows_of(config, lives[index : index + 1], step // env_steps, step, run, logged)
                    run.log(rows)
                    text = progress_text(rows)
                    next_row += max(env_steps, steps // ROWS)
                    window, returns = [], []
                progress.update(done, text)
                is_due, interrupted = devices.agree(run.is_due(), run.interrupted)
                if is_due or interrupted or done == steps * len(lives):
                    whole = state | {"learner": devices.gather(state["learner"])}
                    run.save(whole, done)
                    run.stop_if_interrupted(whole, done, interrupted)


def _close(environment: HostEnvironment, actor: HostActor) -> None:
    """Close an environment, but for one whose step hangs: to close it might, too."""
    if not actor.hangs():
        environment.close()


def _restored(run: Run, begun: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """Return the life that process 0 goes on with, as it lies where it begins, and the steps that are done."""
    whole, start = run.restore(begun | {"learner": devices.gather(begun["learner"])})
    learner, start = devices.scatter(whole["learner"], start, begun["learner"])
    return devices.of_first({name: whole[name] for name in begun if name != "learner"}) | {"learner": learner}, start


def _environment_seeds(seed: int, num_actors: int) -> list[int]:
    """Return the seeds of the actors' environments: the first has the run's, others none that another seed has."""
    others = [int(np.random.SeedSequence((seed, number)).generate_state(1)[0]) for number in range(1, num_actors)]
    return [seed, *(other % 2**31 for other in others)]
