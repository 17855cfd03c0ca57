"""Short runs give the numbers of version 0.1.0; `python -m tests.numbers` runs all of them."""

import pytest

from tests import numbers


@pytest.mark.long  # what is the same as in the version before is tested by tests/test_unchanged.py
@pytest.mark.parametrize(
    "run", ["impala", "q_learning", "td_lambda", "frodo_actor_critic", "frodo_prediction", "host_impala"]
)
def test_numbers_are_those_of_version_0_1_0(run):
    _, difference, name = numbers.difference(run)
    assert difference < 1e-4, name  # tests are compiled otherwise, and other processors round otherwise
