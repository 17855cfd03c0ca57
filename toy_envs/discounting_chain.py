"""Discounting Chain: the first action chooses one of five chains, which pays once, later or sooner. With its values.

Source: bsuite (Osband et al. 2020), environments/discounting_chain.py. Bonnet et al. 2022 take its values as critic.
"""

import dataclasses
from typing import NamedTuple

import jax.numpy as jnp

from toy_envs import base

LENGTH = 100  # of an episode
REWARD_STEPS = (1, 3, 10, 30, 100)  # the step that pays, of each chain
BEST_RETURN = 1.1


class DiscountingChainState(NamedTuple):
    chain: base.Array  # int32, -1 before the first action
    time: base.Array  # int32, steps of this episode


@dataclasses.dataclass(frozen=True)
class DiscountingChain(base.Environment[DiscountingChainState]):
    """The chain of number `best` pays 1.1, the others pay 1: the discount decides which one looks best.

    Only the first action of an episode counts. An episode ends after 100 steps.

    Raises:
      ValueError: if there is no chain `best`.
    """

    best: int = 3
    num_actions = len(REWARD_STEPS)
    reward_range = (0.0, BEST_RETURN)
    observation_shape = (2,)
    horizon = LENGTH

    def __post_init__(self):
        if not 0 <= self.best < self.num_actions:
            raise ValueError(f"best is {self.best}, expected a chain from 0 to {self.num_actions - 1}")

    @property
    def rewards(self) -> base.Array:
        """What each chain pays, [5] float32."""
        return jnp.ones(self.num_actions).at[self.best].set(BEST_RETURN)

    def initial_state(self, key: base.Array) -> DiscountingChainState:
        del key
        return DiscountingChainState(jnp.full((), -1, jnp.int32), jnp.zeros((), jnp.int32))

    def restart(self, state: DiscountingChainState) -> DiscountingChainState:
        return DiscountingChainState(jnp.full_like(state.chain, -1), jnp.zeros_like(state.time))

    def transition(self, state: DiscountingChainState, action: base.Array):
        chain = jnp.where(state.time == 0, action.astype(jnp.int32), state.chain)
        time = state.time + 1
        reward = jnp.where(time == jnp.array(REWARD_STEPS)[chain], self.rewards[chain], 0.0)
        return DiscountingChainState(chain, time), reward, time == LENGTH, jnp.zeros((), bool)

    def observe(self, state: DiscountingChainState) -> base.Array:
        """The chain, -1 before the first action, and the share of the episode that is over: [2]."""
        return jnp.stack([state.chain.astype(jnp.float32), state.time / LENGTH])

    def true_values(self, observation: base.Array, probabilities: base.Array, discount: float | base.Array):
        """Return v(S) of the policy in closed form: γ to the power of the steps before the reward, times the reward.

        Args:
          observation: [..., 2].
          probabilities: of the policy's actions at each observation, [..., 5].
          discount: γ.
        """
        chain, time = observation[..., 0].astype(jnp.int32), jnp.round(observation[..., 1] * LENGTH)
        steps = jnp.array(REWARD_STEPS, jnp.float32)
        value = lambda left, reward: jnp.where(left > 0, reward * discount ** jnp.maximum(0.0, left - 1), 0.0)
        at_first = jnp.sum(probabilities * value(steps, self.rewards), axis=-1)
        return jnp.where(chain < 0, at_first, value(steps[chain] - time, self.rewards[chain]))
