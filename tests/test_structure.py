"""Imports go one way between packages and between their rooms, programs stand alone, and modules are short."""

import ast
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LAYERS = ("toy_envs", "agents", "meta", "frodo", "experiments")  # each imports itself and those before it
MODULES = sorted(path.relative_to(ROOT) for layer in LAYERS for path in (ROOT / layer).rglob("*.py"))


def is_program(path: Path) -> bool:
    """Whether a module is one that a person starts: those lie in experiments/ itself."""
    return path.parts[:-1] == ("experiments",) and '__name__ == "__main__"' in (ROOT / path).read_text()


PROGRAMS = {f"experiments.{path.stem}" for path in MODULES if is_program(path)}


def imported(source: str) -> set[str]:
    """Every module that a module imports, wherever in it, and what it imports from one, by whole names."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "imports are absolute"
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
            names.add(str(node.module))
    return names


def test_imports_are_found_wherever_they_are():
    source = "import a.b as c, d\nfrom e.f import g\ndef x():\n  if y:\n    from h import i\n    import j"
    assert imported(source) == {"a.b", "d", "e.f", "e.f.g", "h", "h.i", "j"}


def test_every_layer_is_there():
    assert {path.parts[0] for path in MODULES} == set(LAYERS) and len(MODULES) > 20


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_imports_go_one_way(path):
    packages = {name.partition(".")[0] for name in imported((ROOT / path).read_text())}
    layer = LAYERS.index(path.parts[0])
    assert not packages & {*LAYERS[layer + 1 :], "tests"}
    assert "distrax" not in packages


def room(path: Path) -> str:
    """The room of its package that a module is in, "" for what all rooms share (in experiments: for programs)."""
    return path.parts[1] if len(path.parts) > 2 else ""


def rooms_imported(layer: str) -> dict[str, set[str]]:
    """The other rooms of its own package that each room imports; the front door, __init__.py, may import any."""
    paths = {path.with_suffix("").as_posix().replace("/", "."): path for path in MODULES if path.parts[0] == layer}
    found: dict[str, set[str]] = {room(path): set() for path in paths.values()}
    for path in paths.values():
        if path.parts[1:] != ("__init__.py",):
            found[room(path)] |= {room(paths[x]) for x in imported((ROOT / path).read_text()) if x in paths}
    return {name: others - {name} for name, others in found.items()}


@pytest.mark.parametrize("layer", LAYERS)
def test_inside_a_package_imports_go_one_way_from_room_to_room(layer):
    rooms = rooms_imported(layer)
    assert layer == "experiments" or not rooms.get("")
    while rooms:  # the rooms that import no other one of those that are left
        first = [name for name, others in rooms.items() if not others & rooms.keys()]
        assert first, f"each of these rooms imports another one of them: {sorted(rooms)}"
        rooms = {name: others for name, others in rooms.items() if name not in first}


def test_every_program_is_there():
    assert {"experiments.online", "experiments.discover", "experiments.report"} < PROGRAMS and len(PROGRAMS) > 10


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_no_module_imports_a_program(path):
    assert not imported((ROOT / path).read_text()) & PROGRAMS


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_a_module_fits_in_one_reading(path):
    text = (ROOT / path).read_text()
    assert len(text.splitlines()) <= (300 if path.parts[0] == "experiments" else 350)
    if is_program(path):  # it reads the command line, builds, runs and draws
        first = ast.parse(text).body[0]
        assert len(text.splitlines()) - (first.end_lineno or 0) <= 80


def test_the_tree_is_small():
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("no checkout of git")
    sizes = {name: (ROOT / name).stat().st_size for name in listed.stdout.split("\0") if (ROOT / name).is_file()}
    assert sum(sizes.values()) <= 8_000_000
    assert not {x: n for x, n in sizes.items() if n > 300_000 and not x.startswith("frodo/data/")}
