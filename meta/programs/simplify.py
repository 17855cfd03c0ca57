"""Programs as formulas that SymPy simplified, for reading: `2 * r + tenth(r)` is `21*r/10`.

They are simplified as formulas of real numbers. Where a program divides by 0, or a result is clipped, it differs.
"""

from importlib.util import find_spec
from typing import Any, NamedTuple

from meta.programs.language import OPERATORS, RANDOM, Language, Program, compact, to_formula
from meta.programs.latex import SYMBOLS, to_latex

NOT_NEGATIVE = ("VarianceList", "Entropy", "KLDiv", "StateL2Distance")


class Simplified(NamedTuple):
    """A formula as text, in Python's syntax, and as LaTeX, for math mode."""

    text: str
    latex: str


def try_to_simplify(language: Language, program: Program) -> Simplified | None:
    """Simplify a program, where SymPy is there and knows how; else return None."""
    try:
        return simplify(language, program) if find_spec("sympy") else None
    except Exception:  # whatever SymPy meets in a formula
        return None


def simplify(language: Language, program: Program) -> Simplified:
    """Simplify a program; terms of a loss without Q, which have no gradient, are left out.

    Raises:
      ModuleNotFoundError: if SymPy is not installed.
    """
    import sympy
    from sympy.core.function import AppliedUndef
    from sympy.printing.latex import LatexPrinter
    from sympy.printing.str import StrPrinter

    class Printer(StrPrinter):
        def _print_Function(self, expression: Any) -> str:
            name = expression.func.__name__
            name = name if isinstance(expression, AppliedUndef) else name.lower()
            return f"{name}({self.stringify(expression.args, ', ')})"

        _print_Abs = _print_Max = _print_Min = _print_Function

    class OwnLatexPrinter(LatexPrinter):
        def _print_Function(self, expression: Any, exp: Any = None) -> str:
            if not isinstance(expression, AppliedUndef):
                return super()._print_Function(expression, exp)
            name = expression.func.__name__.replace("_", r"\_")
            text = rf"\mathrm{{{name}}}({', '.join(map(self._print, expression.args))})"
            return text if exp is None else f"{text}^{{{exp}}}"

    expression, latex = _as_sympy(language, program, sympy)
    found = sympy.simplify(expression)
    if found.has(sympy.zoo, sympy.nan, sympy.oo):  # it divides by what is always 0
        return Simplified(to_formula(language, program), to_latex(language, program))
    if "Q(" in to_formula(language, program):
        moves = [term for term in sympy.Add.make_args(found) if any("Q(" in str(x) for x in term.free_symbols)]
        found = sympy.Add(*moves) if moves else found
    return Simplified(Printer().doprint(found), OwnLatexPrinter({"symbol_names": latex}).doprint(found))


def _as_sympy(language: Language, program: Program, sympy: Any) -> tuple[Any, dict[Any, str]]:
    """Return a program as SymPy's expression, and its symbols as LaTeX: inputs, draws, and numbers made of lists."""
    functions = {
        "Add": lambda x, y: x + y,
        "Subtract": lambda x, y: x - y,
        "DotProduct": lambda x, y: x * y,
        "Div": lambda x, y: x / y,
        "L2Distance": lambda x, y: (x - y) ** 2,
        "Max": sympy.Max,
        "Min": sympy.Min,
        "Log": lambda x: sympy.log(sympy.Abs(x)),
        "Exp": sympy.exp,
        "Abs": sympy.Abs,
        "MultiplyTenth": lambda x: x / 10,
    }
    known: dict[Any, str] = {}
    num_drawn = 0

    def symbol(text: str, latex: str, is_not_negative: bool = False) -> Any:
        found = sympy.Symbol(text, real=True, **{"nonnegative": True} if is_not_negative else {})
        known[found] = latex
        return found

    texts = [(name, SYMBOLS.get(name, name)) for name in language.inputs]
    numbers = [symbol(*text, text[0] == "gamma") for text in texts]
    for node in compact(language, program):
        operator, name = OPERATORS[node.operator], node.operator
        own = [texts[i] for i in node.arguments]
        text, latex = operator.formula.format(*(x for x, _ in own)), operator.latex.format(*(x for _, x in own))
        if name in RANDOM:
            num_drawn += 1
            text, latex = f"{name.lower()}_{num_drawn}", f"{latex}_{num_drawn}"
        if name == "Constant":
            number = sympy.Rational(repr(node.value))
        elif name in functions:
            number = functions[name](*(numbers[i] for i in node.arguments))
        elif operator.arguments in ("R", "RR"):  # a user-defined one
            number = sympy.Function(name, real=True)(*(numbers[i] for i in node.arguments))
        else:
            number = symbol(text, latex, name in NOT_NEGATIVE)
        numbers.append(number)
        texts.append((text, latex))
    return numbers[-1], known
