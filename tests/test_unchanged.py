"""Short runs of every rule and regime give the numbers that they gave; `python -m tests.unchanged` compares bits."""

import pytest

from tests import unchanged

SHORT = ("frodo", "ppo", "dqn", "trials", "curriculum", "host_frodo", "population", "evolution")  # the others are long


@pytest.mark.parametrize("run", [x if x in SHORT else pytest.param(x, marks=pytest.mark.long) for x in unchanged.RUNS])
def test_a_run_gives_what_it_gave(run):
    _, difference, name = unchanged.difference(run)
    assert difference < unchanged.TOLERANCE, name  # other processors round otherwise


def test_every_run_is_recorded():
    assert {name: tuple(own) for name, own in unchanged.recorded().items()} == {
        name: kept for name, (_, kept) in unchanged.RUNS.items()
    }
