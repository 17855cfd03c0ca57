"""Two evaluations of programs: straight code for one, and an interpreter that runs many in one compiled program.

What is no number in a program is a network's output, or made of one: the lists are Q and its slow copy at two states,
the actions are the one that was taken and the best of a list, the probabilities the softmax of a list. So the numbers
that are made of lists are a fixed set of *features*, the same for all programs, and what is left of a program is
arithmetic on registers. `assemble` turns a program into `Instructions`: arrays, which are data of a compiled program,
and can be mapped over. The interpreter has a reverse pass of its own, whose tape is the registers.

What each argument of an operator gets of the gradient is clipped to ±1e10, so that no product of them overflows.
"""

import functools
import itertools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from agents.lazy import rlax
from agents.types import Array, Params
from meta.programs.language import LIMIT, LOSSES, OPERATORS, RANDOM, Language, Program, compact
from meta.programs.operators import ARITHMETIC, CODES, OF_LISTS, arithmetic

ListName = tuple[str, str]  # a network and the state that it sees
NETWORKS = ("Q", "QTarget")
ENDS = ("gamma", "values")  # what tells a loss of a terminal step, by being 0
LISTS: tuple[ListName, ...] = (("Q", "s"), ("Q", "s_next"), ("QTarget", "s"), ("QTarget", "s_next"))
Feature = Any  # an expression: a name of an input, or an operator and its arguments


class Draws(NamedTuple):
    """Random numbers of one evaluation, for the random nodes of a compact program in their order: [max_nodes] each."""

    normal: Array
    uniform: Array


def no_draws() -> Draws:
    """Return those of programs in a language without random numbers."""
    return Draws(jnp.zeros(LOSSES.max_nodes), jnp.zeros(LOSSES.max_nodes))


def draw(key: Array, num: int) -> Draws:
    normal_key, uniform_key = jax.random.split(key)
    return Draws(jax.random.normal(normal_key, (num,)), jax.random.uniform(uniform_key, (num,)))


class Transition(NamedTuple):
    """What a loss is computed from, for N transitions.

    Attributes:
      lists: Q and its slow copy at the states where programs use them, [N, A] each.
      action: [N] int32.
      reward: [N].
      gamma: the discount, 0 after a terminal step, [N].
      state, next_state: [N, F].
    """

    lists: Mapping[ListName, Array]
    action: Array
    reward: Array
    gamma: Array
    state: Array
    next_state: Array

    def told_ends(self, ends: str, discount: float, is_end: Array) -> "Transition":
        """Return it with terminal steps, [N] bool, told as `ends` says, of ENDS; by "gamma" γ is 0 there.

        By "values" Q and Q_targ at s_next are 0 after a terminal step, and γ is `discount` there.
        """
        if ends == "gamma":
            return self
        lists = {name: jnp.where(is_end[:, None] & (name[1] == "s_next"), 0.0, x) for name, x in self.lists.items()}
        return self._replace(lists=lists, gamma=jnp.where(is_end, jnp.full_like(self.gamma, discount), self.gamma))

    @property
    def inputs(self) -> Mapping[str, Array]:
        """The inputs of a program of `language.LOSSES`."""
        return dict(zip(LOSSES.inputs, (self.state, *self[1:4], self.next_state), strict=True))


def lists_of(language: Language, program: Program, has_gradient: bool = False) -> tuple[ListName, ...]:
    """Return the networks' outputs that a program uses, in the order of `LISTS`.

    Those that have a gradient are those of which more is used than the best action.
    """
    names, nodes = list(language.inputs), compact(language, program)
    read = {x for node in nodes if not has_gradient or node.operator != "ArgMaxList" for x in node.arguments}
    used = {
        (node.operator, *(names[x] for x in node.arguments))
        for i, node in enumerate(nodes, len(names))
        if node.operator in NETWORKS and i in read
    }
    return tuple(x for x in LISTS if x in used)


@functools.cache
def _expressions(lists: tuple[ListName, ...]) -> dict[str, list[Feature]]:
    """Return all numbers that can be made of these lists, by the operator that makes them, in order."""
    actions = ["a", *(("ArgMaxList", x) for x in lists)]
    soft = [("Softmax", x) for x in lists]
    states = ("s", "s_next")
    return {
        "given": ["r", "gamma"],
        **{name: [(name, x) for x in lists] for name in ("MaxList", "MinList", "MeanList", "VarianceList")},
        "Entropy": [("Entropy", p) for p in soft],
        "SelectList": [("SelectList", x, z) for x in lists for z in actions],
        "KLDiv": [("KLDiv", p, q) for p in soft for q in soft],
        **{name: [(name, x, y) for x in states for y in states] for name in ("StateDotProduct", "StateL2Distance")},
    }


def registers_of(lists: tuple[ListName, ...]) -> dict[Feature, int]:
    """Return the register of each feature, where these lists are known."""
    return {x: i for i, x in enumerate(itertools.chain(*_expressions(lists).values()))}


def features(transition: Transition) -> Array:
    """Return all numbers that programs make of lists and states, [features, N].

    Sums over the few actions are written out: over an axis so short they are slow on CPUs.
    """
    q = [jnp.stack(of_action) for of_action in zip(*(x.T for x in transition.lists.values()), strict=True)]  # A [L, N]
    fold, num = functools.reduce, len(q)
    largest, mean = fold(jnp.maximum, q), fold(jnp.add, q) / num
    argmax = fold(lambda best, a: jnp.where(q[a] == largest, a, best), reversed(range(num)), jnp.zeros_like(q[0], int))
    actions = jnp.concatenate([transition.action[None], argmax])  # [1 + L, N]
    shifted = [x - jax.lax.stop_gradient(largest) for x in q]
    log_sum = jnp.log(fold(jnp.add, map(jnp.exp, shifted)))
    log_p = [x - log_sum for x in shifted]
    p = list(map(jnp.exp, log_p))
    states = jnp.stack([transition.state, transition.next_state])
    values = {
        "given": jnp.stack([transition.reward, transition.gamma]),
        "MaxList": largest,
        "MinList": fold(jnp.minimum, q),
        "MeanList": mean,
        "VarianceList": fold(jnp.add, [(x - mean) ** 2 for x in q]) / num,
        "Entropy": -fold(jnp.add, [x * y for x, y in zip(p, log_p, strict=True)]),
        "SelectList": fold(jnp.add, [jnp.where(actions == a, x[:, None], 0.0) for a, x in enumerate(q)]),
        "KLDiv": fold(jnp.add, [x[:, None] * (y[:, None] - y) for x, y in zip(p, log_p, strict=True)]),
        **{name: OF_LISTS[name](states[:, None], states) for name in ("StateDotProduct", "StateL2Distance")},
    }
    kinds = _expressions(tuple(transition.lists))
    return jnp.concatenate([jnp.reshape(values[kind], (len(own), -1)) for kind, own in kinds.items()])


class Instructions(NamedTuple):
    """A program as arrays: after the features' registers, instruction i writes the next one.

    Attributes:
      code: what it does, [max_nodes] int32.
      first, second: registers of its arguments, [max_nodes] int32.
      load: what kind of number it loads, [max_nodes] int32: a constant, a normal or a uniform draw.
      draw: the number of a draw, [max_nodes] int32.
      constant: the constant that it loads, [max_nodes].
      num: instructions that count, int32; the last of them, or the register `result`, is the loss.
      result: register, int32.
    """

    code: Array
    first: Array
    second: Array
    load: Array
    draw: Array
    constant: Array
    num: Array
    result: Array


_LOADS = {"Constant": 0, "Normal": 1, "Uniform": 2}


def assemble(language: Language, program: Program, known: Mapping[Feature, int]) -> Instructions:
    """Turn a program into arrays; what is made of lists is in the registers of features, `registers_of`."""
    program = compact(language, program)
    expressions: list[Feature] = list(language.inputs)
    registers = {i: known[x] for i, x in enumerate(expressions) if x in known}
    rows: list[tuple[Any, ...]] = []
    num_drawn = 0
    for i, node in enumerate(program, start=len(expressions)):
        expression = (node.operator, *(expressions[x] for x in node.arguments))
        expressions.append(i if OPERATORS[node.operator].result == "R" else expression)
        if expression in known:
            registers[i] = known[expression]
        elif node.operator in _LOADS:
            registers[i] = len(known) + len(rows)
            rows.append((CODES["Load"], 0, 0, _LOADS[node.operator], num_drawn, node.value))
            num_drawn += node.operator in RANDOM
        elif node.operator in ARITHMETIC:
            arguments = [registers[x] for x in node.arguments]
            registers[i] = len(known) + len(rows)
            rows.append((CODES[node.operator], arguments[0], arguments[-1], 0, 0, 0.0))
    padded = rows + [(CODES["Load"], 0, 0, 0, 0, 0.0)] * (language.max_nodes - len(rows))
    *whole, constant = (np.array(x) for x in zip(*padded, strict=True))
    columns: list[Any] = [x.astype(np.int32) for x in whole]
    num, result = np.int32(len(rows)), np.int32(registers[len(expressions) - 1])
    return Instructions(*columns, constant, num, result)  # type: ignore[call-arg]


def interpret(instructions: Instructions, draws: Draws, given: Array, num: Array | int | None = None) -> Array:
    """Run a program on its features, [features, N] -> [N].

    Gradients flow to the features alone. Mapped over programs, `num`, the most instructions of any of them, which is
    not mapped over, ends the loop there.
    """
    instructions = jax.tree.map(jnp.asarray, instructions)
    numbers = jnp.stack([instructions.constant, draws.normal[instructions.draw], draws.uniform[instructions.draw]])
    loads = jnp.take_along_axis(numbers, instructions.load[None], axis=0)[0].astype(given.dtype)
    return _interpret(instructions, loads, instructions.num if num is None else num, given)


def _cases(code: Array, cases: list[Array]) -> Array:
    return jax.lax.select_n(jnp.broadcast_to(code, cases[0].shape), *cases)


def _registers(instructions: Instructions, loads: Array, num: Array, given: Array) -> Array:
    first = len(given)
    registers = jnp.concatenate([given, jnp.zeros((len(loads), *given.shape[1:]), given.dtype)])

    def body(i, registers):
        x, y = registers[instructions.first[i]], registers[instructions.second[i]]
        results = [arithmetic(name, x, y) for name in ARITHMETIC]
        result = _cases(instructions.code[i], [jnp.broadcast_to(loads[i], x.shape), *results])
        return jax.lax.dynamic_update_index_in_dim(registers, result, first + i, axis=0)

    return jax.lax.fori_loop(0, num, body, registers)


@jax.custom_vjp
def _interpret(instructions: Instructions, loads: Array, num: Array, given: Array) -> Array:
    return _registers(instructions, loads, num, given)[instructions.result]


def _forward(instructions, loads, num, given):
    registers = _registers(instructions, loads, num, given)
    return registers[instructions.result], (instructions, loads, num, registers, given)


def _backward(kept, cotangent):
    instructions, loads, num, registers, given = kept
    first = len(given)
    adjoint = jnp.zeros_like(registers).at[instructions.result].set(cotangent)

    def body(j, adjoint):
        i = num - 1 - j
        x, y, g = registers[instructions.first[i]], registers[instructions.second[i]], adjoint[first + i]
        pairs = [jax.vjp(lambda x, y, name=name: arithmetic(name, x, y), x, y)[1](g) for name in ARITHMETIC]
        zero = jnp.zeros_like(g)
        dx, dy = (_cases(instructions.code[i], [zero, *own]) for own in zip(*pairs, strict=True))
        adjoint = adjoint.at[instructions.first[i]].add(jnp.clip(dx, -LIMIT, LIMIT))
        return adjoint.at[instructions.second[i]].add(jnp.clip(dy, -LIMIT, LIMIT))

    return None, None, None, jax.lax.fori_loop(0, num, body, adjoint)[:first]


_interpret.defvjp(_forward, _backward)


def constants_of(language: Language, program: Program) -> list[float]:
    """Return the constants of a program, in the order in which `evaluate` takes them."""
    return [node.value for node in compact(language, program) if node.operator == "Constant"]


class Given(NamedTuple):
    """What a program is computed from: its inputs by their names, [N] where they are numbers, and networks' outputs."""

    inputs: Mapping[str, Array]
    lists: Mapping[ListName, Array] = {}


def with_constants_as_eta(language: Language, program: Program) -> tuple[Params, Callable[[Params, Any], Array]]:
    """Return an η that is a program's constants, and the function (η, inputs by their names, [...] each) -> [...].

    Without constants η is empty.
    """
    constants = constants_of(language, program)

    def compute(meta_params: Params, inputs: Mapping[str, Array]) -> Array:
        flat = Given({name: jnp.ravel(x) for name, x in inputs.items()})
        given = meta_params["program"]["constants"] if constants else None
        shape = next(iter(inputs.values())).shape
        return jnp.reshape(evaluate(language, program, flat, no_draws(), given), shape)

    return {"program": {"constants": jnp.array(constants)}} if constants else {}, compute


def evaluate(
    language: Language, program: Program, given: Given | Transition, draws: Draws, constants: Array | None = None
) -> Array:
    """Compute a program: straight code, for one; returns [N].

    Gradients flow to lists and constants; those that are given, [constants], take the place of the program's.
    """
    return evaluate_nodes(language, compact(language, program), given, draws, constants)[-1]


def evaluate_nodes(
    language: Language, program: Program, given: Given | Transition, draws: Draws, constants: Array | None = None
) -> list[Array]:
    """Compute all of a compact program: its inputs, then node by node."""
    own = iter(constants_of(language, program) if constants is None else constants)
    names, values = list(language.inputs), [given.inputs[name] for name in language.inputs]
    like = given.inputs[next(name for name, kind in language.inputs.items() if kind == "R")]
    num_drawn = 0
    for node in program:
        arguments = [values[x] for x in node.arguments]
        match node.operator:
            case "Q" | "QTarget":
                values.append(given.lists[node.operator, names[node.arguments[0]]])
            case "Constant":
                values.append(jnp.full_like(like, next(own)))
            case operator if operator in RANDOM:
                drawn = draws.normal if node.operator == "Normal" else draws.uniform
                values.append(jnp.broadcast_to(drawn[num_drawn], like.shape).astype(like.dtype))
                num_drawn += 1
            case operator if operator in ARITHMETIC:
                x, y = (rlax.clip_gradient(x, -LIMIT, LIMIT) for x in (arguments[0], arguments[-1]))
                values.append(arithmetic(operator, x, y))
            case operator:
                values.append(OF_LISTS[operator](*arguments))
    return values
