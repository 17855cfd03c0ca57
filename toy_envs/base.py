"""The environment contract: TimeStep, auto-reset, and the bridge to dm_env.

What happens at the end of an episode is defined here, once, for every adapter of this package:

- `discount` is 0 only where an episode truly terminated; `truncated` marks an end by time limit. The reward of either
  counts. Elsewhere the discount is 1, but for environments of `dm_env` with discounts of their own, from 0 to 1, which
  the agent's multiplies.
- *Next-step reset* (dm_env, envpool, gymnasium's default): the step that ends an episode shows that episode's own last
  observation, from which a truncated one bootstraps. The step after it ignores its action and shows the first
  observation of the next episode; nobody chose it, so it is not `valid`, and `is_first` is set on it.
- *Same-step reset* (gymnasium's `SAME_STEP`): the step that ends an episode already shows the first observation of the
  next one, so `is_first` is set on that very step. After a truncation the last observation comes with it
  (`HostEnvironment.last_observations`); an actor lays it into the trajectory as a next-step reset has it. Where it does
  not come, what followed the step is unknown, and is taken to be worth as much as the observation before it
  (`agents.types.successors`).
- The pure environments of this folder reset in the same step after a termination, whose last observation nobody needs,
  and in the next one after a truncation.

A learner needs no more than this, and `successors`: errors of steps that are not valid count for nothing, and no return
is propagated across a step that ended an episode.
"""

import abc
import functools
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

import dm_env
import jax
import jax.numpy as jnp
import numpy as np
from dm_env import specs

Array = jax.Array
State = TypeVar("State")
TASK_SEED = 20_230_118  # of tasks that have numbers


class TimeStep(NamedTuple):
    """What an environment shows after a step. Any leading axes are batch axes, the same for all fields.

    Environments on the host show NumPy arrays (`host_time_step`).
    """

    observation: Array  # [..., *observation_shape]
    reward: Array  # float32, unclipped; caused by the action just taken
    discount: Array  # float32, 0 at a true termination, else the environment's, mostly 1
    truncated: Array  # bool, the step ended its episode by a time limit
    valid: Array  # bool, an agent chose this step: not that of a reset
    is_first: Array  # bool, `observation` is the first one of an episode


def host_time_step(**arrays: np.ndarray) -> TimeStep:
    """Make a time step of NumPy arrays, which stand for those of JAX."""
    return TimeStep(**arrays)  # type: ignore[arg-type]


class Environment(abc.ABC, Generic[State]):
    """A pure environment: every method is jittable and vmappable, and the state carries its own random key.

    A subclass says how one episode goes (`initial_state`, `restart`, `transition`, `observe`); `init` and `step` add
    auto-reset and are what actors call.
    """

    observation_shape: tuple[int, ...]
    num_actions: int
    horizon: int | None = None  # steps of an episode, at most; None where it is not known
    reward_range: tuple[float, float] | None = None  # the least and the largest reward; None where they are not known
    is_restart_slow: bool = False  # the start of an episode costs as much as many steps
    no_op: int | None = None  # the action that does nothing, if there is one
    held_out_ids: range | None = None  # of the tasks of a test, which are not among `task_ids`; None for no such tasks

    @abc.abstractmethod
    def initial_state(self, key: Array) -> State:
        """Return the state at the start of the first episode of a lifetime."""

    @abc.abstractmethod
    def restart(self, state: State) -> State:
        """Return the state at the start of the next episode of the same lifetime."""

    @abc.abstractmethod
    def transition(self, state: State, action: Array) -> tuple[State, Array, Array, Array]:
        """Return the next state, the reward, and whether the episode terminated or was truncated."""

    @abc.abstractmethod
    def observe(self, state: State) -> Array:
        """Return the observation of a state, [*observation_shape] float32; pictures may be uint8, bool is 0 and 1."""

    def time_left(self, state: State) -> Array:
        """Return the part of an episode's time that is left, float32 from 1 to 0; always 1 if no limit is known."""
        return jnp.ones((), jnp.float32)

    @property
    def has_time_left(self) -> bool:
        """Whether it says what time is left."""
        return type(self).time_left is not Environment.time_left

    @functools.cached_property
    def shown(self) -> Any:
        """The shape and dtype of what `observe` returns, jax.ShapeDtypeStruct."""
        return jax.eval_shape(lambda: self.observe(self.initial_state(jax.random.key(0))))

    @property
    def observation_dtype(self) -> np.dtype:
        """The dtype of what `observe` returns."""
        return self.shown.dtype

    @property
    def task_ids(self) -> range:
        """The numbers of its tasks, all below 2³²: what `initial_state` draws, where it draws one."""
        return range(2**31)

    @property
    def tested(self) -> "Environment[State]":
        """The environment in whose held-out tasks agents of this one are tested."""
        return self

    def numbered_state(self, task_id: Array) -> State:
        """Return the start of an episode of the task of that number, the same each time.

        A state that holds a random key has the same luck each time, too.
        """
        return self.initial_state(jax.random.fold_in(jax.random.key(TASK_SEED), task_id))

    @property
    def program(self) -> "Environment[State]":
        """The environment whose `restart`, `transition` and `observe` are this one's: what differs is in the state."""
        return self

    def init(self, key: Array) -> tuple[State, TimeStep]:
        """Start a lifetime: the first state and the first time step."""
        state = self.initial_state(key)
        no, yes = jnp.zeros((), bool), jnp.ones((), bool)
        reward, discount = jnp.zeros((), jnp.float32), jnp.ones((), jnp.float32)
        return state, TimeStep(self.observe(state), reward, discount, truncated=no, valid=no, is_first=yes)

    def step(self, state: State, action: Array, is_after_truncation: Array) -> tuple[State, TimeStep]:
        """Take one step, or begin the next episode where the step before was truncated: the action is then ignored.

        Where the step terminates an episode, show the first observation of the next one; where a time limit ends it,
        its own last observation.
        """
        moved, is_first, shown = self._moved(state, action, is_after_truncation)
        new = self._begun(is_first, moved)
        return new, self._seen(state, new, shown)

    def _moved(self, state: State, action: Array, is_after_truncation: Array) -> tuple[State, Array, dict[str, Array]]:
        """Return the state before a next episode begins, whether one does, and what is shown but the observation."""
        is_after_truncation = jnp.asarray(is_after_truncation)
        new, reward, terminated, truncated = self.transition(cloned(state), action)
        terminated = terminated & ~is_after_truncation
        is_first = terminated | is_after_truncation
        shown = dict(
            reward=jnp.where(is_after_truncation, 0.0, reward),
            discount=1.0 - terminated.astype(jnp.float32),
            truncated=truncated & ~is_first,
            valid=~is_after_truncation,
            is_first=is_first,
        )
        return choose(is_after_truncation, state, new), is_first, shown

    def _begun(self, is_first: Array, moved: State) -> State:
        """Return the start of the next episode where one begins, else the state."""
        return choose(is_first, self.restart(cloned(moved)), moved)

    def _seen(self, state: State, new: State, shown: dict[str, Array]) -> TimeStep:
        """Return the time step that leads from a state to a new one with its observation."""
        return TimeStep(observation=self.observe(new), **shown)


def check_pure(name: str, environment: Any) -> Environment:
    """Return a pure environment; a TypeError where it is something else."""
    if not isinstance(environment, Environment):
        kind = type(environment)
        raise TypeError(
            f"{name} is a {kind.__module__}.{kind.__qualname__}, expected a pure one, a frodo.Environment: "
            "frodo.as_environment makes one of a name, as 'toy/catch', or of one of gymnax, craftax, navix or xminigrid"
        )
    return environment


def step_batch(
    environment: "Environment[State]", state: State, action: Array, is_after_truncation: Array
) -> tuple[State, TimeStep]:
    """Take a step in each of B environments, as `step` does.

    On one CPU nothing is drawn or computed of a next episode in a step that ends none, and where `is_restart_slow`,
    only the episodes that begin, one after another. Other devices would have to wait for the answer.
    """
    if type(environment).step is not Environment.step:  # a user-defined step
        return jax.vmap(environment.step)(state, action, is_after_truncation)
    moved, is_first, shown = jax.vmap(environment._moved)(state, action, is_after_truncation)
    each = jax.jit(jax.vmap(environment._begun))

    def where_ended(begun: Callable[[Array, State], State], is_first: Array, new: State) -> State:
        like = jax.eval_shape(begun, is_first, new)
        go_on = lambda _, new: jax.tree.map(lambda x, like: x.astype(like.dtype), new, like)
        return jax.lax.cond(is_first.any(), begun, go_on, is_first, new)

    def one_by_one(is_first: Array, new: State) -> State:
        return jax.lax.map(lambda one: where_ended(environment._begun, *one), (is_first, new))

    axes = jax.sharding.get_abstract_mesh().axis_types
    is_whole = all(axis == jax.sharding.AxisType.Manual for axis in axes)  # the batch, or each device's own
    begun = one_by_one if environment.is_restart_slow else each
    cpu = functools.partial(where_ended, begun) if is_whole else each
    new = jax.lax.platform_dependent(is_first, moved, cpu=cpu, default=each)
    return new, jax.vmap(environment._seen)(state, new, shown)


def choose(is_over: Array, new: State, old: State) -> State:
    """Return the new state where the episode is over, else the old one; the new one was made of `cloned(old)`."""
    return cloned(jax.tree.map(lambda x, y: jnp.where(is_over, x, y), new, old))


def cloned(state: State) -> State:
    """Return the state with clones of its random keys: the same numbers, of which one of two branches is used.

    For `jax_debug_key_reuse` they are other keys.
    """
    is_key = lambda x: isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
    return jax.tree.map(lambda x: jax.random.clone(x) if is_key(x) else x, state)


class DmEnv(dm_env.Environment):
    """One pure environment as a `dm_env.Environment` (next-step reset, as that interface has it)."""

    def __init__(self, environment: Environment, seed: int):
        self._environment = environment
        self._restart = jax.jit(environment.restart)
        self._transition = jax.jit(environment.transition)
        self._observe = jax.jit(environment.observe)
        self._state = environment.initial_state(jax.random.key(seed))
        self._is_over = True
        self._is_new = True  # the initial state already is the start of an episode

    def reset(self) -> dm_env.TimeStep:
        if not self._is_new:
            self._state = self._restart(self._state)
        self._is_over = self._is_new = False
        return dm_env.restart(np.asarray(self._observe(self._state)))

    def step(self, action: int) -> dm_env.TimeStep:
        if self._is_over:
            return self.reset()
        self._state, reward, terminated, truncated = self._transition(self._state, jnp.int32(action))
        observation = np.asarray(self._observe(self._state))
        self._is_over = bool(terminated or truncated)
        if terminated:
            return dm_env.termination(float(reward), observation)
        if truncated:
            return dm_env.truncation(float(reward), observation)
        return dm_env.transition(float(reward), observation)

    def observation_spec(self) -> specs.Array:
        return specs.Array(self._environment.observation_shape, self._environment.observation_dtype, name="observation")

    def action_spec(self) -> specs.DiscreteArray:
        return specs.DiscreteArray(self._environment.num_actions, name="action")
