r"""Programs as LaTeX: (Q(s)[a] - r)**2 is \left(Q(s, a) - r\right)^2."""

import collections

from meta.programs.language import Language, Program, compact

SYMBOLS = {
    "gamma": r"\gamma",
    "s_next": "s'",
    "v": "v(s)",
    "v_next": "v(s')",
    "pi": r"\pi(a \mid s)",
    "mu": r"\mu(a \mid s)",
    "G_next": "G'",
}
TEMPLATES = {  # none of which needs parentheses around its arguments
    "Q": "Q({})",
    "QTarget": r"Q_{{\mathrm{{targ}}}}({})",
    "Normal": r"\mathcal{{N}}(0, 1)",
    "Uniform": r"\mathcal{{U}}(0, 1)",
    "Div": r"\frac{{{}}}{{{}}}",
    "Max": r"\max({}, {})",
    "Min": r"\min({}, {})",
    "Log": r"\log({})",
    "Exp": r"\exp({})",
    "Abs": r"\left|{}\right|",
    "MultiplyTenth": r"0.1 \cdot ({})",
    "L2Distance": r"\left({} - {}\right)^2",
    "StateDotProduct": r"{}^\top {}",
    "StateL2Distance": r"\left\|{} - {}\right\|^2",
    "MaxList": r"\max_{{a'}} {}[a']",
    "MinList": r"\min_{{a'}} {}[a']",
    "MeanList": r"\mathrm{{mean}}_{{a'}}\, {}[a']",
    "VarianceList": r"\mathrm{{var}}_{{a'}}\, {}[a']",
    "SelectList": "{}[{}]",
    "ArgMaxList": r"\arg\max_{{a'}} {}[a']",
    "Softmax": r"\mathrm{{softmax}}({})",
    "KLDiv": r"\mathrm{{KL}}({} \,\|\, {})",
    "Entropy": r"\mathcal{{H}}({})",
}
SUMS = {"Add": "{} + {}", "Subtract": "{} - {}"}  # around which a product has parentheses


def to_latex(language: Language, program: Program) -> str:
    """Write a program as LaTeX, for math mode; what is used more than once has a name, x_1, x_2, …"""
    program = compact(language, program)
    uses = collections.Counter(x for node in program for x in node.arguments)
    texts, is_sum = [SYMBOLS.get(name, name) for name in language.inputs], [False] * len(language.inputs)
    named: list[str] = []
    for i, node in enumerate(program, start=len(texts)):
        parts = [texts[x] for x in node.arguments]
        in_brackets = [
            rf"\left({text}\right)" if is_sum[x] else text for text, x in zip(parts, node.arguments, strict=True)
        ]
        if node.operator == "Constant":
            text = f"{node.value:g}"
        elif node.operator in SUMS:
            text = SUMS[node.operator].format(parts[0], in_brackets[1])
        elif node.operator == "DotProduct":
            text = r"{} \cdot {}".format(*in_brackets)
        elif node.operator == "L2Distance":
            text = TEMPLATES["L2Distance"].format(parts[0], in_brackets[1])
        else:
            text = TEMPLATES[node.operator].format(*parts)
        own_is_sum = node.operator in SUMS
        if uses[i] > 1 and node.operator not in ("Constant", "Q", "QTarget"):
            named.append(f"x_{{{len(named) + 1}}} = {text}")
            text, own_is_sum = f"x_{{{len(named)}}}", False
        texts.append(text)
        is_sum.append(own_is_sum)
    return r",\quad ".join([*named, texts[-1]])
