"""Programs of Co-Reyes et al. 2021, Appendix A, one transition and one node after the other, in plain NumPy."""

import numpy as np

LIMIT = 1e10  # of results


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max())
    return e / e.sum()


def divide(x: float, y: float) -> float:
    return x / (max(y, 1e-10) if y >= 0 else min(y, -1e-10))


ON_NUMBERS = {  # results are clipped
    "Add": lambda x, y: x + y,
    "Subtract": lambda x, y: x - y,
    "DotProduct": lambda x, y: x * y,
    "Div": divide,
    "L2Distance": lambda x, y: (x - y) ** 2,
    "Max": max,
    "Min": min,
    "Log": lambda x: np.log(abs(x) + 1e-12),
    "Exp": lambda x: np.exp(min(x, np.log(LIMIT))),
    "Abs": abs,
    "MultiplyTenth": lambda x: x / 10,
}
OPERATORS = ON_NUMBERS | {
    "StateDotProduct": lambda x, y: sum(x[i] * y[i] for i in range(len(x))),
    "StateL2Distance": lambda x, y: sum((x[i] - y[i]) ** 2 for i in range(len(x))),
    "MaxList": max,
    "MinList": min,
    "MeanList": lambda x: sum(x) / len(x),
    "VarianceList": lambda x: sum((xi - sum(x) / len(x)) ** 2 for xi in x) / len(x),
    "SelectList": lambda x, action: x[action],
    "ArgMaxList": lambda x: int(np.argmax(x)),
    "Softmax": softmax,
    "KLDiv": lambda p, q: sum(pi * np.log(pi / qi) for pi, qi in zip(p, q, strict=True) if pi > 0),
    "Entropy": lambda p: -sum(pi * np.log(pi) for pi in p if pi > 0),
}


def evaluate(nodes, names, inputs, lists, normal, uniform) -> np.ndarray:
    """nodes: (operator, arguments, value); lists: (network, state) -> [N, A]; returns the last node's result, [N]."""
    return np.array(
        [
            _of_one(
                nodes,
                names,
                {name: x[n] for name, x in inputs.items()},
                {name: x[n] for name, x in lists.items()},
                normal,
                uniform,
            )
            for n in range(len(inputs["r"]))
        ]
    )


def _of_one(nodes, names, inputs, lists, normal, uniform) -> float:
    values = [inputs[name] for name in names]
    drawn = 0
    for operator, arguments, value in nodes:
        if operator in ("Q", "QTarget"):
            result = lists[operator, names[arguments[0]]]
        elif operator == "Constant":
            result = value
        elif operator in ("Normal", "Uniform"):
            result = {"Normal": normal, "Uniform": uniform}[operator][drawn]
            drawn += 1
        else:
            result = OPERATORS[operator](*(values[x] for x in arguments))
            if operator in ON_NUMBERS:
                result = min(max(result, -LIMIT), LIMIT)
        values.append(result)
    return values[-1]
