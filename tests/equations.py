"""What a function computes, before compilation: the equations of its jaxpr."""

from collections.abc import Collection, Iterator
from typing import Any

import jax


def equations(jaxpr: Any, but_of: Collection[str] = ()) -> Iterator[Any]:
    """Yield those of a jaxpr and of all that it calls, but of what these primitives call."""
    for eqn in jaxpr.eqns:
        yield eqn
        for x in jax.tree.leaves(list(eqn.params.values()), is_leaf=lambda x: hasattr(x, "eqns")):
            inner = getattr(x, "jaxpr", x if hasattr(x, "eqns") else None)
            if inner and eqn.primitive.name not in but_of:
                yield from equations(inner, but_of)
