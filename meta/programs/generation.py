"""Random programs, and random changes of them (Co-Reyes et al. 2021, section 3.3)."""

import numpy as np

from meta.programs.language import CONSTANTS, OPERATORS, Language, Node, Program


def random_program(language: Language, rng: np.random.Generator, start: Program = ()) -> Program:
    """Draw a program of as many nodes as there may be; its first ones are those of `start`."""
    program = list(start)
    while len(program) < language.max_nodes:
        program.append(_random_node(language, rng, program, "R" if len(program) == language.max_nodes - 1 else ""))
    return tuple(program)


def mutate(language: Language, rng: np.random.Generator, program: Program, num_frozen: int = 0) -> Program:
    """Replace one node by a random one, whose type is the old one's where something depends on it.

    The first `num_frozen` nodes stay.
    """
    i = int(rng.integers(num_frozen, len(program)))
    first = len(language.inputs)
    is_used = i == len(program) - 1 or any(first + i in node.arguments for node in program)
    of_type = language.type_of(program, first + i) if is_used else ""
    return (*program[:i], _random_node(language, rng, program[:i], of_type), *program[i + 1 :])


def _random_node(language: Language, rng: np.random.Generator, before: Program | list[Node], of_type: str) -> Node:
    """Draw an operator among those with enough arguments, then its arguments, none of them twice."""
    places: dict[str, list[int]] = {}
    for i in range(len(language.inputs) + len(before)):
        places.setdefault(language.type_of(before, i), []).append(i)
    fits = []
    for name in language.operators:
        operator = OPERATORS[name]
        enough = all(len(places.get(x, [])) >= operator.arguments.count(x) for x in operator.arguments)
        if enough and of_type in ("", operator.result):
            fits.append(name)
    name = fits[rng.integers(len(fits))]
    arguments: list[int] = []
    for kind in OPERATORS[name].arguments:
        left = [x for x in places[kind] if x not in arguments]
        arguments.append(left[rng.integers(len(left))])
    return Node(name, tuple(arguments), float(rng.choice(CONSTANTS)) if name == "Constant" else 0.0)
