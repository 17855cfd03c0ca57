"""Discounting Chain beside bsuite's own, and its true values beside sums of rewards."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from bsuite.environments import discounting_chain as of_bsuite

from tests.reference import toy_envs as reference
from tests.toy_envs import stepping
from toy_envs.discounting_chain import DiscountingChain

SEED = 3  # bsuite's mapping of this seed has the best chain 3


@pytest.mark.parametrize("chain", range(5))
def test_agrees_with_bsuite(chain):
    environment, other = DiscountingChain(SEED), of_bsuite.DiscountingChain(SEED)
    actions = np.random.default_rng(chain).integers(5, size=101)
    actions[0] = chain
    state, first = environment.init(jax.random.key(0))
    _, steps, _ = stepping.run(environment, state, jnp.asarray(actions))
    np.testing.assert_allclose(first.observation, other.reset().observation[0])
    for t in range(100):
        expected = other.step(actions[t])
        assert steps.reward[t] == np.float32(expected.reward)
        assert steps.discount[t] == (0.0 if expected.last() else 1.0) and steps.is_first[t] == expected.last()
        shown = other.reset() if expected.last() else expected
        np.testing.assert_allclose(steps.observation[t], shown.observation[0], rtol=1e-6)
    assert steps.observation[100, 0] == actions[100]  # the next episode's first action chose


@pytest.mark.parametrize("discount", [0.9, 1.0])
def test_true_values_are_sums_of_rewards(discount):
    environment = DiscountingChain(1)
    probabilities = np.array([0.1, 0.2, 0.3, 0.15, 0.25])
    for chain in range(5):
        for time in (1, 2, 9, 29, 99):
            observation = jnp.array([chain, time / 100])
            expected = reference.discounting_chain_values(1, chain, time, discount)
            actual = environment.true_values(observation, probabilities, discount)
            np.testing.assert_allclose(actual, expected, rtol=1e-5)
    at_first = [reference.discounting_chain_values(1, chain, 0, discount) for chain in range(5)]
    actual = environment.true_values(jnp.array([-1.0, 0.0]), probabilities, discount)
    np.testing.assert_allclose(actual, probabilities @ at_first, rtol=1e-5)


def test_there_are_five_chains():
    with pytest.raises(ValueError, match=r"^best is 5, expected a chain from 0 to 4$"):
        DiscountingChain(5)
