"""Trajectories made of plain arrays: shapes, what follows by default from how environments reset, and refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.types import PredictionSpec, Trajectory, check_trajectory, make_trajectory
from tests.trajectories import random_trajectory

T, B, A = 4, 2, 3


def plain(**changes):
    """Plain arrays of a trajectory in which nothing ends, with changes; None takes one out."""
    arrays = dict(
        observation=np.arange((T + 1) * B * 2).reshape(T + 1, B, 2),
        action=np.array([[0, 1], [2, 0], [1, 1], [0, 2]]),
        reward=np.ones((T, B)),
        discount=np.ones((T, B)),
        behaviour_logits=np.zeros((T, B, A)),
    )
    return {name: x for name, x in (arrays | changes).items() if x is not None}


def column(*entries):
    """The same for both environments: [len, B]."""
    return np.tile(np.array(entries)[:, None], (1, B))


def test_arrays_get_the_dtypes_of_a_trajectory_and_lists_are_arrays():
    core = (jnp.ones((B, 3)),)
    trajectory = make_trajectory(**plain(reward=[[1, 2]] * T, discount=column(1, 1, 0, 1)), core_state=core)
    dtypes = {name: x.dtype for name, x in trajectory._replace(core_state=None)._asdict().items() if x is not None}
    floats = dict.fromkeys(("reward", "discount", "behaviour_logits"), np.float32)
    flags = dict.fromkeys(("is_first", "truncated", "valid"), np.bool_)
    assert dtypes == floats | flags | {"action": np.int32, "observation": np.int32}
    np.testing.assert_array_equal(trajectory.observation, plain()["observation"])
    np.testing.assert_array_equal(trajectory.reward, [[1, 2]] * T)
    assert trajectory.core_state is core and isinstance(trajectory, Trajectory)
    check_trajectory(trajectory)
    images = make_trajectory(**plain(observation=np.zeros((T + 1, B, 1, 4, 4), np.uint8)))
    assert images.observation.dtype == np.uint8


def test_where_environments_reset_in_the_same_step_all_else_follows_from_the_ends():
    # Column 0 terminates at step 1; column 1 is truncated at step 2: its last observation is lost, its reward is not.
    discount, truncated = np.ones((T, B)), np.zeros((T, B), bool)
    discount[1, 0], truncated[2, 1] = 0, True
    trajectory = make_trajectory(**plain(discount=discount, truncated=truncated))
    np.testing.assert_array_equal(trajectory.is_first, [[0, 0], [0, 0], [1, 0], [0, 1], [0, 0]])
    assert np.all(trajectory.valid)
    np.testing.assert_array_equal(trajectory.is_successor_unknown, truncated)
    np.testing.assert_array_equal(trajectory.truncated, truncated)
    np.testing.assert_array_equal(trajectory.is_last, [[0, 0], [1, 0], [0, 1], [0, 0]])


def test_where_environments_reset_in_the_next_step_that_step_is_not_valid():
    # Column 0 terminates at step 1, column 1 is truncated there: step 2 is the reset, which shows a first observation.
    discount, truncated = np.ones((T, B)), np.zeros((T, B), bool)
    discount[1, 0], truncated[1, 1] = 0, True
    is_first = column(True, False, False, True, False)
    trajectory = make_trajectory(**plain(discount=discount, truncated=truncated, is_first=is_first))
    np.testing.assert_array_equal(trajectory.is_first, is_first)
    np.testing.assert_array_equal(trajectory.valid, column(1, 1, 0, 1))
    np.testing.assert_array_equal(trajectory.is_last, column(0, 1, 1, 0))
    assert not np.any(trajectory.is_successor_unknown)
    # What is given is taken as it is.
    valid = column(False, True, False, True)
    given = make_trajectory(**plain(discount=discount, truncated=truncated, is_first=is_first, valid=valid))
    np.testing.assert_array_equal(given.valid, valid)


def test_a_step_that_terminates_is_not_truncated():
    trajectory = make_trajectory(**plain(discount=column(1, 0, 1, 1), truncated=column(False, True, True, False)))
    np.testing.assert_array_equal(trajectory.truncated, column(0, 0, 1, 0))
    assert np.all(trajectory.valid)
    np.testing.assert_array_equal(trajectory.is_successor_unknown, column(0, 0, 1, 0))


def test_without_ends_every_step_is_valid_and_nothing_is_first():
    trajectory = make_trajectory(**plain())
    assert np.all(trajectory.valid) and not np.any(trajectory.is_first) and not np.any(trajectory.truncated)


def entry(x, place, value):
    x = np.array(x)
    x[place] = value
    return x


LATER = column(1, 1, 1.9, 1)
SHAPES = {  # arrays that disagree
    "action": (np.zeros(T, int), r"\[4\], expected \[\*, \*\]"),
    "reward": (np.ones((T, B, 1)), r"\[4, 2, 1\], expected \[4, 2\]"),
    "discount": (np.ones((T + 1, B)), r"\[5, 2\], expected \[4, 2\]"),
    "truncated": (np.zeros(T, bool), r"\[4\], expected \[4, 2\]"),
    "valid": (np.ones((T + 1, B), bool), r"\[5, 2\], expected \[4, 2\]"),
    "is_first": (np.ones((T, B), bool), r"\[4, 2\], expected \[5, 2\]"),
    "behaviour_logits": (np.zeros((T, B)), r"\[4, 2\], expected \[4, 2, \*\]"),
    "observation": (np.zeros((T, B, 2)), r"\[4, 2, 2\], expected \[5, 2, \.\.\.\]: one more than there are actions"),
}
DTYPES = {
    "action": (np.zeros((T, B), np.float32), "float32, expected whole numbers, such as int32"),
    "truncated": (np.zeros((T, B), np.int32), "int32, expected bool"),
    "is_first": (np.zeros((T + 1, B), np.float32), "float32, expected bool"),
    "valid": (np.ones((T, B), np.float32), "float32, expected bool"),
}
ENTRIES = {
    "reward": (entry(np.ones((T, B)), (2, 1), np.nan), r"reward\[2, 1\] is nan, expected a finite number"),
    "observation": (
        entry(np.zeros((T + 1, B, 3)), (1, 1, 2), np.nan),
        r"observation\[1, 1, 2\] is nan, expected a number",
    ),
    "action": (entry(plain()["action"], (3, 0), A), r"action\[3, 0\] is 3, expected a number from 0 to 2"),
    "discount": (LATER, r"discount\[2, 0\] is 1\.89.*, expected a number from 0 to 1, 0 where the episode terminated"),
    "behaviour_logits": (
        entry(np.zeros((T, B, A)), (1, 0, 2), np.nan),
        r"behaviour_logits\[1, 0, 2\] is nan, expected a number",
    ),
}


@pytest.mark.parametrize("name", SHAPES)
def test_an_array_that_disagrees_with_the_actions_is_named(name):
    x, message = SHAPES[name]
    with pytest.raises(ValueError, match=f"^{name} has the shape {message}$"):
        make_trajectory(**plain(**{name: x}))


@pytest.mark.parametrize("name", DTYPES)
def test_an_array_of_another_kind_is_named(name):
    x, message = DTYPES[name]
    with pytest.raises(ValueError, match=f"^{name} has the dtype {message}$"):
        make_trajectory(**plain(**{name: x}))


@pytest.mark.parametrize("name", ENTRIES)
def test_an_entry_that_cannot_be_is_named_by_its_place(name):
    x, message = ENTRIES[name]
    with pytest.raises(ValueError, match=f"^{message}$"):
        make_trajectory(**plain(**{name: x}))


def test_negative_actions_and_infinite_rewards_are_refused_and_impossible_actions_are_not():
    with pytest.raises(ValueError, match=r"^action\[0, 0\] is -1, expected"):
        make_trajectory(**plain(action=np.full((T, B), -1)))
    with pytest.raises(ValueError, match=r"^reward\[0, 1\] is inf, expected"):
        make_trajectory(**plain(reward=entry(np.ones((T, B)), (0, 1), np.inf)))
    logits = entry(np.zeros((T, B, A)), (0, 0, 1), -np.inf)
    np.testing.assert_array_equal(make_trajectory(**plain(behaviour_logits=logits)).behaviour_logits, logits)


def test_under_jit_shapes_are_checked_and_entries_are_not():
    make = jax.jit(lambda arrays: make_trajectory(**arrays))
    jax.tree.map(np.testing.assert_array_equal, make(plain()), make_trajectory(**plain()))
    broken = make(plain(reward=ENTRIES["reward"][0]))
    assert np.isnan(broken.reward[2, 1])
    with pytest.raises(ValueError, match=r"(?m)^reward has the shape \[4, 2, 1\], expected \[4, 2\]$"):
        make(plain(reward=SHAPES["reward"][0]))


def test_a_random_trajectory_of_the_tests_is_one():
    check_trajectory(random_trajectory(0, 5, 3))


def test_axes_of_a_prediction():
    assert PredictionSpec().axes(3) == () and PredictionSpec((5, 2)).axes(3) == (5, 2)
    assert PredictionSpec((5,), is_per_action=True).axes(3) == (3, 5)
