"""Symbolic regression: known functions are found, formulas give what they say, and bad input is named."""

import numpy as np
import pytest

from meta.programs.language import parse
from meta.programs.operators import ARITHMETIC
from meta.programs.regression import OPERATORS, fit, language_of, values_of

RANDOM = np.random.default_rng(0)
INPUTS = {"r": RANDOM.uniform(0.4, 1.8, 200), "A": RANDOM.normal(size=200)}
R, A = INPUTS.values()


@pytest.mark.parametrize(
    "y, most, max_size",
    [(0.5 * np.maximum((R - 1) * A, 0) + 0.2, 1e-4, 12), (3 * np.log(R) * A - 1, 1e-6, 8)],
    ids=["relu", "log"],
)
def test_known_functions_are_found(y, most, max_size):
    front = fit(INPUTS, y, num_programs=4000)
    errors, sizes = [one.error for one in front], [one.size for one in front]
    assert errors == sorted(errors, reverse=True) and sizes == sorted(sizes)
    assert any(one.error < most and one.size <= max_size for one in front)


def test_a_formula_gives_what_is_said_of_it():
    y = np.tanh(2 * (R - 1)) * A
    front = fit(INPUTS, y, num_programs=1000, max_nodes=8)
    language = language_of(INPUTS)
    for one in front:
        program = parse(language, one.formula)
        assert len(program) <= one.size
        found = values_of(program, INPUTS)
        np.testing.assert_allclose(np.mean((found - y) ** 2) / np.var(y), one.error, rtol=1e-6)
    assert fit(INPUTS, y, num_programs=1000, max_nodes=8) == front


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", OPERATORS)
def test_operators_are_those_of_programs(name):
    x, y = np.array([-2.0, 0.0, 1e-13, 3.0, 40.0]), np.array([0.0, -1e-12, 2.0, -3.0, 0.5])
    own = OPERATORS[name]
    found = own(x) if name in ("Log", "Exp", "Abs") else own(x, y)
    np.testing.assert_allclose(found, ARITHMETIC[name](x, y), rtol=1e-12)


@pytest.mark.parametrize(
    "inputs, y, message",
    [
        ({"r": R[:5]}, A, r"^r has the shape \(5,\), expected 200 finite numbers, one for each point$"),
        ({"r": R}, A * np.nan, r"^y has the shape \(200,\), expected 200 finite numbers"),
        ({"r": R}, np.ones(200), "^y is constant, expected numbers that differ$"),
    ],
)
def test_bad_input_is_named(inputs, y, message):
    with pytest.raises(ValueError, match=message):
        fit(inputs, y)


@pytest.mark.parametrize(
    "how, message",
    [
        ({"weight": R}, "^weight is given without group, or negative, expected numbers of at least 0 with one$"),
        ({"weight": -R, "group": np.arange(200) // 4}, "^weight is given without group, or negative"),
        ({"weight": R * np.nan, "group": np.arange(200) // 4}, "^weight has the shape .200,., expected 200 finite"),
    ],
)
def test_bad_weights_are_named(how, message):
    with pytest.raises(ValueError, match=message):
        fit(INPUTS, A, **how)


def test_what_a_group_has_in_common_is_free():
    group = np.repeat(np.arange(50), 4)
    offsets = RANDOM.normal(size=50)[group] * 10
    y = 2 * np.maximum(A, R) + offsets
    front = fit(INPUTS, y, group=group, num_programs=2000)
    (found,) = [one for one in front if one.error < 1e-9]
    assert found.formula in ("max(A, r) * 2.0", "max(r, A) * 2.0")
    assert fit(INPUTS, y, num_programs=2000)[-1].error > 0.5
    with pytest.raises(ValueError, match="^y is constant"):
        fit({"r": R[:198]}, 0.1 * (np.arange(198) // 3), group=np.arange(198) // 3)  # threes of equal numbers


def test_points_of_a_group_count_by_their_weights():
    group = np.repeat(np.arange(50), 4)
    weight = np.where(np.arange(200) % 4 == 3, 0.0, RANDOM.uniform(0.5, 1, 200))
    y = np.where(weight > 0, 3 * np.abs(A), 1e3)
    (found,) = [one for one in fit(INPUTS, y, group=group, weight=weight, num_programs=1000) if one.error < 1e-9]
    assert found.formula == "abs(A) * 3.0"
