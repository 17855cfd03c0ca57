"""A language of objectives: typed programs over a transition, and their formulas (Co-Reyes et al. 2021, Appendix A).

A program is a graph. Its *inputs* are what a `Language` names; each *node* is an operator with earlier inputs or nodes
as arguments; the last node is what the program computes. Types are those of the paper: a state S, an action Z, a number
R, a list of numbers L with one for each action, a probability P over actions. Types decide what can be an argument of
what when a program is made; programs that are run know none (`evaluation.py`).

A formula is the same as text, in Python's syntax:

    (Q(s)[a] - (r + gamma * max(Q_targ(s_next))))**2
    y = r + gamma * max(Q_targ(s_next)); (Q(s)[a] - y)**2 + 0.1 * Q(s)[a]

`Q_targ` is the slowly moving copy of Q, `s_next` the state that follows; `gamma` is 0 after a terminal step, or values
at `s_next` are. Equal parts are one node. `(x - y)**2` is the paper's L2Distance, `x * y` its DotProduct.
"""

import ast
import collections
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from agents.validation import did_you_mean

TYPES = {"S": "a state", "Z": "an action", "R": "a number", "L": "a list", "P": "a probability"}


class Operator(NamedTuple):
    """An operator; {} stands for arguments in the texts, and a Constant has none.

    Attributes:
      arguments, result: types of the arguments, a letter each, and of the result.
      formula, latex: how it is written.
    """

    arguments: str
    result: str
    formula: str
    latex: str


# The operators of the paper's Appendix A, of which one with several types is several here.
OPERATORS = {
    "Q": Operator("S", "L", "Q({})", "Q({})"),
    "QTarget": Operator("S", "L", "Q_targ({})", r"Q_{{\mathrm{{targ}}}}({})"),
    "Constant": Operator("", "R", "", ""),
    "Normal": Operator("", "R", "normal()", r"\mathcal{{N}}(0, 1)"),
    "Uniform": Operator("", "R", "uniform()", r"\mathcal{{U}}(0, 1)"),
    "Add": Operator("RR", "R", "{} + {}", "{} + {}"),
    "Subtract": Operator("RR", "R", "{} - {}", "{} - {}"),
    "DotProduct": Operator("RR", "R", "{} * {}", r"{} \cdot {}"),
    "Div": Operator("RR", "R", "{} / {}", r"\frac{{{}}}{{{}}}"),
    "L2Distance": Operator("RR", "R", "({} - {})**2", r"\left({} - {}\right)^2"),
    "Max": Operator("RR", "R", "max({}, {})", r"\max({}, {})"),
    "Min": Operator("RR", "R", "min({}, {})", r"\min({}, {})"),
    "Log": Operator("R", "R", "log({})", r"\log({})"),
    "Exp": Operator("R", "R", "exp({})", r"\exp({})"),
    "Abs": Operator("R", "R", "abs({})", r"\left|{}\right|"),
    "MultiplyTenth": Operator("R", "R", "tenth({})", r"0.1 \cdot ({})"),
    "StateDotProduct": Operator("SS", "R", "dot({}, {})", r"{}^\top {}"),
    "StateL2Distance": Operator("SS", "R", "l2({}, {})", r"\left\|{} - {}\right\|^2"),
    "MaxList": Operator("L", "R", "max({})", r"\max_{{a'}} {}[a']"),
    "MinList": Operator("L", "R", "min({})", r"\min_{{a'}} {}[a']"),
    "MeanList": Operator("L", "R", "mean({})", r"\mathrm{{mean}}_{{a'}}\, {}[a']"),
    "VarianceList": Operator("L", "R", "variance({})", r"\mathrm{{var}}_{{a'}}\, {}[a']"),
    "SelectList": Operator("LZ", "R", "{}[{}]", "{}[{}]"),
    "ArgMaxList": Operator("L", "Z", "argmax({})", r"\arg\max_{{a'}} {}[a']"),
    "Softmax": Operator("L", "P", "softmax({})", r"\mathrm{{softmax}}({})"),
    "KLDiv": Operator("PP", "R", "kl({}, {})", r"\mathrm{{KL}}({} \,\|\, {})"),
    "Entropy": Operator("P", "R", "entropy({})", r"\mathcal{{H}}({})"),
}
RANDOM = ("Normal", "Uniform")  # operators, each node of which is a draw of its own
LIMIT = 1e10  # of constants, of results, and of the gradient to an argument, in size
CONSTANTS = (1.0, 0.5, 0.2, 0.1, 0.01)  # what a search draws from


class Node(NamedTuple):
    """An operator of `OPERATORS`, its arguments, and the value of a Constant.

    An argument i is the language's i-th input, or, past the last one, the node i − number of inputs.
    """

    operator: str
    arguments: tuple[int, ...] = ()
    value: float = 0.0


Program = tuple[Node, ...]  # the last node is the result


class Language(NamedTuple):
    """What programs compute from what: names of inputs with their types, operators, and the most nodes of a program."""

    inputs: Mapping[str, str]
    operators: Collection[str]
    max_nodes: int = 20

    def type_of(self, program: Sequence[Node], i: int) -> str:
        """Return the type of an input or a node."""
        types = list(self.inputs.values())
        return types[i] if i < len(types) else OPERATORS[program[i - len(types)].operator].result


# The operators of languages without lists, states and draws.
NUMERICAL = {name: None for name, of in OPERATORS.items() if {*of.arguments, of.result} == {"R"} and name not in RANDOM}
LOSSES = Language({"s": "S", "a": "Z", "r": "R", "gamma": "R", "s_next": "S"}, OPERATORS)
TARGETS = Language(dict.fromkeys(("r", "gamma", "v", "v_next", "pi", "mu", "G_next"), "R"), NUMERICAL)
DRIFTS = Language(dict.fromkeys(("r", "A", "t"), "R"), NUMERICAL, max_nodes=30)
POLICIES = Language(dict.fromkeys(("A", "A_q", "slow", "pi", "taken"), "R"), NUMERICAL)


def compact(language: Language, program: Program) -> Program:
    """Return the nodes that the result depends on, each after its arguments, depth first."""
    first = len(language.inputs)
    place: dict[int, int] = {i: i for i in range(first)}
    nodes: list[Node] = []

    def add(i: int) -> int:
        if i not in place:
            node = program[i - first]
            nodes.append(node._replace(arguments=tuple(add(x) for x in node.arguments)))
            place[i] = first + len(nodes) - 1
        return place[i]

    add(first + len(program) - 1)
    return tuple(nodes)


def check(language: Language, program: Program) -> None:
    """Raise a ValueError that names the first node that is not of the language, or the program's size."""
    if not 0 < len(program) <= language.max_nodes:
        raise ValueError(f"a program of {len(program)} operations, expected 1 to {language.max_nodes}")
    first = len(language.inputs)
    for i, node in enumerate(program):
        if node.operator not in language.operators:
            hint = did_you_mean(node.operator, language.operators)
            raise ValueError(f"node {i}: {node.operator!r} is no operator of this language{hint}")
        if any(not 0 <= x < first + i for x in node.arguments):
            raise ValueError(f"node {i}: its arguments are {node.arguments}, expected inputs and earlier nodes")
        _check_types(node.operator, [language.type_of(program, x) for x in node.arguments])
    if (found := OPERATORS[program[-1].operator].result) != "R":
        raise ValueError(f"the program's result is {TYPES[found]}, expected {TYPES['R']}")


def _check_types(operator: str, found: Sequence[str]) -> None:
    expected = OPERATORS[operator].arguments
    if "".join(found) != expected:
        says = lambda types: " and ".join(TYPES[x] for x in types) or "nothing"
        text = OPERATORS[operator].formula.format(*"xy") or operator
        raise ValueError(f"{text} takes {says(expected)}, not {says(found)}")


def to_formula(language: Language, program: Program) -> str:
    """Write a program as a formula that `parse` reads; what is used more than once has a name, x1, x2, …"""

    def text(node: Node, parts: list[str]) -> str:
        formula = OPERATORS[node.operator].formula
        return ast.unparse(ast.parse(formula.format(*(f"({part})" for part in parts)) if formula else repr(node.value)))

    return "; ".join(statements(language, program, language.inputs, text, "x{}"))


def statements(
    language: Language, program: Program, inputs: Iterable[str], text_of: Callable[[Node, list[str]], str], name: str
) -> list[str]:
    """Write a program: first what is used more than once, "name = …" with a number in the name, then the result.

    Args:
      inputs: how the language's inputs are written.
      text_of: node, texts of its arguments -> its text.
      name: with {} for the number.
    """
    program = compact(language, program)
    uses = collections.Counter(x for node in program for x in node.arguments)
    texts, named = list(inputs), list[str]()
    for i, node in enumerate(program, start=len(texts)):
        text = text_of(node, [texts[x] for x in node.arguments])
        if uses[i] > 1 and node.operator not in ("Constant", "Q", "QTarget"):
            own = name.format(len(named) + 1)
            named.append(f"{own} = {text}")
            text = own
        texts.append(text)
    return [*named, texts[-1]]


_INFIX = {ast.Add: "Add", ast.Sub: "Subtract", ast.Mult: "DotProduct", ast.Div: "Div"}


def parse(language: Language, formula: str) -> Program:
    """Read a formula.

    Raises:
      ValueError: naming the first name, operator or type that is wrong, what is given a name and not used, or the
        program's size.
    """
    try:
        *named, last = ast.parse(formula.strip()).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ValueError(f"{formula!r} cannot be read: expected Python's syntax, such as (x - y)**2") from None
    try:
        return _read(language, named, last)
    except RecursionError:
        raise ValueError(f"a formula too deep to read, expected at most {language.max_nodes} operations") from None


def parse_setting(name: str, language: Language, formula: str, known: Mapping[str, str] | None = None) -> Program:
    """Read the formula that a setting is, or names among those that are known; a ValueError begins with its name."""
    known = known or {}
    try:
        return parse(language, known.get(formula, formula))
    except ValueError as error:
        raise ValueError(f"{name}: {error}{did_you_mean(formula, known)}") from None


def _read(language: Language, named: Sequence[ast.stmt], last: ast.stmt) -> Program:
    reader = _Reader(language)
    for statement in named:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                if name in reader.names:
                    raise ValueError(f"{name} has a meaning already: choose another name")
                reader.names[name] = reader.read(value)
                reader.unused.add(name)
            case _:
                raise ValueError(f"{ast.unparse(statement)!r} has no use: give it a name, as y = …, or leave it out")
    if not isinstance(last, ast.Expr):
        raise ValueError(f"{ast.unparse(last)!r} ends the formula, expected what it computes")
    result = reader.read(last.value)
    if reader.unused:
        raise ValueError(f"{min(reader.unused)} is not used")
    if result < len(language.inputs):
        raise ValueError(f"{ast.unparse(last)!r} is an input, expected what is computed from inputs")
    program = compact(language, tuple(reader.nodes[: result - len(language.inputs) + 1]))
    check(language, program)
    return program


class _Reader:
    """Reads expressions into nodes; equal ones are one."""

    def __init__(self, language: Language):
        self.language = language
        self.names = {name: i for i, name in enumerate(language.inputs)}
        self.nodes: list[Node] = []
        self.unused: set[str] = set()
        self._calls = collections.defaultdict(list)  # name of a function -> operators that are written so
        for name in language.operators:
            if "(" in (text := OPERATORS[name].formula) and text[0].isalpha():
                self._calls[text.partition("(")[0]].append(name)

    def type_of(self, i: int) -> str:
        return self.language.type_of(self.nodes, i)

    def node(self, operator: str, *arguments: int, value: float = 0.0) -> int:
        if operator not in self.language.operators:
            text = OPERATORS[operator].formula.format(*"xy")
            raise ValueError(f"{text} is nothing that this language has")
        _check_types(operator, [self.type_of(x) for x in arguments])
        node = Node(operator, arguments, value)
        is_random = operator in RANDOM
        if node not in self.nodes or is_random:
            self.nodes.append(node)
            return len(self.language.inputs) + len(self.nodes) - 1
        return len(self.language.inputs) + self.nodes.index(node)

    def read(self, expression: ast.expr) -> int:
        is_number = lambda value: not isinstance(value, bool) and abs(value) <= LIMIT
        match expression:
            case ast.Constant(value=int() | float() as value) if is_number(value):
                return self.node("Constant", value=float(value))
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)) if is_number(value):
                return self.node("Constant", value=-float(value))
            case ast.Name(id=name):
                if name not in self.names:
                    hint = did_you_mean(name, self.names) or f": there are {', '.join(self.names)}"
                    raise ValueError(f"{name!r} is no name{hint}")
                self.unused.discard(name)
                return self.names[name]
            case ast.BinOp(left=ast.BinOp(left=x, op=ast.Sub(), right=y), op=ast.Pow(), right=ast.Constant(value=2)):
                return self.node("L2Distance", self.read(x), self.read(y))
            case ast.BinOp(left=x, op=ast.Pow(), right=ast.Constant(value=2)):
                return self.node("DotProduct", one := self.read(x), one)
            case ast.BinOp(left=x, op=op, right=y) if type(op) in _INFIX:
                return self.node(_INFIX[type(op)], self.read(x), self.read(y))
            case ast.Subscript(value=x, slice=y):
                return self.node("SelectList", self.read(x), self.read(y))
            case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]):
                return self.call(name, [self.read(x) for x in arguments])
        hint = ": squares are **2" if isinstance(expression, ast.BinOp) else ""
        if isinstance(expression, ast.UnaryOp):
            hint = ": write 0 - x for -x"
        if isinstance(expression, ast.Constant) and type(expression.value) in (int, float):
            hint = f": numbers are at most {LIMIT:g} in size"
        raise ValueError(f"{ast.unparse(expression)!r} is nothing that this language has{hint}")

    def call(self, name: str, arguments: list[int]) -> int:
        if name not in self._calls:
            hint = did_you_mean(name, self._calls) or f": there are {', '.join(self._calls)}"
            raise ValueError(f"{name!r} is no operator{hint}")
        types = "".join(self.type_of(x) for x in arguments)
        fits = [one for one in self._calls[name] if OPERATORS[one].arguments == types]
        return self.node((fits or self._calls[name])[0], *arguments)


_Y = "y = r + gamma * max(Q_targ(s_next)); "
FORMULAS = {
    "dqn": _Y + "(Q(s)[a] - y)**2",
    "double_dqn": "(Q(s)[a] - (r + gamma * Q_targ(s_next)[argmax(Q(s_next))]))**2",
    "dqn_reg": _Y + "(Q(s)[a] - y)**2 + 0.1 * Q(s)[a]",
    "dqn_clipped": _Y + "max(Q(s)[a], (Q(s)[a] - y)**2 + y) + max(Q(s)[a] - y, gamma * max(Q_targ(s_next))**2)",
}
