"""Programs: formulas, both evaluations against plain NumPy and each other, and what is drawn at random."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from meta.programs.evaluation import (
    LISTS,
    Instructions,
    Transition,
    assemble,
    draw,
    evaluate,
    features,
    interpret,
    lists_of,
    registers_of,
)
from meta.programs.generation import mutate, random_program
from meta.programs.language import FORMULAS, LOSSES, OPERATORS, Node, check, compact, parse, to_formula
from tests.reference import programs as reference

NUM_ACTIONS, NUM_FEATURES = 3, 2
DRAWS = draw(jax.random.key(0), LOSSES.max_nodes)
ALL = registers_of(LISTS)


def random_transition(seed: int = 0, num: int = 5, scale: float = 1.0, dtype=None) -> Transition:
    rng = np.random.default_rng(seed)
    normal = lambda *shape: jnp.asarray(scale * rng.normal(size=(num, *shape)), dtype)
    return Transition(
        lists={name: normal(NUM_ACTIONS) for name in LISTS},
        action=jnp.asarray(rng.integers(0, NUM_ACTIONS, num)),
        reward=normal(),
        gamma=jnp.asarray(0.9 * rng.integers(0, 2, num), dtype),
        state=normal(NUM_FEATURES),
        next_state=normal(NUM_FEATURES),
    )


@functools.cache
def random_programs(num: int, seed: int = 0):
    rng = np.random.default_rng(seed)
    return [random_program(LOSSES, rng) for _ in range(num)]


def stack(programs) -> Instructions:
    return jax.tree.map(lambda *x: np.stack(x), *[assemble(LOSSES, program, ALL) for program in programs])


def of_reference(program, transition: Transition) -> np.ndarray:
    inputs = {name: np.asarray(x, int if name == "a" else float) for name, x in transition.inputs.items()}
    lists = {name: np.asarray(x, float) for name, x in transition.lists.items()}
    draws = [np.asarray(x, float) for x in DRAWS]
    return reference.evaluate(compact(LOSSES, program), list(LOSSES.inputs), inputs, lists, *draws)


@jax.jit
def interpreted(instructions: Instructions, transition: Transition):
    """The mean losses of many programs, and their gradients to the lists."""

    def loss(lists, one, num):
        return jnp.mean(interpret(one, DRAWS, features(transition._replace(lists=lists)), num))

    num = jnp.max(instructions.num)
    return jax.vmap(lambda one: jax.value_and_grad(loss)(transition.lists, one, num))(instructions)


def straight(program, transition: Transition):
    def loss(lists):
        return jnp.mean(evaluate(LOSSES, program, transition._replace(lists=lists), DRAWS))

    return jax.value_and_grad(loss)(transition.lists)


def one_of_each() -> list[tuple[str, str]]:
    """A formula for each operator, of random numbers and of lists."""
    numbers, lists = ("Q(s)[a]", "r"), ("Q(s)", "Q_targ(s_next)")
    of_type = {
        "R": numbers,
        "L": lists,
        "Z": ("argmax(Q(s_next))",),
        "P": tuple(f"softmax({x})" for x in lists),
        "S": ("s", "s_next"),
    }
    found = []
    for name, operator in OPERATORS.items():
        counts = {kind: itertools.cycle(texts) for kind, texts in of_type.items()}
        text = operator.formula.format(*(f"({next(counts[x])})" for x in operator.arguments)) or "0.5"
        whole = {"L": "max({})", "Z": "Q(s)[{}]", "P": "entropy({})", "R": "{}"}[operator.result].format(text)
        found.append((name, f"{whole} + Q(s)[a]"))
    return found


@pytest.mark.parametrize("name,formula", one_of_each())
def test_every_operator_is_that_of_the_paper_in_both_evaluations(name, formula):
    program = parse(LOSSES, formula)
    assert name in [node.operator for node in program]
    transition = random_transition()
    expected = of_reference(program, transition)
    straight_value = evaluate(LOSSES, program, transition, DRAWS)
    np.testing.assert_allclose(straight_value, expected, rtol=2e-5, atol=1e-6)
    value = interpret(assemble(LOSSES, program, ALL), DRAWS, features(transition))
    np.testing.assert_allclose(value, expected, rtol=2e-5, atol=1e-6)
    check_agreement([program], transition, interpreted(stack([program]), transition), 1e-5)


def test_every_operator_agrees_in_float64():
    with jax.enable_x64(True):
        transition = random_transition(dtype="float64")
        programs = [parse(LOSSES, formula) for _, formula in one_of_each()]
        found = interpreted(stack(programs), transition)
        assert found[0].dtype == np.float64
        check_agreement(programs, transition, found, 1e-9)


def check_agreement(programs, transition, found, tolerance):
    """Compare losses and gradients with those of straight code: to the mean size of losses, and the largest entry."""
    values, gradients = found
    for i, program in enumerate(programs):
        value, gradient = straight(program, transition)
        size = np.mean(np.abs(evaluate(LOSSES, program, transition, DRAWS)))  # of losses, which may cancel in the mean
        np.testing.assert_allclose(values[i], value, rtol=0, atol=tolerance * (size + 1e-30))
        for name, expected in gradient.items():
            largest = np.max(np.abs(expected)) + 1e-30
            np.testing.assert_allclose(gradients[name][i] / largest, expected / largest, atol=tolerance)


@pytest.mark.parametrize("num", [60, pytest.param(1000, marks=pytest.mark.long)])
@pytest.mark.parametrize("dtype,tolerance", [("float32", 1e-5), ("float64", 1e-9)])
def test_interpreter_and_straight_code_agree_on_random_programs(dtype, tolerance, num):
    with jax.enable_x64(dtype == "float64"):
        transition = random_transition(dtype=dtype)
        programs = random_programs(1000)
        values, gradients = interpreted(stack(programs), transition)
        assert values.dtype == dtype
        if dtype == "float64":
            expected = [np.mean(of_reference(program, transition)) for program in programs]
            np.testing.assert_allclose(values, expected, rtol=tolerance, atol=tolerance)
        moved = [i for i in range(1000) if any(np.any(x[i] != 0) for x in gradients.values())]
        assert len(moved) > 100
        which = [*moved, *(i for i in range(1000) if i not in moved)][:num]
        of_which = jax.tree.map(lambda x: x[np.array(which)], (values, gradients))
        check_agreement([programs[i] for i in which], transition, of_which, tolerance)


@pytest.mark.parametrize("scale", [0.0, 1.0, 1e4])
def test_no_random_program_has_a_loss_or_a_gradient_that_is_not_finite(scale):
    values, gradients = interpreted(stack(random_programs(3000, seed=1)), random_transition(scale=scale))
    for x in (values, *gradients.values()):
        assert np.all(np.isfinite(x))


def test_no_straight_code_has_a_loss_or_a_gradient_that_is_not_finite():
    transition = random_transition(scale=1e4)
    for program in random_programs(100, seed=2):
        value, gradients = straight(program, transition)
        assert all(np.all(np.isfinite(x)) for x in (value, *gradients.values())), to_formula(LOSSES, program)


def test_gradients_that_would_overflow_are_clipped_where_they_arise():
    program = parse(LOSSES, "q = Q(s)[a]; c = exp(100); 1 / (c * (c * q)) - 1 / (c * (c * (2 * q)))")
    transition = random_transition()
    tiny = {name: jnp.full_like(x, 2e-30) for name, x in transition.lists.items()}
    transition = transition._replace(lists=tiny)
    _, gradients = interpreted(stack([program]), transition)
    for name in LISTS:
        assert np.all(np.isfinite(gradients[name]))


@pytest.mark.parametrize(
    "formula,by_hand",
    [
        (FORMULAS["dqn"], lambda q, y, best: (q - y) ** 2),
        (FORMULAS["dqn_reg"], lambda q, y, best: 0.1 * q + (q - y) ** 2),
        (
            FORMULAS["dqn_clipped"],
            lambda q, y, best: max(q, (q - y) ** 2 + y) + max(q - y, 0.9 * best**2),
        ),
    ],
)
def test_losses_of_the_paper(formula, by_hand):
    transition = random_transition(num=1)._replace(gamma=jnp.array([0.9]))
    q = transition.lists["Q", "s"][0, transition.action[0]]
    best = np.max(transition.lists["QTarget", "s_next"][0])
    expected = by_hand(q, transition.reward[0] + 0.9 * best, best)
    found = evaluate(LOSSES, parse(LOSSES, formula), transition, DRAWS)
    np.testing.assert_allclose(found[0], expected, rtol=1e-5)


def test_values_can_tell_of_ends_and_what_multiplies_them_by_gamma_does_not_notice():
    transition = random_transition()  # γ is 0.9, or 0 after a terminal step
    is_end = np.asarray(transition.gamma == 0)
    assert 0 < np.sum(is_end) < len(is_end)
    assert transition.told_ends("gamma", 0.9, is_end) is transition
    told = transition.told_ends("values", 0.9, is_end)
    np.testing.assert_allclose(told.gamma, 0.9)
    for name, values in transition.lists.items():
        expected = np.where(is_end[:, None], 0.0, values) if name[1] == "s_next" else values
        np.testing.assert_array_equal(told.lists[name], expected)
    loss = lambda formula, transition: evaluate(LOSSES, parse(LOSSES, formula), transition, DRAWS)
    for formula in FORMULAS.values():
        np.testing.assert_allclose(loss(formula, told), loss(formula, transition), rtol=1e-6)
    q = np.take_along_axis(transition.lists["Q", "s"], transition.action[:, None], axis=-1)[:, 0]
    best = np.where(is_end, 0.0, np.max(transition.lists["QTarget", "s_next"], axis=-1))
    found = loss("(Q(s)[a] - (r + max(Q_targ(s_next))))**2", told)
    np.testing.assert_allclose(found, (q - (transition.reward + best)) ** 2, rtol=1e-5)
    short_sighted = transition._replace(gamma=jnp.zeros_like(transition.gamma)).told_ends("values", 0.0, is_end)
    np.testing.assert_array_equal(short_sighted.lists["QTarget", "s_next"], told.lists["QTarget", "s_next"])


def test_double_dqn_takes_the_action_that_is_best_for_q_and_the_copy_s_value_of_it():
    lists = {
        ("Q", "s"): jnp.array([[1.0, 2.0, 3.0]]),
        ("Q", "s_next"): jnp.array([[0.0, 5.0, 1.0]]),
        ("QTarget", "s_next"): jnp.array([[9.0, 4.0, 7.0]]),
    }
    transition = random_transition(num=1)._replace(
        lists=lists, action=jnp.array([2]), reward=jnp.array([0.5]), gamma=jnp.array([0.9])
    )
    program = parse(LOSSES, FORMULAS["double_dqn"])
    assert lists_of(LOSSES, program) == tuple(lists)
    found = evaluate(LOSSES, program, transition, DRAWS)
    np.testing.assert_allclose(found, [(3.0 - (0.5 + 0.9 * 4.0)) ** 2], rtol=1e-6)


def test_sizes_of_the_paper_s_programs():
    sizes = {name: len(parse(LOSSES, formula)) for name, formula in FORMULAS.items()}
    assert sizes == {"dqn": 7, "double_dqn": 9, "dqn_reg": 10, "dqn_clipped": 14}


def test_a_formula_says_what_the_program_is():
    shared = parse(LOSSES, "x = normal(); x * x + x * Q(s)[a]")
    assert to_formula(LOSSES, shared) == "x1 = normal(); x1 * x1 + x1 * Q(s)[a]"
    for program in [shared, *random_programs(200, seed=2)]:
        formula = to_formula(LOSSES, program)
        again = parse(LOSSES, formula)
        assert parse(LOSSES, to_formula(LOSSES, again)) == again, formula
        draws = [sum(node.operator in ("Normal", "Uniform") for node in compact(LOSSES, x)) for x in (program, again)]
        assert draws[0] == draws[1], formula
        if not draws[0]:
            transition = random_transition()
            np.testing.assert_allclose(of_reference(again, transition), of_reference(program, transition), rtol=1e-12)


def test_gradients_of_straight_code_are_clipped_as_the_interpreter_s_are():
    transition = random_transition()._replace(gamma=jnp.zeros(5))
    program = parse(LOSSES, "x = Q(s)[a] - Q_targ(s)[a]; x / gamma / gamma / gamma / gamma")
    lists = dict(transition.lists) | {("QTarget", "s"): transition.lists["Q", "s"]}

    def straight(q):
        return jnp.sum(evaluate(LOSSES, program, transition._replace(lists=lists | {("Q", "s"): q}), DRAWS))

    def interpreted(q):
        given = features(transition._replace(lists={name: (lists | {("Q", "s"): q})[name] for name in LISTS}))
        return jnp.sum(interpret(assemble(LOSSES, program, ALL), DRAWS, given))

    found = jax.grad(straight)(lists["Q", "s"])
    np.testing.assert_allclose(found, jax.grad(interpreted)(lists["Q", "s"]), rtol=1e-6)
    assert np.max(np.abs(found)) == pytest.approx(1e10)


def test_a_version_with_two_lists_computes_what_the_one_with_all_does():
    transition = random_transition()
    lists = (LISTS[0], LISTS[3])
    few = transition._replace(lists={name: transition.lists[name] for name in lists})
    program = parse(LOSSES, FORMULAS["dqn_clipped"])
    assert lists_of(LOSSES, program) == lists
    found = interpret(assemble(LOSSES, program, registers_of(lists)), DRAWS, features(few))
    np.testing.assert_array_equal(found, interpret(assemble(LOSSES, program, ALL), DRAWS, features(transition)))


def test_draws_are_one_number_for_the_batch_and_one_for_each_random_node():
    program = parse(LOSSES, "normal() - normal() + uniform()")
    found = evaluate(LOSSES, program, random_transition(), DRAWS)
    np.testing.assert_allclose(found, np.full(5, DRAWS.normal[0] - DRAWS.normal[1] + DRAWS.uniform[2]), rtol=1e-6)


def test_random_programs_are_valid_and_mutations_change_one_node():
    rng = np.random.default_rng(0)
    frozen = parse(LOSSES, "Q(s)[a]")
    for _ in range(300):
        program = random_program(LOSSES, rng, frozen)
        check(LOSSES, program)
        assert program[:2] == frozen
        assert len(program) == LOSSES.max_nodes
        changed = mutate(LOSSES, rng, program, len(frozen))
        check(LOSSES, changed)
        assert changed[:2] == frozen
        assert sum(x != y for x, y in zip(program, changed, strict=True)) <= 1
        assert all(len(set(node.arguments)) == len(node.arguments) for node in changed)


def test_every_operator_and_every_argument_is_drawn():
    programs = random_programs(500, seed=3)
    assert {node.operator for program in programs for node in program} == set(OPERATORS)
    assert {x for program in programs for node in program for x in node.arguments} == set(range(5 + 19))


@pytest.mark.parametrize(
    "formula,message",
    [
        ("Q(s)[a", "^'Q\\(s\\)\\[a' cannot be read: expected Python's syntax"),
        ("", "^'' cannot be read"),
        ("maxx(Q(s))", "^'maxx' is no operator \\(did you mean 'max'\\?\\)$"),
        ("Q(s)[a] ** 3", r"is nothing that this language has: squares are \*\*2$"),
        ("y = z = r + 1; y + Q(s)[a]", "^'y = z = r \\+ 1' has no use"),
        ("Q(s)[a] + True", "^'True' is nothing that this language has$"),
        ("Q(s)[a] * 1e999", "^'1e309' is nothing that this language has: numbers are at most 1e\\+10 in size$"),
        ("Q(s)[a] * 1e300", "^'1e\\+300' is nothing that this language has: numbers are at most"),
        ("Q(s)[a] + " + "9" * 400, "numbers are at most 1e\\+10 in size$"),
        ("-Q(s)[a]", "^'-Q\\(s\\)\\[a\\]' is nothing that this language has: write 0 - x for -x$"),
        ("+".join(["r"] * 900), "cannot be read|too deep to read, expected at most 20 operations$|^a program of"),
        ("+".join(["r"] * 20_000), "cannot be read"),
        ("Q(s)[b]", "^'b' is no name: there are s, a, r, gamma, s_next$"),
        ("Q(s)[a] + s", r"^x \+ y takes a number and a number, not a number and a state$"),
        ("Q(s)", "^the program's result is a list, expected a number$"),
        ("r", "^'r' is an input, expected what is computed from inputs$"),
        ("y = r + 1; Q(s)[a]", "^y is not used$"),
        ("r = 1; Q(s)[a]", "^r has a meaning already: choose another name$"),
        ("r + 1; Q(s)[a]", "^'r \\+ 1' has no use"),
        ("y = Q(s)[a]", "^'y = Q\\(s\\)\\[a\\]' ends the formula, expected what it computes$"),
        (" + ".join(f"{i} * Q(s)[a]" for i in range(2, 12)), "^a program of 31 operations, expected 1 to 20$"),
    ],
)
def test_bad_formulas_are_refused_in_a_line(formula, message):
    with pytest.raises(ValueError, match=message):
        parse(LOSSES, formula)


@pytest.mark.parametrize(
    "program,message",
    [
        ((), "^a program of 0 operations, expected 1 to 20$"),
        ((Node("Adds", (2, 3)),), "^node 0: 'Adds' is no operator of this language \\(did you mean 'Add'\\?\\)$"),
        ((Node("Add", (2, 5)),), "^node 0: its arguments are \\(2, 5\\), expected inputs and earlier nodes$"),
        ((Node("Add", (0, 3)),), r"^x \+ y takes a number and a number, not a state and a number$"),
    ],
)
def test_bad_programs_are_refused_in_a_line(program, message):
    with pytest.raises(ValueError, match=message):
        check(LOSSES, program)
