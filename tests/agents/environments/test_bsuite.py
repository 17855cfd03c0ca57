"""bsuite's environments: their episodes, and what their ids and their seeds decide."""

import numpy as np
import pytest

from agents.environments.names import make_environment
from tests.agents.environments.stepping import check_next_step_reset, collect
from toy_envs.base import TimeStep


def bsuite_steps(name: str, seed: int) -> TimeStep:
    environment = make_environment(name, 4, seed)
    actions = np.random.default_rng(0).integers(0, environment.num_actions, (30, 4))
    return collect(environment, actions)


@pytest.mark.parametrize("name", ["bsuite/catch/0", "bsuite/catch_noise/3", "bsuite/memory_len/2", "bsuite/bandit/0"])
def test_bsuite(name):
    steps = bsuite_steps(name, seed=0)
    check_next_step_reset(steps)
    assert np.all(np.any(steps.discount == 0, axis=0)) and not np.any(steps.truncated)
    again = bsuite_steps(name, seed=0)
    for field, other in zip(steps, again, strict=True):
        np.testing.assert_array_equal(field, other)
    if name != "bsuite/bandit/0":  # its rewards are fixed
        assert len({episodes.tobytes() for episodes in steps.observation.swapaxes(0, 1)}) == 4
        assert np.any(bsuite_steps(name, seed=1).observation != steps.observation)


def test_bsuite_keeps_the_mapping_of_its_id():
    # The reward of each arm belongs to the id, only the noise to the seed.
    environment = make_environment("bsuite/bandit_noise/0", 200, 0)
    environment.reset()
    rewards = environment.step(np.full(200, 3, np.int32)).reward
    assert 0.05 < rewards.std() < 0.2  # the noise has 0.1; different mappings would add 0.3
