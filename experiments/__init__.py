"""Programs that a person starts, one module each; what they share is in the packages.

They know the user-defined rules that FRODO_PLUGINS names: a file, such as my_rule.py, or a module, or several with
commas between, each of which calls `frodo.register_rule`.
"""

import importlib
import os
import sys
from pathlib import Path

if sys.version_info < (3, 11):  # noqa: UP036 - in a checkout, where no installer has looked
    print("error: Python 3.11 or later is needed, this is " + sys.version.split()[0], file=sys.stderr)
    sys.exit(2)

try:
    for name in filter(None, os.environ.get("FRODO_PLUGINS", "").split(",")):
        if name.endswith(".py"):
            sys.path.insert(0, str(Path(name).parent.resolve()))
            name = Path(name).stem
        importlib.import_module(name)
except (ImportError, ValueError) as error:
    print(f"error: FRODO_PLUGINS: {error}", file=sys.stderr)
    sys.exit(2)
