"""What a bad value is answered: one line that names it, its value and what was expected."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.settings import Fraction, NotNegative, Positive, check_settings
from agents.validation import check_choice, check_shape

NAN = float("nan")


def test_a_choice_is_one_of_those_that_there_are():
    check_choice("rule", "disco", ["frodo", "disco"])
    with pytest.raises(ValueError, match=r"^rule is 'disc', expected one of frodo, disco \(did you mean 'disco'\?\)$"):
        check_choice("rule", "disc", ["frodo", "disco"])
    with pytest.raises(ValueError, match="^rule is 'zzzz', expected one of frodo, disco$"):
        check_choice("rule", "zzzz", iter(["frodo", "disco"]))


@pytest.mark.parametrize(
    ("kind", "good", "bad", "expected"),
    [
        (Fraction, (0, 0.5, 1), (-0.1, 1.1, NAN), "a number from 0 to 1"),
        (NotNegative, (0, 7.5), (-1e-3, NAN), "a number of at least 0"),
        (Positive, (1e-3, 7.5), (0.0, -1.0, NAN), "a positive number"),
    ],
)
def test_a_setting_out_of_range_is_named(kind, good, bad, expected):
    make = dataclasses.make_dataclass("Made", [("first", kind), ("second", kind)])
    for value in good:
        check_settings(make(1.0, value))
    for value in bad:
        with pytest.raises(ValueError, match=f"^second is {value}, expected {expected}$"):
            check_settings(make(1.0, value))


def test_a_shape_has_sizes_of_which_none_is_any():
    check_shape("x", np.zeros((3, 4, 5)), (3, None, 5))
    check_shape("x", jnp.zeros(()), ())
    for x in (np.zeros((3, 4)), np.zeros((3, 4, 6)), jnp.zeros((4, 4, 5)), 1.5):
        shape = ", ".join(map(str, np.shape(x)))
        with pytest.raises(ValueError, match=rf"^x has the shape \[{shape}\], expected \[3, \*, 5\]$"):
            check_shape("x", x, (3, None, 5))
    with pytest.raises(ValueError, match=r"(?m)^x has the shape \[2\], expected \[3\]$"):  # JAX adds notes
        jax.jit(lambda x: check_shape("x", x, (3,)))(jnp.zeros(2))
