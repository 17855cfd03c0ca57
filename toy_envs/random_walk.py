"""The non-stationary random walk, and its true values in closed form.

Source: Xu et al. 2020 (section 4.2, Figure 2b).
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from toy_envs import base


class RandomWalkState(NamedTuple):
    key: base.Array
    position: base.Array  # int32, in [0, num_states)
    num_steps: base.Array  # int32, steps of the whole lifetime


@dataclasses.dataclass(frozen=True)
class RandomWalk(base.Environment[RandomWalkState]):
    """Start in the centre, move left or right at random; the right end pays 1, the left end 0 or -1 in turns.

    There is nothing to choose: `num_actions` is 1. The left reward is 0 for the first `phase_length` steps of a
    lifetime, -1 for as many, and so on, across episodes.
    """

    num_states: int = 5
    phase_length: int = 960
    num_actions = 1
    reward_range = (-1.0, 1.0)

    @property
    def observation_shape(self) -> tuple[int, ...]:  # type: ignore[override]
        return (self.num_states,)

    def initial_state(self, key: base.Array) -> RandomWalkState:
        return self.restart(RandomWalkState(key, jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32)))

    def restart(self, state: RandomWalkState) -> RandomWalkState:
        return state._replace(position=jnp.full((), self.num_states // 2, jnp.int32))

    def left_reward(self, num_steps: base.Array) -> base.Array:
        """Return the reward of the left end at the step that `num_steps` others came before, float32."""
        return -((num_steps // self.phase_length) % 2).astype(jnp.float32)

    def true_values(self, num_steps: base.Array) -> base.Array:
        """Return the undiscounted values of all states at that step, [num_states]: a straight line between the ends."""
        fraction = jnp.arange(1, self.num_states + 1) / (self.num_states + 1)
        left = self.left_reward(num_steps)
        return left + (1.0 - left) * fraction

    def transition(self, state: RandomWalkState, action: base.Array):
        del action
        # A counter-based draw: the key never changes, which is half the work of splitting it at every step.
        move = 2 * jax.random.bernoulli(jax.random.fold_in(state.key, state.num_steps)).astype(jnp.int32) - 1
        position = state.position + move
        at_left, at_right = position < 0, position >= self.num_states
        reward = jnp.where(at_left, self.left_reward(state.num_steps), at_right.astype(jnp.float32))
        state = RandomWalkState(state.key, position, state.num_steps + 1)
        return state, reward, at_left | at_right, jnp.zeros((), bool)

    def observe(self, state: RandomWalkState) -> base.Array:
        return jax.nn.one_hot(state.position, self.num_states, dtype=jnp.float32)
