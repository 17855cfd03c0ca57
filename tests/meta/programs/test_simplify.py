"""Simplified formulas: the same numbers as the program, with fewer operations, and terms without Q left out."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest

from meta.programs.evaluation import Given, evaluate, no_draws
from meta.programs.generation import random_program
from meta.programs.language import FORMULAS, LOSSES, TARGETS, parse
from meta.programs.operators import REGISTRIES, register_operator
from meta.programs.simplify import simplify

sympy = pytest.importorskip("sympy")


@pytest.mark.parametrize(
    "formula, text, latex",
    [
        (
            FORMULAS["dqn"],
            "(-Q(s)[a] + gamma*max(Q_targ(s_next)) + r)**2",
            r"\left(- Q(s)[a] + \gamma \max_{a'} Q_{\mathrm{targ}}(s')[a'] + r\right)^{2}",
        ),
        ("x = Q(s)[a] - r; x / 2 + tenth(x) + 3 * gamma", "3*Q(s)[a]/5", r"\frac{3 Q(s)[a]}{5}"),
        ("abs(variance(Q(s))) + abs(gamma)", "variance(Q(s))", r"\mathrm{var}_{a'}\, Q(s)[a']"),
        ("x = Q(s)[a]; max(x, x) * min(r, r)", "Q(s)[a]*r", r"Q(s)[a] r"),
        ("normal() * Q(s)[a] - normal() * Q(s)[a]", "Q(s)[a]*(normal_1 - normal_2)", None),
        ("x = Q(s)[a]; x / (r - r)", "Q(s)[a] / (r - r)", None),
        ("Q(s)[argmax(Q(s_next))] + kl(softmax(Q(s)), softmax(Q(s_next)))", None, None),
    ],
)
def test_losses(formula, text, latex):
    found = simplify(LOSSES, parse(LOSSES, formula))
    assert text in (None, found.text), found
    assert latex in (None, found.latex), found
    assert "$" not in found.latex and "Q" in found.text


def test_a_target_is_the_same_function():
    rng = np.random.default_rng(0)
    largest, least = (lambda *x, of=of: functools.reduce(of, x) for of in (np.maximum, np.minimum))
    values = {name: jnp.asarray(rng.uniform(0.5, 2.0, size=20)) for name in TARGETS.inputs}
    for _ in range(30):
        program = random_program(TARGETS._replace(max_nodes=8), rng)
        expected = np.asarray(evaluate(TARGETS, program, Given(values), no_draws()))
        text = simplify(TARGETS, program).text
        names = {"max": largest, "min": least, "log": np.log, "exp": np.exp, "abs": np.abs}
        with np.errstate(all="ignore"):
            found = np.broadcast_to(eval(text, names | {name: np.asarray(x) for name, x in values.items()}), (20,))
        plain = np.isfinite(found) & (np.abs(expected) < 1e6) & (np.abs(found) < 1e6)
        np.testing.assert_allclose(found[plain], expected[plain], rtol=1e-3, atol=1e-3, err_msg=text)


def test_user_defined_operators_stay():
    own = [dict(registry) for registry in REGISTRIES]
    try:
        register_operator("saturated", jnp.tanh)
        register_operator("Soft_2", jnp.tanh)
        assert simplify(TARGETS, parse(TARGETS, "saturated(r) + saturated(r)")).text == "2*saturated(r)"
        found = simplify(TARGETS, parse(TARGETS, "Soft_2(r)**2 + log(v)"))
        assert found.text == "Soft_2(r)**2 + log(abs(v))"
        assert found.latex == r"\mathrm{Soft\_2}(r)^{2} + \log{\left(\left|{v(s)}\right| \right)}"
    finally:
        for registry, known in zip(REGISTRIES, own, strict=True):
            registry.clear()
            registry.update(known)
