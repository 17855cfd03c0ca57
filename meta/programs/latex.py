r"""Programs as LaTeX: (Q(s)[a] - r)**2 is \left(Q(s, a) - r\right)^2."""

from meta.programs.language import OPERATORS, Language, Node, Program, statements

SYMBOLS = {
    "gamma": r"\gamma",
    "s_next": "s'",
    "v": "v(s)",
    "v_next": "v(s')",
    "pi": r"\pi(a \mid s)",
    "mu": r"\mu(a \mid s)",
    "G_next": "G'",
}
BRACKETED = {"DotProduct": (0, 1), "L2Distance": (1,), "Add": (1,), "Subtract": (1,)}  # arguments, where they are sums


class _Sum(str):
    """A text that has brackets as the argument of a product, or after a minus."""


def to_latex(language: Language, program: Program) -> str:
    """Write a program as LaTeX, for math mode; what is used more than once has a name, x_1, x_2, …"""

    def text(node: Node, parts: list[str]) -> str:
        if node.operator == "Constant":
            return f"{node.value:g}"
        for i in BRACKETED.get(node.operator, ()):
            parts[i] = rf"\left({parts[i]}\right)" if isinstance(parts[i], _Sum) else parts[i]
        found = OPERATORS[node.operator].latex.format(*parts)
        return _Sum(found) if node.operator in ("Add", "Subtract") else found

    return r",\quad ".join(
        statements(language, program, [SYMBOLS.get(x, x) for x in language.inputs], text, "x_{{{}}}")
    )
