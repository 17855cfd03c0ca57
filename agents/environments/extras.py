"""What the adapters to packages that are extras share: how these are imported, and their states typed."""

import importlib
from typing import Any

import jax
import jax.numpy as jnp

from toy_envs.base import Array


def import_extra(name: str, *modules: str) -> Any:
    """Import the package of an extra and modules of it; an ImportError says how to install what is missing."""
    try:
        package = importlib.import_module(name)
        for module in modules:
            importlib.import_module(f"{name}.{module}")
    except ImportError as error:
        raise ImportError(f"{name}/... needs {name} ({error}): pip install 'frodo-rl[{name}]'") from None
    return package


def strongly_typed(x: Any) -> Array:
    """Return an array whose type does not follow that of what it meets; resets hold Python's numbers."""
    x = jnp.asarray(x)
    return jax.lax.convert_element_type(x, x.dtype)
