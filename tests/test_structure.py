"""The direction of imports, and the length of modules."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LAYERS = ("toy_envs", "agents", "meta", "frodo", "experiments")  # each imports itself and those before it
MODULES = sorted(path.relative_to(ROOT) for layer in LAYERS for path in (ROOT / layer).rglob("*.py"))
MAX_LINES = 300


def imported(source: str) -> set[str]:
    """Every top-level package that a module imports, wherever in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "imports are absolute"
            names.add(str(node.module).partition(".")[0])
    return names


def test_imports_are_found_wherever_they_are():
    source = "import a.b as c, d\nfrom e.f import g\ndef x():\n  if y:\n    from h import i\n    import j"
    assert imported(source) == {"a", "d", "e", "h", "j"}


def test_every_layer_is_there():
    assert {path.parts[0] for path in MODULES} == set(LAYERS) and len(MODULES) > 20


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_imports_go_one_way(path):
    packages = imported((ROOT / path).read_text())
    layer = LAYERS.index(path.parts[0])
    assert not packages & {*LAYERS[layer + 1 :], "tests"}
    assert "distrax" not in packages


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_a_module_is_short(path):
    num_lines = len((ROOT / path).read_text().splitlines())
    assert num_lines <= MAX_LINES, f"{path} has {num_lines} lines, expected at most {MAX_LINES}"
