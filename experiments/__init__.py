"""Programs that a person starts, one module each; what they share is in the packages.

They know the rules of somebody's own that FRODO_PLUGINS names: a file, such as my_rule.py, or a module, or several with
commas between, each of which calls `frodo.register_rule`.
"""

import importlib.util
import os
import sys
from pathlib import Path


def load_plugins() -> None:
    """Import what FRODO_PLUGINS names.

    Raises:
      ImportError: naming the file or module that there is none of.
      ValueError: as `frodo.register_rule`.
    """
    for name in filter(None, os.environ.get("FRODO_PLUGINS", "").split(",")):
        if not name.endswith(".py"):
            importlib.import_module(name)
            continue
        spec = importlib.util.spec_from_file_location(f"frodo_plugin_{Path(name).stem}", name)
        if spec is None or spec.loader is None or not Path(name).is_file():
            raise ImportError(f"{name} is no file")
        sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)


try:
    load_plugins()
except (ImportError, ValueError) as error:
    print(f"error: FRODO_PLUGINS: {error}", file=sys.stderr)
    sys.exit(2)
