"""A task of two steps that a wrong mask, discount, scale or layout makes unlearnable, for each way to write one.

A cue is shown, the same in both steps. The first action opens a door, which is then seen to be open, if it is the
cue, and pays nothing; the second, at which a time limit ends the episode, pays 1 if it is not the cue and the door is
open. Chance has .25. Who is not paid at the limit learns nothing, and what the first step teaches misleads in the
second; who looks one step ahead alone has .5.
"""

from typing import NamedTuple

import dm_env
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from dm_env import specs
from gymnasium import spaces

from toy_envs import base

SHAPE = (20, 24, 3)  # of pictures, channels last


def picture(cue: int, place: int) -> np.ndarray:
    """Show the cue by which half of the picture is bright, and the place by the channel; of uint8.

    Places are the first step, the second one with a closed or an open door, and the end, where all is dark.
    """
    shown = np.zeros(SHAPE, np.uint8)
    half = SHAPE[1] // 2
    shown[:, cue * half : (cue + 1) * half, place : place + 1] = 200
    return shown


class DoorsState(NamedTuple):
    key: base.Array
    cue: base.Array
    is_open: base.Array
    num_steps: base.Array


class Doors(base.Environment[DoorsState]):
    """The task as pure functions: pictures, or what they show as one-hot vectors."""

    num_actions = 2

    def __init__(self, is_picture: bool):
        self._is_picture = is_picture
        self.observation_shape = SHAPE if is_picture else (6,)

    def initial_state(self, key):
        key, cue_key = jax.random.split(key)
        return DoorsState(key, jax.random.randint(cue_key, (), 0, 2), jnp.array(False), jnp.int32(0))

    def restart(self, state):
        return self.initial_state(state.key)

    def transition(self, state, action):
        is_cue, is_limit = action == state.cue, state.num_steps == 1
        reward = (is_limit & ~is_cue & state.is_open).astype(jnp.float32)
        state = state._replace(is_open=is_cue, num_steps=state.num_steps + 1)
        return state, reward, jnp.array(False), is_limit

    def observe(self, state):
        place = jnp.where(state.num_steps < 2, state.num_steps * (1 + state.is_open), 3)
        if not self._is_picture:
            return jax.nn.one_hot(3 * state.cue + place, 6) * (place < 3)
        pictures = np.stack([[picture(cue, place) for place in range(4)] for cue in range(2)])
        return jnp.asarray(pictures)[state.cue, place]


class _Game:
    """The task step by step, in plain Python."""

    def __init__(self, seed: int):
        self._rng = np.random.default_rng(seed)
        self.begin()

    def begin(self) -> np.ndarray:
        self.cue, self.step, self.is_open = int(self._rng.integers(2)), 0, False
        return picture(self.cue, 0)

    def play(self, action: int) -> tuple[np.ndarray, float, bool]:
        is_cue, is_limit = int(action) == self.cue, self.step == 1
        reward = float(is_limit and not is_cue and self.is_open)
        self.is_open, self.step = is_cue, self.step + 1
        return picture(self.cue, 3 if is_limit else 1 + self.is_open), reward, is_limit


class GymnasiumDoors(gymnasium.Env):
    observation_space, action_space = spaces.Box(0, 255, SHAPE, np.uint8), spaces.Discrete(2)

    def __init__(self, seed: int):
        self._game = _Game(seed)

    def reset(self, *, seed=None, options=None):
        return self._game.begin(), {}

    def step(self, action):
        shown, reward, is_limit = self._game.play(action)
        return shown, reward, False, is_limit, {}


class DmEnvDoors(dm_env.Environment):
    def __init__(self, seed: int):
        self._game, self._is_over = _Game(seed), True

    def reset(self):
        self._is_over = False
        return dm_env.restart(self._game.begin())

    def step(self, action):
        if self._is_over:
            return self.reset()
        shown, reward, self._is_over = self._game.play(action)
        return dm_env.truncation(reward, shown) if self._is_over else dm_env.transition(reward, shown)

    def observation_spec(self):
        return specs.BoundedArray(SHAPE, np.uint8, 0, 255, name="picture")

    def action_spec(self):
        return specs.DiscreteArray(2)
