"""Lifetimes in environments on the host as a regime: one after the other, each with its actor threads."""

import contextlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from agents import splitting
from agents.acting.on_host import HostActor, Waiting, actor_keys
from agents.environments.host import HostEnvironment
from agents.types import Params, Trajectory
from frodo import devices
from frodo.regimes.arguments import all_finite
from frodo.regimes.learner import Learner, LearnerState, split
from frodo.regimes.life_rows import Lives, LivesRegime, reduced, text_of
from frodo.regimes.lifetimes import check_tasks, make_host_learn, of_all_actors
from frodo.regimes.results import joined
from frodo.runs.driver import Advanced, Driven
from frodo.runs.memory import batch_shape, check_agents
from frodo.settings.config import AgentConfig
from frodo.settings.observations import note_sizes
from meta.updates.experience import apart, jit_in_place, together

ROWS = 200  # log points of a lifetime, at most
HANDED_OVER = 32  # environment steps of several short iterations that are handed over at once
State = dict[str, Any]  # index of the lifetime, its step, keys of its actors, learner


class LivesOnHost(LivesRegime):
    """One lifetime after the other, each with its own environments and actor threads, until it is complete.

    Of short iterations without a validation trajectory several are handed over, and learned from, at once: as many as
    have HANDED_OVER environment steps, but not more than a row of a lifetime's ROWS is of.

    Of several processes each has its part of the environments. What is not named here is as for `LivesInJax`.

    Args:
      environment: one of those of the lifetimes, to see what it shows.
      make: seed -> an environment of one actor, in this process.
      is_owner: whether these environments are closed here.
    """

    is_whole_when_it_hangs = True

    def __init__(
        self,
        config: AgentConfig,
        environment: HostEnvironment,
        make_learner: Callable[..., Learner],
        lives: Lives,
        num_steps: int,
        *,
        make: Callable[[int], HostEnvironment],
        is_owner: bool = True,
        meta_params: Params | None = None,
        num_devices: int = 0,
        is_kept: bool = False,
    ):
        super().__init__(config, make_learner, lives, num_steps, is_kept)
        self._meta_params, self._make, self._is_owner = meta_params, make, is_owner
        self._num_actors = getattr(config, "num_actors", 1)
        self._on_devices, self._is_split = splitting.over(num_devices), num_devices > 0
        init = jax.jit(lambda *of: split(self.learner.init(*of)), compiler_options=devices.quick_to_compile())

        def learn(state: LearnerState, trajectories: Trajectory, validation: Trajectory | None, num: Any, rate: Any):
            of_host = make_host_learn(make_learner(learning_rate=rate))
            state, metrics, control = of_host(state, trajectories, validation, num)
            return state, (metrics, control, all_finite(state.params))

        learn_of_all = jit_in_place(learn)
        self._learn = self._on_devices(lambda state, acted, *of: learn_of_all(state, *of_all_actors(acted), *of))
        check_tasks(self.learner, environment)
        self._observation = batch_shape(config, environment)
        with splitting.over(num_devices):
            shapes = jax.eval_shape(init, jax.random.key(0), self._observation, meta_params)
            check_agents(config, self.learner.setup.agent, environment, self.learner.is_meta, shapes)
        self._init_learner = self._on_devices(init)

    def _set(self, *of_life: Any) -> None:
        super()._set(*of_life)
        self._on_exit, self._life, self._text = contextlib.ExitStack(), -1, ""
        self._window: list[dict[str, np.ndarray]] = []  # metrics of the iterations since the last row
        self._actors: list[HostActor] = []

    @property
    def _num_iterations(self) -> int:
        """How many iterations are handed over at once."""
        if self.learner.is_meta:
            return 1
        return max(1, min(HANDED_OVER, self._steps_of_life // ROWS) // self._env_steps)

    def init(self) -> State:
        return self._begun(0)

    def _begun(self, index: int) -> State:
        if self._start is not None:
            learner_state, key = self._start
            experience, lifetime = apart(learner_state.lifetime)  # that of the result stays as it is
            lifetime = together(jax.tree.map(jnp.copy, experience), lifetime)
            return {"index": 0, "step": 0, "actor_key": key, "learner": learner_state._replace(lifetime=lifetime)}
        actor_key, learner_key = jax.random.split(self._lives.keys[index])
        observation = jnp.zeros(self._observation.shape, self._observation.dtype)
        learner_state = self._init_learner(learner_key, observation, self._meta_params)
        keys = actor_keys(actor_key, self._num_actors)
        return {"index": index, "step": 0, "actor_key": keys, "learner": learner_state}

    def begin(self, state: State, step: int, driven: Driven) -> State:
        super().begin(state, step, driven)
        if not self.is_over(state, step):
            self._start_actors(state)
        return state

    def _start_actors(self, state: State) -> None:
        """Start the actors of a lifetime, from its step on."""
        self.close()
        config, setup, num = self._config, self.learner.setup, self._num_actors
        num_processes, process = jax.process_count(), jax.process_index()
        self._life, self._window = state["index"], []
        self._next_row = state["step"]
        keys = jnp.reshape(state["actor_key"], num)
        self._keys = list(keys if self._start is not None else jax.vmap(devices.own_key)(keys))
        seed = self._lives.seeds[self._life] + state["step"]
        seeds = environment_seeds(seed, num * num_processes)[process * num :]
        explored = -(-config.exploration // (num * num_processes)), self._lived(state) // (num * num_processes)
        params, schedule = self._acting_params(state["learner"]), config.schedule(self.learner.is_meta)
        schedule = schedule._replace(num_trajectories=self._num_iterations * schedule.num_trajectories)
        for key, own_seed in zip(self._keys, seeds[:num], strict=True):
            environment = self._make(own_seed)
            how = (params, key, *explored, bool(np.isfinite(config.max_abs_reward)))
            actor = HostActor(environment, setup.agent, setup.rule.policy, schedule, *how)
            if self._is_owner:
                self._on_exit.callback(_close, environment, actor)
            self._actors.append(self._on_exit.enter_context(actor))
        self._environment, self._waiting = environment, Waiting(self._actors)

    def _acting_params(self, state: LearnerState) -> Params:
        params = self.learner.setup.acting_params(state.agent)
        return splitting.here(params) if self._is_split else params

    def _lived(self, state: State) -> int:
        """Return the steps of a lifetime so far."""
        return self._before + state["step"]

    def advance(self, state: State, step: int) -> Advanced:
        if state["index"] != self._life:
            self._start_actors(state)
        index, rate = state["index"], None if self._lives.rates is None else self._lives.rates[state["index"]]
        handed_over, left = self._num_iterations, -(-(self._steps_of_life - state["step"]) // self._env_steps)
        number = state["step"] // (handed_over * self._env_steps) % self._num_actors  # they take turns
        acted = self._actors[number].get(self._driven.is_stopping)
        num = min(handed_over, left)
        if not index and not self._lived(state):
            note_sizes(acted.trajectories.observation[:1, :1])
        learner_state, outputs = self._learn(state["learner"], acted, num, rate)
        params = self._acting_params(learner_state)
        for actor in self._actors:
            actor.params = params
        metrics, control, is_finite = jax.device_get(outputs)  # all at once: it is waited for
        if rate is None:
            self._check(control, is_finite)
        episodes, return_sums = np.reshape(devices.total(*acted.episodes(handed_over).ravel()), (2, -1))
        all_of = metrics | {"episodes": episodes.astype(int), "return_sum": return_sums}
        self._window.append({name: x[:num] for name, x in all_of.items()})
        if self._is_kept:
            self.parts.append(self._window[-1])
        self._keys[number] = acted.key
        state = {
            "index": index,
            "step": state["step"] + num * self._env_steps,
            "actor_key": jnp.stack(self._keys) if self._num_actors > 1 else acted.key,
            "learner": learner_state,
        }
        complete = devices.agree(self._environment.is_complete)[0]
        is_last = state["step"] >= self._steps_of_life or bool(complete)
        step = (index + 1) * self._steps_of_life if is_last else index * self._steps_of_life + state["step"]
        rows: list[dict[str, Any]] = []
        if state["step"] >= self._next_row or is_last:
            rows = self._rows(state, rate)
        if is_last and index + 1 < len(self._lives.seeds):
            state = self._begun(index + 1)
        return Advanced(state, step, rows, self._text)

    def _rows(self, state: State, rate: Any) -> list[dict[str, Any]]:
        stacked = {name: x[None] for name, x in joined(self._window).items()}
        self._bins.look(stacked)
        logged = reduced(stacked) | {name: np.array([x]) for name, x in self._waiting.shares().items()}
        if rate is not None:
            logged["is_finite"] = np.array([all_finite(state["learner"].params)]).astype(int)
        life = slice(self._life, self._life + 1)
        one_life = Lives(self._lives.keys[life], self._lives.seeds[life], None if rate is None else rate[None])
        rows = self._rows_of(one_life, self._lived(state), logged)
        self._text, self._window = text_of(rows), []
        self._next_row += max(self._env_steps, self._steps_of_life // ROWS)
        return rows

    def close(self, *exception: Any) -> None:
        self._on_exit.__exit__(*exception or (None, None, None))
        self._actors = []

    def gather(self, state: State) -> State:
        return state | {"learner": devices.gather(state["learner"])}

    def scatter(self, whole: State, step: int, begun: State) -> tuple[State, int]:
        learner, step = devices.scatter(whole["learner"], step, begun["learner"])
        others = {name: whole[name] for name in begun if name != "learner"}
        return devices.of_first(others) | {"learner": learner}, step


def _close(environment: HostEnvironment, actor: HostActor) -> None:
    """Close an environment, but for one whose step hangs: to close it might, too."""
    if not actor.hangs():
        environment.close()


def environment_seeds(seed: int, num_actors: int) -> list[int]:
    """Return the seeds of the actors' environments: the first has the run's, others none that another seed has."""
    others = [int(np.random.SeedSequence((seed, number)).generate_state(1)[0]) for number in range(1, num_actors)]
    return [seed, *(other % 2**31 for other in others)]
