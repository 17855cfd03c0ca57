"""User-defined operators: in formulas, in searches' languages and in both evaluations; bad ones are refused by name."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from meta.programs.equivalence import of_loss
from meta.programs.evaluation import Given, assemble, evaluate, interpret, no_draws
from meta.programs.generation import random_program
from meta.programs.language import DRIFTS, FORMULAS, LOSSES, TARGETS, parse, to_formula
from meta.programs.latex import to_latex
from meta.programs.operators import REGISTRIES, register_operator


@pytest.fixture(autouse=True)
def as_before():
    own = [dict(registry) for registry in REGISTRIES]
    yield
    for registry, known in zip(REGISTRIES, own, strict=True):
        registry.clear()
        registry.update(known)
    jax.clear_caches()


def test_both_evaluations_know_it_though_they_were_compiled_before():
    before = of_loss(parse(LOSSES, FORMULAS["dqn"]), "gamma")["gradient"]
    register_operator("saturated", jnp.tanh)
    register_operator("smooth", lambda x, y: jnp.sqrt(1 + (x - y) ** 2), "RR")
    formula = "saturated(smooth(r, v) * G_next)"
    program = parse(TARGETS, formula)
    assert to_formula(TARGETS, program) == formula
    assert to_latex(TARGETS, program) == r"\mathrm{saturated}(\mathrm{smooth}(r, v(s)) \cdot G')"
    values = np.random.default_rng(0).normal(size=(7, 5)).astype(np.float32)
    inputs = dict(zip(TARGETS.inputs, values, strict=True))
    expected = np.tanh(np.sqrt(1 + (inputs["r"] - inputs["v"]) ** 2) * inputs["G_next"])
    np.testing.assert_allclose(evaluate(TARGETS, program, Given(inputs), no_draws()), expected, rtol=1e-5)
    instructions = assemble(TARGETS, program, {name: i for i, name in enumerate(TARGETS.inputs)})

    def by_data(given):
        return interpret(instructions, no_draws(), given)

    np.testing.assert_allclose(by_data(jnp.asarray(values)), expected, rtol=1e-5)
    derivative = jax.grad(lambda given: by_data(given).sum())(jnp.asarray(values))[6]
    smooth = np.sqrt(1 + (inputs["r"] - inputs["v"]) ** 2)
    np.testing.assert_allclose(derivative, smooth * (1 - expected**2), rtol=1e-4, atol=1e-6)
    same = lambda formula: of_loss(parse(LOSSES, formula), "gamma")["gradient"]
    delta = "(Q(s)[a] - (r + gamma * max(Q_targ(s_next))))"
    assert np.max(np.abs(same(f"saturated{delta}**2") - before)) > 0.1
    np.testing.assert_allclose(same(f"smooth{delta[:-1]}, 0.0)**2"), before, atol=1e-3)  # 1 + δ²


def test_searches_draw_it():
    register_operator("saturated", jnp.tanh)
    for language in (LOSSES, TARGETS, DRIFTS):
        rng = np.random.default_rng(0)
        programs = [random_program(language, rng) for _ in range(100)]
        assert any(node.operator == "saturated" for program in programs for node in program)


@pytest.mark.parametrize(
    "name, function, arguments, message",
    [
        ("max", jnp.tanh, "R", "operator is 'max', which is a name already"),
        ("gamma", jnp.tanh, "R", "operator is 'gamma', which is a name already"),
        ("Add", jnp.tanh, "R", "operator is 'Add', which is a name already"),
        ("v", jnp.tanh, "R", "operator is 'v', which is a name already"),
        ("t", jnp.tanh, "R", "operator is 't', which is a name already"),
        ("Load", jnp.tanh, "R", "operator is 'Load', which is a name already"),
        ("lambda", jnp.tanh, "R", "operator is 'lambda', expected a name of letters, digits and _, and no word of"),
        ("my op", jnp.tanh, "R", "operator is 'my op', expected a name of letters, digits and _"),
        ("x", jnp.tanh, "", "operator 'x' has arguments '', expected 'R' for one number, 'RR' for two"),
        ("x", jnp.tanh, "L", "operator 'x' has arguments 'L', expected 'R' for one number, 'RR' for two"),
        ("x", jnp.tanh, "RR", "operator 'x' is not a function of 2 arguments"),
        ("x", 3.0, "R", "operator 'x' is not a function of 1 arguments"),
        ("x", jnp.sum, "R", r"operator 'x' makes \(\) of \(9,\), expected a number for each one"),
        ("x", jnp.sqrt, "R", "operator 'x' has a result at -1e\\+10 that is not finite, expected it to be everywhere"),
        ("x", lambda x: jnp.sqrt(jnp.abs(x)), "R", "operator 'x' has a derivative at 0 that is not finite"),
        ("x", jnp.power, "RR", "operator 'x' has a result at .* that is not finite"),
    ],
)
def test_what_is_wrong_is_named(name, function, arguments, message):
    before = [dict(registry) for registry in REGISTRIES]
    with pytest.raises(ValueError, match="^" + message):
        register_operator(name, function, arguments)
    assert before == [dict(registry) for registry in REGISTRIES]
    if name == "x":
        with pytest.raises(ValueError, match="'x' is no operator"):
            parse(TARGETS, "x(r)")


def test_a_name_is_registered_once():
    register_operator("saturated", jnp.tanh)
    with pytest.raises(ValueError, match="operator is 'saturated', which is a name already"):
        register_operator("saturated", jnp.tanh)
