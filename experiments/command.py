"""The command `frodo`: `frodo online --env=toy/catch` is `python -m experiments.online --env=toy/catch`."""

import ast
import contextlib
import difflib
import runpy
import sys
from pathlib import Path

FIRST = ("online", "discover", "evolve", "adapt", "evaluate", "compare", "report")


def programs() -> dict[str, str]:
    """Return the programs with the first line of each; nothing of them is imported."""
    found = {}
    for path in sorted(Path(__file__).parent.glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if any(isinstance(node, ast.If) and "__name__" in ast.unparse(node.test) for node in tree.body):
            found[path.stem] = (ast.get_docstring(tree) or "").partition("\n")[0]
    return {name: found[name] for name in [*FIRST, *(name for name in found if name not in FIRST)]}


def main() -> None:
    """Run the program that the first argument names; without one, list them."""
    known, name = programs(), sys.argv[1] if len(sys.argv) > 1 else "--help"
    if name in known:
        sys.argv[:2] = [f"frodo {name}"]
        source = Path(__file__).with_name(f"{name}.py").read_text(encoding="utf-8")
        sys.modules["__main__"].__doc__ = ast.get_docstring(ast.parse(source))  # --help prints it
        runpy.run_module(f"{__package__}.{name}", run_name="__main__")
    elif name in ("--help", "-h", "help"):
        width = max(map(len, known))
        lines = [f"  {name:<{width}}  {line}" for name, line in known.items()]
        head = "frodo PROGRAM --flag=value ...; frodo PROGRAM --help says what its flags mean"
        with contextlib.suppress(BrokenPipeError):  # of head, say
            print("\n".join([head, "", *lines]), flush=True)
    else:
        near = difflib.get_close_matches(name, known, 1)
        hint = f" (did you mean {near[0]!r}?)" if near else ": frodo --help lists them"
        print(f"error: {name!r} is no program{hint}", file=sys.stderr)
        sys.exit(2)
