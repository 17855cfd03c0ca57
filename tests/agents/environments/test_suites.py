"""Suites: what is known of an environment without making it is what it shows."""

import numpy as np
import pytest

from agents.environments.names import make_environment
from agents.environments.suites import DMLAB30, PROCGEN, seen


@pytest.mark.parametrize("name", ["atari/Alien", PROCGEN[0], "bsuite/catch/0"])
def test_what_is_seen_is_what_the_environment_shows(name):
    try:
        environment = make_environment(name, 2, 0)
    except ImportError as error:  # Procgen without Qt
        pytest.skip(str(error))
    known = seen(name)
    assert known.observation_shape == environment.observation_shape
    assert known.observation_dtype == environment.observation_dtype
    assert known.num_actions == environment.num_actions
    environment.close()


def test_suites_are_whole_and_what_cannot_be_made_is_known_all_the_same():
    assert len(set(PROCGEN)) == 16 and len(set(DMLAB30)) == 30
    assert seen(DMLAB30[0]) == ((3, 72, 96), np.uint8, 9)
    with pytest.raises(ValueError, match="unknown environment"):
        seen("atary/Pong")
