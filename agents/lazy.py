"""rlax, loaded by its first use: it brings TensorFlow Probability, a third of `import frodo`."""

import importlib
from typing import Any


class _Module:
    """A module that is imported when one of its names is asked for; of several threads all but one wait."""

    def __init__(self, name: str):
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self._name), name)


rlax = _Module("rlax")
