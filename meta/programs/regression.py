"""Symbolic regression: short formulas, in the language of programs, for what a function does.

Programs are varied by random changes, as those of a search for losses. Each is judged after the best a + b · f (Keijzer
2003), so that scale and offset need not be found. What is returned is the front of error and length.
"""

import collections
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import numpy as np
from scipy import optimize

from meta.programs.generation import mutate, random_program
from meta.programs.language import LIMIT, Language, Node, Program, compact, to_formula

# Those of `evaluation.ARITHMETIC` in NumPy, which takes a hundredth of the time where each program runs once.
OPERATORS: dict[str, Callable[..., np.ndarray]] = {
    "Add": np.add,
    "Subtract": np.subtract,
    "DotProduct": np.multiply,
    "Div": lambda x, y: x / np.where(y < 0, np.minimum(y, -1e-10), np.maximum(y, 1e-10)),
    "Max": np.maximum,
    "Min": np.minimum,
    "Log": lambda x: np.log(np.abs(x) + 1e-12),
    "Exp": lambda x: np.exp(np.minimum(x, np.log(LIMIT))),
    "Abs": np.abs,
}
NUM_RANDOM = 500  # programs that are drawn at first, and of which some are kept
TOURNAMENT, POPULATION = 10, 200


class Fit(NamedTuple):
    """A formula for what a function does.

    Attributes:
      program, formula: it, with offset and scale.
      size: its operations.
      error: the share of the variance that it does not explain, from 0 to 1, or that of a KL.
    """

    program: Program
    formula: str
    size: int
    error: float


def language_of(inputs: Iterable[str], max_nodes: int = 20) -> Language:
    """Return the language of formulas of these inputs, which are numbers."""
    return Language(dict.fromkeys(inputs, "R"), ("Constant", *OPERATORS), max_nodes)


def values_of(program: Program, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
    """Compute a program of numbers at all points, [N]."""
    found = [np.asarray(x, np.float64) for x in inputs.values()]
    for node in program:
        if node.operator == "Constant":
            found.append(np.full_like(found[0], node.value))
        else:
            arguments = [found[i] for i in node.arguments]
            found.append(np.clip(OPERATORS[node.operator](*arguments), -LIMIT, LIMIT))
    return found[-1]


class _Squares:
    """Errors of numbers, [N], by least squares."""

    def __init__(self, y: np.ndarray):
        self._y, self.is_constant, self.size = y, not np.ptp(y), float(np.std(y))

    def scaled(self, x: np.ndarray) -> tuple[float, float, float]:
        """Return a and b of the best a + b x, and the share of the variance that is left."""
        y = self._y
        if _is_constant(x):
            return float(y.mean()), 0.0, 1.0
        centred = x - x.mean()
        b = float(centred @ (y - y.mean()) / (centred @ centred))
        a = float(y.mean() - b * x.mean())
        return a, b, self.share(self.errors(x, a, b))

    def errors(self, x: np.ndarray, a: float = 0.0, b: float = 1.0) -> np.ndarray:
        return self._y - a - b * x

    def share(self, errors: np.ndarray) -> float:
        return float(np.mean(np.square(errors)) / np.var(self._y))


class _Divergences:
    """Errors of changes of distributions, by KL(p ‖ q exp(b x)), where log p = log q + y but for a number.

    What is squared is the KL of a distribution, in nats.
    """

    NUM_NEWTON = 6

    def __init__(self, y: np.ndarray, p: np.ndarray, group: np.ndarray):
        self._p, self._log_p, self._group = p, np.log(np.maximum(p, 1e-30)), group
        self._first = np.flatnonzero(np.diff(group, prepend=-1))
        self._y = y - self._sum(p * y)[group]
        self._log_q = self._log_p - self._y
        self._before = float(np.mean(np.square(self.errors(np.zeros_like(y)))))
        self.is_constant, self.size = self._before < 1e-12 * max(1.0, float(np.abs(y).max())), float(np.std(self._y))

    def _sum(self, x: np.ndarray) -> np.ndarray:
        return np.add.reduceat(x, self._first)

    def scaled(self, x: np.ndarray) -> tuple[float, float, float]:
        """Return 0 and b of the best q exp(b x), by Newton's method, and the share of KL(p ‖ q) that is left."""
        if _is_constant(x):
            return 0.0, 0.0, 1.0
        b, error = 0.0, 1.0
        for _ in range(self.NUM_NEWTON):
            odds = np.exp(self._relative(b * x))
            made = odds / self._sum(odds)[self._group]
            mean = self._sum(made * x)
            curvature = np.sum(self._sum(made * np.square(x)) - np.square(mean))
            if curvature <= 1e-12 * (x @ x):
                break
            step = (self._p @ x - np.sum(mean)) / curvature
            while abs(step) > 1e-6 * abs(b) and (found := self.share(self.errors(x, b=b + step))) > error:
                step /= 4
            if abs(step) <= 1e-6 * abs(b):
                break
            b, gain, error = b + step, error - found, found
            if gain < 1e-5:
                break
        return 0.0, b, error

    def errors(self, x: np.ndarray, a: float = 0.0, b: float = 1.0) -> np.ndarray:
        change = b * x
        relative = self._relative(change)
        largest = np.maximum.reduceat(self._log_q + change, self._first)
        kl = np.log(self._sum(np.exp(relative))) + largest - self._sum(self._p * (self._log_q + change - self._log_p))
        return np.sqrt(np.maximum(kl, 0.0))

    def _relative(self, change: np.ndarray) -> np.ndarray:
        """Return log q + change, less the largest of each distribution."""
        logits = self._log_q + change
        return logits - np.maximum.reduceat(logits, self._first)[self._group]

    def share(self, errors: np.ndarray) -> float:
        return float(np.mean(np.square(errors)) / self._before)


def _is_constant(x: np.ndarray) -> bool:
    return not np.isfinite(x).all() or bool(np.ptp(x) < 1e-9 * max(1.0, np.abs(x).max()))


def fit(
    inputs: Mapping[str, np.ndarray],
    y: np.ndarray,
    *,
    p: np.ndarray | None = None,
    group: np.ndarray | None = None,
    seed: int = 0,
    num_programs: int = 10_000,
    max_nodes: int = 12,
) -> list[Fit]:
    """Search for formulas of inputs, [N] each, that give y, [N].

    Args:
      p, group: where y is the change log p − log q of distributions, but for a number in each: the probabilities p, and
        which distribution a point belongs to, numbers from 0 in order, [N] each. Formulas then have a scale and no
        offset, and the error is KL(p ‖ q exp(formula)) as a share of KL(p ‖ q).
      num_programs: that are tried, at least NUM_RANDOM.
      max_nodes: operations of a program, at most, without offset and scale.
    Returns:
      the front, from the shortest formula to the most exact one: each is more exact than all that are shorter.
    Raises:
      ValueError: if the inputs and y are not finite arrays of one length, or y is constant.
    """
    y = np.asarray(y, np.float64)
    arrays = {name: np.asarray(x, np.float64) for name, x in inputs.items()}
    given = {"y": y} if p is None else {"y": y, "p": p}
    for name, x in (arrays | given).items():
        if x.shape != (len(y),) or not np.isfinite(x).all():
            raise ValueError(f"{name} has the shape {x.shape}, expected {len(y)} finite numbers, one for each point")
    target = _Squares(y) if p is None or group is None else _Divergences(y, p, group)
    if target.is_constant:
        raise ValueError("y is constant, expected numbers that differ")
    language, rng = language_of(arrays, max_nodes), np.random.default_rng(seed)
    best: dict[int, tuple[float, Program]] = {}  # by size: error and program

    def judged(program: Program) -> tuple[float, Program]:
        error = target.scaled(values_of(used := compact(language, program), arrays))[2]
        if error < best.get(len(used), (np.inf,))[0]:
            best[len(used)] = error, used
        return error + 1e-4 * len(used), program  # of equals the shorter

    draw = lambda most: random_program(language._replace(max_nodes=int(rng.integers(1, most + 1))), rng)
    drawn = [judged(draw(max_nodes)) for _ in range(NUM_RANDOM)]
    population = collections.deque(sorted(drawn, key=lambda one: one[0])[:POPULATION], POPULATION)
    for _ in range(num_programs - NUM_RANDOM):
        picks = [population[i] for i in rng.integers(len(population), size=TOURNAMENT)]
        if (how := rng.random()) < 0.1:  # what is short, so that little of it is left untried
            child = draw(4)
        elif how < 0.5:
            child = min(picks, key=lambda one: one[0])[1]
        else:  # of the best of their sizes, which do not age
            sizes = [size for size in best if best[size][0] < 1]
            child = _filled(language, rng, best[sizes[rng.integers(len(sizes))]][1]) if sizes else picks[0][1]
        for _ in range(rng.integers(4) if how >= 0.1 else 0):
            child = _moved(rng, child) if rng.random() < 0.3 else mutate(language, rng, child)
        population.append(judged(child))
    found = []
    for _, program in best.values():
        whole = _with_scale(language, *_polished(program, arrays, target), target.size)
        error = target.share(target.errors(values_of(whole, arrays)))
        found.append(Fit(whole, to_formula(language, whole), len(whole), error))
    front: list[Fit] = []
    for one in sorted(found, key=lambda one: (one.size, one.error)):
        if not front or one.error < 0.9 * front[-1].error:
            front.append(one)
    return front


def _filled(language: Language, rng: np.random.Generator, program: Program) -> Program:
    """Put random nodes before a program, up to as many as there may be: what its changes can make use of."""
    first, room = len(language.inputs), language.max_nodes - len(program)
    before = random_program(language._replace(max_nodes=room), rng) if room else ()
    move = lambda i: i if i < first else i + room
    return (*before, *(node._replace(arguments=tuple(map(move, node.arguments))) for node in program))


def _moved(rng: np.random.Generator, program: Program) -> Program:
    """Change all constants of a program a little, and the signs of few."""
    move = lambda x: x * np.exp(0.3 * rng.normal()) * rng.choice((1, 1, 1, -1))
    return tuple(node._replace(value=move(node.value)) if node.operator == "Constant" else node for node in program)


def _polished(
    program: Program, inputs: Mapping[str, np.ndarray], target: _Squares | _Divergences
) -> tuple[Program, float, float]:
    """Return a program with its best constants, and the offset and scale to them."""
    places = [i for i, node in enumerate(program) if node.operator == "Constant"]

    def with_constants(values: np.ndarray) -> Program:
        own = dict(zip(places, map(float, values), strict=True))
        return tuple(node._replace(value=own[i]) if i in own else node for i, node in enumerate(program))

    def errors(values: np.ndarray) -> np.ndarray:
        x = values_of(with_constants(values), inputs)
        return np.nan_to_num(target.errors(x, *target.scaled(x)[:2]), nan=1e6, posinf=1e6, neginf=1e6)

    if places:
        start = np.array([program[i].value for i in places])
        program = with_constants(optimize.least_squares(errors, start, max_nfev=50).x)
    a, b, _ = target.scaled(values_of(program, inputs))
    return program, a, b


def _with_scale(language: Language, program: Program, a: float, b: float, size: float) -> Program:
    """Return the program of a + b · f, without what changes next to nothing of results of such a size."""
    nodes, first = list(program), len(language.inputs)
    for operator, value, change in (("DotProduct", b, abs(b - 1)), ("Add", a, abs(a) / size)):
        if change > 1e-3:
            result = first + len(nodes) - 1
            nodes += [Node("Constant", (), float(f"{value:.4g}")), Node(operator, (result, result + 1))]
    rounded = (node._replace(value=float(f"{node.value:.4g}")) for node in nodes)
    return tuple(node if node.operator == "Constant" else node for node in rounded)
