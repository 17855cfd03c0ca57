"""Normalised scores: 0 is random play; 1 is the best that can be done on Catch, grid worlds and CartPole, and in a rule
room by who knows its rules, human play on Atari, and elsewhere a published result, which can be exceeded.

Catch and the grid worlds with fixed objects are known exactly, by dynamic programming. CartPole-v1 ends after 500 steps
at most; 10,000 episodes of random play had a mean length of 22.1 (standard deviation 11.6). Acrobot and MountainCar
count as solved at the rewards that gym registers as their thresholds. For MinAtar 1 is the greedy policy of
DiscoBench's PPO after 10 M steps (Goldie et al. 2026, arXiv 2603.17863), at the best of ten learning rates. Random play
of gymnax's environments: means of 2,000 episodes. On MiniGrid and LunarLander 0 and 1 are the bounds of the public code
of Co-Reyes et al. 2021, not random play and a best result. In an environment that changes, 1 is the best that can be
done by who knows the period.
"""

import functools
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from agents.environments.atari57 import atari_scores
from agents.environments.names import is_pure, make_pure, unscaled
from agents.types import Array
from frodo.regimes.program_lanes import Task
from frodo.runs.errors import UsageError
from toy_envs import names
from toy_envs.catch import Catch
from toy_envs.grid_worlds import ABSENT, MOVES, GridWorld, World, make_world
from toy_envs.rule_room import RuleRoom
from toy_envs.rule_room_optimum import oracle_returns

CART_POLE = (22.1, 500.0)
KNOWN = {
    "envpool/CartPole-v1": CART_POLE,
    "gymnax/CartPole-v1": CART_POLE,
    "gymnax/Acrobot-v1": (-499.1, -100.0),
    "gymnax/MountainCar-v0": (-200.0, -110.0),
    "gymnax/Asterix-MinAtar": (0.49, 17.0),
    "gymnax/Breakout-MinAtar": (0.38, 69.9),
    "gymnax/Freeway-MinAtar": (0.39, 61.8),
    "gymnax/SpaceInvaders-MinAtar": (4.18, 180.9),
}
OF_EVOLUTION = {
    "CartPole": (0.0, 500.0),  # of v1; the code has v0
    "Acrobot": (-500.0, -50.0),
    "MountainCar": (-200.0, -110.0),
    "LunarLander": (-500.0, 250.0),
    "MiniGrid-Dynamic-Obstacles": (-1.0, 1.0),
    "MiniGrid": (0.0, 1.0),
    "Navix": (0.0, 1.0),  # without a reward for what is hit
}
BSUITE_CATCH = Catch(rows=10, columns=5)


def normalised(env: str, returns: np.ndarray) -> np.ndarray:
    """Return (return − random) / (reference − random).

    Raises:
      UsageError: if no scores of the environment are known.
    """
    random, best = reference_scores(env)
    return (np.asarray(returns) - random) / (best - random)


def bounds(env: str) -> tuple[float, float]:
    """Return the returns that count as 0 and as 1 in a search for programs.

    They are those of the public code of Co-Reyes et al. 2021 (for CartPole-v1 500 as the best, where the code has
    CartPole-v0 and 200), elsewhere `reference_scores`.

    Raises:
      UsageError: if there are neither.
    """
    factor, plain = unscaled(env)
    if plain != env:
        return _times(factor, bounds(plain))
    name = env.partition("/")[2]
    own = [found for prefix, found in OF_EVOLUTION.items() if name.startswith(prefix)]
    return own[0] if own else reference_scores(env)


def task_of(env: str) -> Task:
    """Return an environment in JAX with these bounds.

    Raises:
      UsageError: if it is none in JAX, or its bounds are not known.
    """
    if not is_pure(env):
        raise UsageError(f"{env} is stepped on the host, expected toy/..., gymnax/..., navix/... or the like")
    return Task(make_pure(env), *bounds(env))


def _times(factor: float, scores: tuple[float, float]) -> tuple[float, float]:
    random, best = scores
    return factor * random, factor * best


@functools.cache
def reference_scores(env: str) -> tuple[float, float]:
    """Return the expected return of random play, and that which counts as 1.

    Raises:
      UsageError: if they are not known.
    """
    factor, plain = unscaled(env)
    if plain != env:
        return _times(factor, reference_scores(plain))
    suite, _, name = env.partition("/")
    if suite == "changing":
        change, _, changed = name.split("/", 2)
        if change == "actions":
            return reference_scores(changed)
        toy = names.make(changed.removeprefix("toy/"))
        if isinstance(toy, Catch) and toy.columns > 1 and toy.look_ahead_bound(toy.rows - 1) == 1:
            return 0.0, 1.0  # what pays, a catch or a miss, can always be reached
    if suite == "atari":
        return atari_scores(name)
    if env in KNOWN:
        return KNOWN[env]
    if suite in ("envpool", "navix") and name.startswith(("LunarLander", "MiniGrid", "Navix")):
        return bounds(env)
    toy = BSUITE_CATCH if env.startswith("bsuite/catch/") else names.make(name) if suite == "toy" else None
    if isinstance(toy, Catch):
        grid = (toy.rows - 1, toy.columns, toy.columns, 3)
        return float(toy.expected_return(jnp.full(grid, 1 / 3))), toy.look_ahead_bound(toy.rows - 1)
    if isinstance(toy, GridWorld) and not make_world(toy.index).is_random.any():
        world = make_world(toy.index)
        return expected_return(world, np.mean), expected_return(world, np.max)
    if isinstance(toy, RuleRoom) and toy.number is not None:
        of_kind = RuleRoom(toy.kind)  # one compiled program serves all of them
        task, random = jax.device_get(_random_play(of_kind, np.uint32(toy.task_ids.start)))
        if not (best := float(oracle_returns(jax.tree.map(lambda x: x[None], task))[0])):
            raise UsageError(f"{env}: the time of a trial does not suffice there even for who knows the rules")
        return float(random), best
    raise UsageError(
        f"no scores of random and of best play are known for {env}, but for toy/catch, toy/catch/<rows>x<columns>, "
        "toy/grid_world/<an even number>, toy/rule_room/<kind>/held_out/<number>, bsuite/catch/<index>, "
        f"envpool/LunarLander-<version>, MiniGrid of envpool or navix, atari/<Game>, and {', '.join(KNOWN)}; "
        "changing/actions/<steps>/ or scaled/<factor>/ and one of them; or changing/rewards/<steps>/toy/catch"
    )


@functools.partial(jax.jit, static_argnums=0)
def _random_play(room: RuleRoom, task_id: Array) -> tuple[Any, Array]:
    """Return the task of that number, and the mean return of 10,000 trials of it with random play."""
    start = room.numbered_state(task_id)

    def step(carry, key):
        state, is_over = carry
        action = jax.random.randint(key, (), 0, room.num_actions)
        state, reward, terminated, truncated = room.transition(state, action)
        return (state, is_over | terminated | truncated), jnp.where(is_over, 0.0, reward)

    def trial(key):
        return jax.lax.scan(step, (start, False), jax.random.split(key, room.horizon))[1].sum()

    return start.task, jnp.mean(jax.vmap(trial)(jax.random.split(jax.random.key(0), 10_000)))


def expected_return(world: World, over_actions: Callable[..., Any]) -> float:
    """Return the expected return of an episode in a grid world with fixed cells, by dynamic programming.

    A state is the agent's cell and which objects are there; `over_actions` of their values is the policy: np.mean the
    random one, np.max the best.
    """
    free, moves = world.free[: world.num_free].tolist(), MOVES.tolist()
    start, *cells = world.cells
    slots = [j for j, cell in enumerate(cells) if cell != ABSENT]
    of_slots = lambda values: np.array([float(values[j]) for j in slots])
    there = np.array(list(itertools.product((False, True), repeat=len(slots))), bool)  # [subsets, objects]
    at = np.array(free)[:, None, None] == of_slots(cells)  # [cells, 1, objects]
    reward = np.sum(of_slots(world.rewards) * (at & there), axis=-1)  # of arriving at a cell, [cells, subsets]
    goes_on = 1.0 - np.sum(of_slots(world.termination) * (at & there), axis=-1)
    left = np.where(at, 0.0, np.where(there, 1.0, of_slots(world.respawn)))[:, :, None]
    odds = np.prod(np.where(there, left, 1 - left), axis=-1)  # of the objects afterwards, [cells, subsets, subsets]
    after = [[free.index(x if world.walls[x + move] else x + move) for move in moves] for x in free]
    value = np.zeros((len(free), len(there)))
    for _ in range(int(world.horizon)):
        arrival = reward + goes_on * sum(odds[..., i] * value[:, i, None] for i in range(len(there)))
        value = over_actions(arrival[after], axis=1)
    return float(value[free.index(int(start)), -1])
