"""Lifetimes in a pure environment as a regime: one program for all seeds, what they differ in is data."""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from agents import splitting
from agents.environments.host import NotFiniteError, check_finite
from agents.types import Array, Params, Trajectory
from frodo import devices, files
from frodo.logs import note
from frodo.regimes.arguments import all_finite, are_finite
from frodo.regimes.learner import Control, Learner
from frodo.regimes.life_rows import MAX_SKIPPED_IN_A_ROW, Lives, LivesRegime, reduced, text_of
from frodo.regimes.lifetimes import Evaluate, OnlineProgram, OnlineState, make_online_program
from frodo.regimes.results import joined
from frodo.runs.driver import Advanced, Driven
from frodo.runs.memory import check_agents
from frodo.settings.config import AgentConfig
from frodo.settings.observations import note_sizes
from toy_envs.base import Environment

CHUNK, CHUNKS = 100, 20  # iterations between log points, at most, and log points at least
# Or more iterations, if they are no more environment steps: to measure takes as long as many of them.
CHUNK_STEPS = 10_000
# A CPU's core reads the parameters of seeds side by side at every step: those of more seeds leave its cache.
SIDE_BY_SIDE_BYTES = 1.5e6


class LivesInJax(LivesRegime):
    """As many lifetimes at a time as there are devices, or all of them side by side; or each split over devices.

    Args, in addition to those of `LivesRegime`:
      environment: that of all lifetimes.
      num_steps: of which there are as many whole iterations as fit.
      chunk: iterations between two rows, at most.
      meta_params: the initial η; None for random.
      num_devices: over which each lifetime is split; 0 where whole lifetimes are shared out.
      of_iterations: measures of the states before and after an iteration, inside the program.
      of_rows: measures of the state at a log point.
      is_quick: whether to save on compilation.
    """

    def __init__(
        self,
        config: AgentConfig,
        environment: Environment,
        make_learner: Callable[..., Learner],
        lives: Lives,
        num_steps: int,
        *,
        chunk: int = CHUNK,
        meta_params: Params | None = None,
        num_devices: int = 0,
        of_iterations: Evaluate = lambda before, after: {},
        of_rows: Callable[[OnlineState], dict[str, Any]] = lambda state: {},
        is_kept: bool = False,
        is_quick: bool = False,
    ):
        super().__init__(config, make_learner, lives, num_steps, is_kept)
        self._environment, self._chunk, self._num = environment, chunk, len(lives.seeds)
        program_with = lambda rate: make_online_program(make_learner(learning_rate=rate), environment, of_iterations)
        self.program: OnlineProgram = program_with(None)
        vmaps, is_split = getattr(config, "vmap_seeds", False), bool(num_devices)
        self._group = self._num if vmaps else 1 if is_split else devices.num_shares(self._num)
        shared_out = (lambda fn: fn) if is_split else functools.partial(devices.shared_out, num=self._group)
        split = splitting.over(num_devices)
        quick = devices.quick_to_compile()

        def run_lives(both: tuple[Any, Array | None], num_iterations: Array):
            run_one = lambda one: _run(program_with(one[1]), chunk, one[0], num_iterations)
            return jax.lax.map(run_one, both, batch_size=num_at_once(both[0].learner.params) if vmaps else None)

        run_all = shared_out(run_lives)
        run = jax.jit(
            lambda states, rates, num: run_all((states, rates), num),
            donate_argnums=0,
            compiler_options=quick if is_quick else {},
        )
        self._run = split(run)
        self._evaluate = split(jax.jit(shared_out(jax.vmap(lambda state: splitting.whole(of_rows(state))))))
        init = jax.vmap(lambda key: self.program.init(key, meta_params))
        self._init_group = split(jax.jit(shared_out(init), compiler_options=quick))
        with splitting.over(num_devices):
            shapes = jax.eval_shape(init, lives.keys)
            check_agents(config, self.learner.setup.agent, environment, self.learner.is_meta, shapes)
        self._again = split(jax.jit(self.program.again))

    def _set(self, num_steps: int, *of_life: Any) -> None:
        super()._set(num_steps // self._env_steps * self._env_steps, *of_life)

    def init(self) -> list[Any]:
        if self._start is not None:
            return [jax.tree.map(lambda x: jnp.copy(x)[None], self._start)]
        return [self._init_group(keys) for keys in _groups(self._lives.keys, self._group)]

    def begin(self, state: list[Any], step: int, driven: Driven) -> list[Any]:
        super().begin(state, step, driven)
        self._rates = [None] * len(state) if self._lives.rates is None else _groups(self._lives.rates, self._group)
        if not step and self._start is None:
            note_sizes(state[0].actor.time_step.observation.addressable_shards[0].data)
        return state

    def advance(self, state: list[Any], step: int) -> Advanced:
        num = min(self._chunk, (self._steps_of_life - step) // self._env_steps)
        outputs = [self._run(own, rate, num) for own, rate in zip(state, self._rates, strict=True)]
        state, step = [own for own, _ in outputs], step + num * self._env_steps
        found = jax.tree.map(lambda x: x[:, :num], jax.device_get([of_group for _, of_group in outputs]))
        metrics, controls = joined([own for own, _ in found]), [control for _, control in found]
        self._bins.look(metrics)
        logged = reduced(metrics) | joined(jax.device_get([self._evaluate(own) for own in state]))
        if self._lives.rates is None:
            for i, (own, control) in enumerate(zip(state, controls, strict=True)):
                look = functools.partial(self._what_was_shown, own, control, i, step)
                self._check(control, all_finite(own.learner.params), look)
        else:
            logged["is_finite"] = np.concatenate([are_finite(own.learner.params) for own in state]).astype(int)
        if self._is_kept:
            self.parts.append({name: x[0] for name, x in metrics.items()})
        if self._driven.run and self.is_over(state, step):
            env_steps = self._before + step - self._env_steps * np.arange(num)[::-1]
            files.write_arrays(self._driven.run.folder / "last_iterations.npz", metrics | {"env_steps": env_steps})
        rows = self._rows_of(self._lives, self._before + step, logged)
        return Advanced(state, step, rows, text_of(rows))

    def is_over(self, state: list[Any], step: int) -> bool:
        return step >= self._steps_of_life

    def done(self, step: int) -> int:
        return step * self._num

    def gather(self, state: list[Any]) -> Any:
        """Join groups on one device: a program over several has them wait for each other, and is ended after 40 s."""
        groups = [devices.gather(own) for own in state]
        if len(groups) == 1:
            return groups[0]
        here = jax.device_put(groups, jax.local_devices()[0])
        return jax.tree.map(lambda *x: jnp.concatenate(x), *here)

    def scatter(self, whole: Any, step: int, begun: list[Any]) -> tuple[list[Any], int]:
        groups = zip(_groups(whole, self._group), begun, strict=True)
        placed = [devices.scatter(own, step, like) for own, like in groups]
        return [own for own, _ in placed], placed[0][1]

    def _what_was_shown(self, states: Any, control: Control, number: int, step: int) -> str:
        """Run the first lifetime of a group that cannot go on again, and say what its environments showed."""
        if jax.process_count() > 1:
            return "what the environments showed was not looked at, with several processes"
        is_over = ~np.asarray(are_finite(states.learner.params))
        is_over |= np.max(control.skipped_in_a_row, axis=1) >= MAX_SKIPPED_IN_A_ROW
        life = number * self._group + int(np.argmax(is_over))
        run, begun = self._driven.run, self.gather(self.init())
        saved, start = run.last_saved(begun) if run else (begun, 0)
        note(f"seed {self._lives.seeds[life]} is run again from step {start} on, to see what its environments show")
        state, num_taken = jax.tree.map(lambda x: x[life], saved), (self._before + start) // self._config.batch_size
        name = getattr(self._config, "env", "") or type(self._environment).__name__
        try:
            for _ in range((step - start) // self._env_steps):
                state, parts = self._again(state)
                for part in parts:
                    num_taken = _check_finite(jax.device_get(part), name, num_taken, self._config.max_abs_reward)
        except NotFiniteError as error:
            return str(error)
        return ""


def _check_finite(acted: Trajectory, name: str, num_taken: int, max_abs_reward: float) -> int:
    """Raise a NotFiniteError where trajectories [M, T, B, ...] show what is none; returns how many steps were taken."""
    num, length, _ = acted.action.shape
    if not (np.isfinite(acted.observation).all() and np.isfinite(acted.reward).all()):
        reward: Any = np.pad(acted.reward, ((0, 0), (1, 0), (0, 0)))  # the first of each is what was shown before
        for m, t in np.ndindex(num, length + 1):
            shown = acted._replace(observation=acted.observation[m, t], reward=reward[m, t])
            check_finite(shown, name, num_taken + m * length + t, np.isfinite(max_abs_reward))
    return num_taken + num * length


def _run(program: OnlineProgram, size: int, state: OnlineState, num_iterations: Array) -> tuple[OnlineState, Any]:
    """Run `num_iterations`, at most `size`: one compiled program serves any number. Outputs are [size, ...]."""
    one = jax.eval_shape(lambda state: program.run(state, 1)[1:], state)
    outputs = jax.tree.map(lambda x: jnp.zeros((size, *x.shape[1:]), x.dtype), one)

    def iteration(i, carry):
        state, *new = program.run(carry[0], 1)
        return state, jax.tree.map(lambda all_, x: all_.at[i].set(x[0]), carry[1], tuple(new))

    return jax.lax.fori_loop(0, num_iterations, iteration, (state, outputs))


def num_at_once(params: Params) -> int:
    """Return how many lifetimes, of those with these parameters [lifetimes, ...], run side by side on this device."""
    leaves = jax.tree.leaves(params)
    num, size = len(leaves[0]), sum(x.size * x.dtype.itemsize for x in leaves)
    if jax.default_backend() != "cpu":
        return num
    divisors = [n for n in range(1, num + 1) if num % n == 0]
    return min(divisors, key=lambda n: abs(math.log(n / num * size / SIDE_BY_SIDE_BYTES)))


def chunk_of(iterations: int, env_steps: int, max_steps: float = math.inf) -> int:
    """Return the iterations between log points: a run is a whole number of chunks, and leaves out few iterations.

    Args:
      max_steps: environment steps from one log point to the next, at most, or one iteration.
    """
    largest = int(max(1, min(max(CHUNK, CHUNK_STEPS // env_steps), iterations // CHUNKS, max_steps // env_steps)))
    return min(range(largest, largest // 2, -1), key=lambda chunk: iterations % chunk)


def _groups(states: Any, size: int) -> list[Any]:
    """Cut a pytree [lifetimes, ...] into groups of so many."""
    num = len(jax.tree.leaves(states)[0])
    return [jax.tree.map(lambda x, i=i: x[i : i + size], states) for i in range(0, num, size)]
