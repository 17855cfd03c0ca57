"""The lowest versions that pyproject.toml allows, extras included, as constraints for pip: for `make test-lowest`."""

import re
import tomllib
from pathlib import Path
from typing import Any

PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"


def project() -> dict[str, Any]:
    """Return the metadata of the package."""
    return tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]


def requirements() -> list[str]:
    """Return every requirement in pyproject.toml, those of its extras included, but for the package itself."""
    given = project()
    groups = (given["dependencies"], *given["optional-dependencies"].values())
    return [line for group in groups for line in group if not line.startswith(f"{given['name']}[")]


def lowest(requirement: str) -> str:
    """Return `name==1.2` for `name[extra]>=1.2,<3; marker`; a ValueError names a requirement without a lower bound."""
    match = re.match(r"([\w-]+)(?:\[\w+\])?>=([\d.]+)(?=[,;]|$)", requirement)
    if match is None:
        raise ValueError(f"requirement {requirement!r} in pyproject.toml has no lower bound: expected name>=version")
    return "==".join(match.groups())


if __name__ == "__main__":
    print(*sorted(set(map(lowest, requirements()))), sep="\n")
