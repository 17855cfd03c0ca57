"""The notebooks: tutorials compile and import what a reader has; by the long test all run, and show their pictures."""

import ast
import base64
import os
import sys
from pathlib import Path

import pytest

nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "docs/tutorials").glob("*.ipynb"))
EXAMPLE = ROOT / "examples/discovered.ipynb"
SHORT = """
from experiments.analyses import figures, probes
from frodo import presets
figures.NUM_STEPS, figures.WARM_UP, figures.NUM_TRAJECTORIES = 20, 5, 2
figures.NUM_PROBE_STEPS, figures.NUM_COLUMNS, probes.ROUNDS, probes.UPDATES = 20, 10, 2, 2
catch = presets.catch()
presets.catch = lambda: catch.replace(num_updates=1, batch_size=4)
"""  # what makes the example's runs short
ALLOWED = {"frodo", "jax", "numpy", "matplotlib"}
INSTALL = "%pip install --quiet frodo-rl"
MAX_PICTURE, MAX_SECONDS = 60_000, 180  # bytes; of two idle cores, and busy ones take longer
named = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def code_of(path):
    """Return the source of each code cell, with `pass` for the line that installs."""
    cells = nbformat.read(path, as_version=4).cells
    return [cell.source.replace(INSTALL, "pass") for cell in cells if cell.cell_type == "code"]


def pictures(outputs):
    return [base64.b64decode(x.data["image/png"]) for x in outputs if "image/png" in x.get("data", {})]


@named
def test_code_compiles_and_imports_only_what_a_reader_has(path):
    cells = code_of(path)
    assert 5 <= len(cells) <= 10
    for code in cells:
        for node in ast.walk(ast.parse(code, str(path))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) else []
            assert {name.partition(".")[0] for name in names} <= ALLOWED, names


@named
def test_the_first_code_cell_installs_where_the_package_is_missing(path):
    first = next(cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code")
    assert first.startswith(
        f"try:\n    import frodo\nexcept ImportError:  # as in Colab\n    {INSTALL}\n    import frodo\n"
    )
    installed = first.replace(INSTALL, "raise AssertionError")  # here there is nothing to install
    exec(compile(installed, str(path), "exec"), {})


@named
def test_what_is_kept_is_whole_and_small(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell.outputs]
    assert not [x for x in outputs if x.output_type == "error" or x.get("name") == "stderr"]
    assert str(ROOT) not in nbformat.writes(notebook)
    assert pictures(code[-1].outputs) and all(len(x) <= MAX_PICTURE for x in pictures(outputs))
    words = sum(len(cell.source.split()) for cell in notebook.cells if cell.cell_type == "markdown")
    assert 300 <= words <= 600


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("path", [*NOTEBOOKS, EXAMPLE], ids=lambda path: path.stem)
def test_a_notebook_runs(path, tmp_path, monkeypatch):
    if path == EXAMPLE and not os.environ.get("DISCO103_WEIGHTS"):
        pytest.skip("DISCO103_WEIGHTS does not name the published weights, which the notebook would download")
    monkeypatch.setenv("PYTHONPATH", str(ROOT) + os.pathsep + os.environ.get("PYTHONPATH", ""))
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent) + os.pathsep + os.environ["PATH"])
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("NOTEBOOK_SCALE", "0.004")
    notebook = nbformat.read(path, as_version=4)
    if path == EXAMPLE:
        notebook.cells.insert(0, nbformat.v4.new_code_cell(SHORT))
    nbclient.NotebookClient(notebook, timeout=3 * MAX_SECONDS, kernel_name="python3").execute(cwd=str(tmp_path))
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert pictures(code[-1].outputs)
    assert path != EXAMPLE or len(pictures([output for cell in code for output in cell.outputs])) == 6
