"""What the operators of programs compute, and user-defined ones.

Operators are total: results and derivatives are finite for all arguments whose squares are. Results of arithmetic are
clipped to ±1e10.
"""

import inspect
import keyword
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from agents.types import Array
from meta.programs.language import DRIFTS, LIMIT, LOSSES, NUMERICAL, OPERATORS, TARGETS, Operator

_TINY = 1e-10  # the least magnitude of a divisor
_TINY_LOG = 1e-12

# Arithmetic on numbers, by the names of `language.OPERATORS`; of one argument, the second is ignored.
ARITHMETIC: dict[str, Callable[[Array, Array], Array]] = {
    "Add": lambda x, y: x + y,
    "Subtract": lambda x, y: x - y,
    "DotProduct": lambda x, y: x * y,
    "Div": lambda x, y: x / jnp.where(y < 0, jnp.minimum(y, -_TINY), jnp.maximum(y, _TINY)),
    "L2Distance": lambda x, y: (x - y) ** 2,
    "Max": lambda x, y: jnp.maximum(x, y),
    "Min": lambda x, y: jnp.minimum(x, y),
    "Log": lambda x, _: jnp.log(jnp.abs(x) + _TINY_LOG),
    "Exp": lambda x, _: jnp.exp(jnp.minimum(x, np.log(LIMIT))),
    "Abs": lambda x, _: jnp.abs(x),
    "MultiplyTenth": lambda x, _: 0.1 * x,
}
# Numbers made of lists, of probabilities by their logarithms, and of states.
OF_LISTS: dict[str, Callable[..., Any]] = {
    "MaxList": lambda x: jnp.max(x, axis=-1),
    "MinList": lambda x: jnp.min(x, axis=-1),
    "MeanList": lambda x: jnp.mean(x, axis=-1),
    "VarianceList": lambda x: jnp.var(x, axis=-1),
    "SelectList": lambda x, action: jnp.take_along_axis(x, action[:, None], axis=-1)[:, 0],
    "ArgMaxList": lambda x: jnp.argmax(x, axis=-1),
    "Softmax": lambda x: jax.nn.log_softmax(x),
    "Entropy": lambda log_p: -jnp.sum(jnp.exp(log_p) * log_p, axis=-1),
    "KLDiv": lambda log_p, log_q: jnp.sum(jnp.exp(log_p) * (log_p - log_q), axis=-1),
    "StateDotProduct": lambda x, y: jnp.sum(x * y, axis=-1),
    "StateL2Distance": lambda x, y: jnp.sum((x - y) ** 2, axis=-1),
}
CODES = {name: i for i, name in enumerate(("Load", *ARITHMETIC))}  # of the interpreter's instructions
REGISTRIES: tuple[dict[str, Any], ...] = (OPERATORS, ARITHMETIC, CODES, NUMERICAL)  # that an operator is added to
PROBED = np.array([-1e10, -100.0, -1.0, -1e-6, 0.0, 1e-6, 1.0, 100.0, 1e10], np.float32)


def arithmetic(name: str, x: Array, y: Array) -> Array:
    return jnp.clip(ARITHMETIC[name](x, y), -LIMIT, LIMIT)


def register_operator(name: str, function: Callable[..., Array], arguments: str = "R") -> None:
    """Make a user-defined operator known to formulas and searches of losses, targets and drifts.

    Register it before formulas and searches that use it. It has one or two numbers, and is written as `name(x)` or
    `name(x, y)`. Programs see what FRODO_PLUGINS names, as with `register_rule`.

    Args:
      name: of letters, digits and _.
      function: of one or two arrays of one shape, element by element, in `jax.numpy`. Its result and its derivatives
        have to be finite for all numbers up to 1e10 in size; results are clipped to that.
      arguments: types of the arguments, a letter each: "R" for one number, "RR" for two.
    Raises:
      ValueError: naming the operator, and what is taken, not known or not finite.
    """
    if not str(name).isidentifier() or keyword.iskeyword(name):
        raise ValueError(f"operator is {name!r}, expected a name of letters, digits and _, and no word of Python")
    inputs = {name for language in (LOSSES, TARGETS, DRIFTS) for name in language.inputs}
    if name in {*OPERATORS, *CODES, *inputs, *(one.formula.partition("(")[0] for one in OPERATORS.values())}:
        raise ValueError(f"operator is {name!r}, which is a name already")
    if arguments not in ("R", "RR"):
        raise ValueError(f"operator {name!r} has arguments {arguments!r}, expected 'R' for one number, 'RR' for two")
    try:
        inspect.signature(function).bind(*arguments)
    except (TypeError, ValueError):
        raise ValueError(f"operator {name!r} is not a function of {len(arguments)} arguments") from None
    _check(name, function, len(arguments))
    ARITHMETIC[name] = function if arguments == "RR" else lambda x, _: function(x)
    texts, latex = ", ".join(["{}"] * len(arguments)), name.replace("_", r"\_")
    OPERATORS[name] = Operator(arguments, "R", f"{name}({texts})", rf"\mathrm{{{{{latex}}}}}({texts})")
    CODES[name] = len(CODES)
    NUMERICAL[name] = None
    jax.clear_caches()  # interpreters that were compiled do not know it


def _check(name: str, function: Callable[..., Array], num_arguments: int) -> None:
    """Raise a ValueError where an operator, or one of its derivatives, is not finite, or not a number for each one."""
    points = [x.ravel() for x in np.meshgrid(*[PROBED] * num_arguments)]
    clipped = lambda *x: jnp.clip(function(*x), -LIMIT, LIMIT)
    result, backward = jax.vjp(clipped, *map(jnp.asarray, points))
    if result.shape != points[0].shape:
        raise ValueError(f"operator {name!r} makes {result.shape} of {points[0].shape}, expected a number for each one")
    for kind, found in (("result", [result]), ("derivative", backward(jnp.ones_like(result)))):
        bad = ~np.isfinite(np.stack(found)).all(axis=0)
        if bad.any():
            at = ", ".join(f"{x[bad][0]:g}" for x in points)
            raise ValueError(f"operator {name!r} has a {kind} at {at} that is not finite, expected it to be everywhere")
