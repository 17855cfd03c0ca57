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


def softmax_in(group, logits):
    odds = np.exp(logits)
    return odds / np.bincount(group, odds)[group]


def test_changes_of_distributions_are_found_whatever_their_logits_have_in_common():
    """Near-deterministic ones too, of which squares of log-ratios say little."""
    group, random = np.repeat(np.arange(50), 4), np.random.default_rng(1)
    logits = 3 * random.normal(size=200)
    change = 2 * np.maximum(A, R)
    p, q = softmax_in(group, logits + change), softmax_in(group, logits)
    y = change + random.normal(size=50)[group] * 10
    (found,) = [one for one in fit(INPUTS, y, p=p, group=group, num_programs=2000) if one.error < 1e-9]
    assert found.formula in ("max(A, r) * 2.0", "max(r, A) * 2.0")
    for one in fit(INPUTS, y + A, p=softmax_in(group, logits + change + A), group=group, num_programs=700, max_nodes=3):
        p = softmax_in(group, logits + change + A)
        made = softmax_in(group, np.log(q) + values_of(one.program, INPUTS))
        share = np.sum(p * np.log(p / made)) / np.sum(p * np.log(p / q))
        np.testing.assert_allclose(one.error, share, rtol=1e-6, atol=1e-9)
        for b in (0.98, 1.02):  # the scale is the best
            other = softmax_in(group, np.log(q) + b * values_of(one.program, INPUTS))
            assert np.sum(p * np.log(p / other)) > np.sum(p * np.log(p / made))
    assert fit(INPUTS, y, num_programs=1000)[-1].error > 0.5
    with pytest.raises(ValueError, match="^y is constant"):
        fit(INPUTS, np.repeat(0.1 * np.arange(50), 4), p=q, group=group)
    with pytest.raises(ValueError, match="^p has the shape .200,., expected 200 finite"):
        fit(INPUTS, y, p=q * np.nan, group=group)


def test_distributions_may_have_several_sizes():
    group, y = np.repeat(np.arange(80), [2, 3] * 40), 0.7 * np.abs(A)
    found = fit(INPUTS, y, p=softmax_in(group, R + y), group=group, num_programs=600)
    assert any(one.error < 1e-9 and one.formula == "abs(A) * 0.7" for one in found)
