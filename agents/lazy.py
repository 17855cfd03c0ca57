"""Packages that are loaded by their first use: rlax brings TensorFlow Probability, a third of `import frodo`."""

import importlib.util
import sys
from types import ModuleType


def lazily(name: str) -> ModuleType:
    """Return a module that is loaded by the first use of one of its names."""
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.find_spec(name)
    assert spec is not None and spec.loader is not None
    spec.loader = loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    loader.exec_module(module)
    return module


rlax = lazily("rlax")
