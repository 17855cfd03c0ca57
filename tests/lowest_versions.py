"""The lowest versions that setup.py allows, extras included, as constraints for pip: for `make test-lowest`."""

import ast
import re
from pathlib import Path

SETUP = Path(__file__).parents[1] / "setup.py"


def requirements() -> list[str]:
    """Return every requirement in setup.py, those of its extras included, but for the package itself."""
    nodes = ast.walk(ast.parse(SETUP.read_text(encoding="utf-8")))
    call = next(node for node in nodes if isinstance(node, ast.Call) and ast.unparse(node.func) == "setup")
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    name, always, extras = (ast.literal_eval(given[key]) for key in ("name", "install_requires", "extras_require"))
    return [line for group in (always, *extras.values()) for line in group if not line.startswith(f"{name}[")]


def lowest(requirement: str) -> str:
    """Return `name==1.2` for `name[extra]>=1.2,<3; marker`; a ValueError names a requirement without a lower bound."""
    match = re.match(r"([\w-]+)(?:\[\w+\])?>=([\d.]+)(?=[,;]|$)", requirement)
    if match is None:
        raise ValueError(f"requirement {requirement!r} in setup.py has no lower bound: expected name>=version")
    return "==".join(match.groups())


if __name__ == "__main__":
    print(*sorted(set(map(lowest, requirements()))), sep="\n")
