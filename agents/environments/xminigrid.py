"""The adapter to xminigrid's XLand: grid worlds with hidden goals, as pure functions (Nikulin et al. 2023)."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from agents.environments.extras import import_extra, strongly_typed
from toy_envs.base import Array, Environment

NUM_DISTRACTORS = 3
TASKS = ("", "train", "held_out")  # all of the benchmark's, or a part, after a slash in a name
HELD_OUT = 8  # one of so many goals is held out
PLACES = ("", "Up", "Down", "Left", "Right")  # where something is near
MODULES = ("core.goals", "core.rules", "types")  # of xminigrid, which it does not import itself


class XLandState(NamedTuple):
    task: Any  # xminigrid's RuleSet
    time_step: Any  # xminigrid's


class XLandEnvironment(Environment[XLandState]):
    """An environment of xminigrid, with the task of its parameters, if it has one.

    With `tasks` the task is drawn as in the *trivial* benchmark of XLand, and `restart` keeps it. Of "train" and
    "held_out" the goals are different ones, seven eighths and one eighth of all; agents of the former are tested in the
    latter. Of "" there are all, so those of a test may have been trained on.

    In that benchmark there is one goal of eleven kinds, such as to hold an object, to be next to it, or to lay
    one next to another; its one or two objects lie in the grid, and three others. The goal is known by its
    reward alone, 1 − 0.9 t / T after t of T steps, which ends the episode. An end by time is a truncation. Where
    objects and agent are is drawn in each episode.

    Observations are flat: of each place in the agent's view (5 × 5) the kind of object and its colour, one-hot, and
    the agent's direction, one-hot.

    Args:
      env, params: what `xminigrid.make` returns.
      tasks: one of `TASKS`; None for that of the parameters.
    Raises:
      ImportError: if xminigrid is not installed.
    """

    reward_range = (0.0, 1.0)

    def __init__(self, env: Any, params: Any, tasks: str | None = None):
        xminigrid = import_extra("xminigrid", *MODULES)
        self._env, self._params, self._tasks = env, params, tasks
        self.horizon, self.num_actions = self._params.max_steps, self._env.num_actions(self._params)
        constants = xminigrid.core.constants
        self._sizes, self._num_directions = (constants.NUM_TILES, constants.NUM_COLORS), len(constants.DIRECTIONS)
        self.observation_shape = (self._params.view_size**2 * sum(self._sizes) + self._num_directions,)

    @functools.cached_property
    def tested(self) -> "XLandEnvironment":  # type: ignore[override]
        return XLandEnvironment(self._env, self._params, "held_out") if self._tasks == "train" else self

    def initial_state(self, key: Array) -> XLandState:
        if self._tasks is None:
            return self._begin(getattr(self._params, "ruleset", ()), key)
        task_key, key = jax.random.split(key)
        return self._begin(trivial_task(task_key, self._tasks), key)

    def restart(self, state: XLandState) -> XLandState:
        return self._begin(state.task, state.time_step.state.key)

    def _begin(self, task: Any, key: Array) -> XLandState:
        params = self._params.replace(ruleset=task) if jax.tree.leaves(task) else self._params
        return XLandState(task, jax.tree.map(strongly_typed, self._env.reset(params, key)))

    def transition(self, state: XLandState, action: Array):
        new = self._env.step(self._params, state.time_step, action)
        new = jax.tree.map(lambda x, before: x.astype(before.dtype), new, state.time_step)
        terminated = new.discount == 0
        return XLandState(state.task, new), jnp.float32(new.reward), terminated, new.last() & ~terminated

    def observe(self, state: XLandState) -> Array:
        kinds, colours = (jax.nn.one_hot(state.time_step.observation[..., i], n) for i, n in enumerate(self._sizes))
        direction = jax.nn.one_hot(state.time_step.state.agent.direction, self._num_directions)
        return jnp.append(jnp.concatenate([kinds, colours], axis=-1), direction)

    def time_left(self, state: XLandState) -> Array:
        return 1.0 - state.time_step.state.step_num / self.horizon


def trivial_task(key: Array, tasks: str = "") -> Any:
    """Draw a task, a RuleSet, as the generator of xminigrid's *trivial* benchmark does.

    A goal of an object that is held or laid somewhere is of those that can be picked up, any other of all; distractors
    are drawn with replacement from what the goal does not have. A goal is held out if the sum of the numbers of its
    kind and objects, the same for goals that are met together, is a multiple of HELD_OUT. One of the wrong part of
    `TASKS` gets another first object.
    """
    xminigrid = import_extra("xminigrid", *MODULES)
    goals, tiles, colours = xminigrid.core.goals, xminigrid.core.constants.Tiles, xminigrid.core.constants.Colors
    kinds = [tiles.BALL, tiles.SQUARE, tiles.PYRAMID, tiles.KEY, tiles.STAR, tiles.HEX, tiles.GOAL]
    shades = [colour for name, colour in vars(colours()).items() if name not in ("EMPTY", "BLACK")]
    objects = np.array([(kind, shade) for kind in kinds for shade in shades], np.uint8)
    num_pickable = len(objects) - len(shades)  # the last kind, GOAL, stays where it is

    kind_key, first_key, second_key, distractor_key = jax.random.split(key, 4)
    kind = jax.random.randint(kind_key, (), 0, 11)
    num_first = jnp.where(kind == 0, num_pickable, len(objects))
    first = jax.random.randint(first_key, (), 0, num_first)
    second = jax.random.randint(second_key, (), 0, num_pickable)
    number = jnp.array([0, 1, 2, 3, 4, 5, 6, 7, 7, 8, 8])[kind]  # one up of the other is the other down of it
    rest = (number + first + jnp.where(kind > len(PLACES), second, 0)) % HELD_OUT
    if tasks == "train":
        first = jnp.where(rest == 0, (first + 1) % num_first, first)
    elif tasks == "held_out":
        first = jnp.where(first >= rest, first - rest, first - rest + HELD_OUT)
    one, other = jnp.asarray(objects)[first], jnp.asarray(objects)[second]
    possible = [
        goals.AgentHoldGoal(tile=one),
        *(getattr(goals, f"AgentNear{place}Goal")(tile=one) for place in PLACES),
        *(getattr(goals, f"TileNear{place}Goal")(tile_a=one, tile_b=other) for place in PLACES),
    ]
    is_pair = kind > len(PLACES)
    numbers = jnp.arange(len(objects))
    is_used = (numbers == first) | (is_pair & (numbers == second))
    distractors = jax.random.categorical(distractor_key, jnp.where(is_used, -jnp.inf, 0.0), shape=(NUM_DISTRACTORS,))
    return xminigrid.types.RuleSet(
        goal=jnp.stack([goal.encode() for goal in possible])[kind],
        rules=xminigrid.core.rules.EmptyRule().encode()[None],
        init_tiles=jnp.stack([one, jnp.where(is_pair, other, 0), *jnp.asarray(objects)[distractors]]),
    )


@functools.cache
def make_xminigrid(name: str) -> XLandEnvironment:
    """Make an environment by id/tasks, the same one for the same name: populations compile one program for it."""
    env_id, _, tasks = name.partition("/")
    env, params = import_extra("xminigrid", *MODULES).make(env_id)
    return XLandEnvironment(env, params, tasks)


def xminigrid_ids() -> list[str]:
    """Return the names of XLands that xminigrid knows; an ImportError says where it is missing."""
    known = import_extra("xminigrid", *MODULES).registered_environments()
    parts = ["", *(f"/{part}" for part in TASKS[1:])]
    return [f"{name}{part}" for name in known if name.startswith("XLand-") for part in parts]
