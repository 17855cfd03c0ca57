"""The notebook runs from its first cell to its last, in a kernel of its own, with short runs."""

import os
from pathlib import Path

import pytest

nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")

ROOT = Path(__file__).parents[1]
SMALL = """
from experiments.analyses import figures, probes
from frodo import presets
figures.NUM_STEPS, figures.WARM_UP, figures.NUM_TRAJECTORIES = 20, 5, 2
figures.NUM_PROBE_STEPS, figures.NUM_COLUMNS, probes.ROUNDS, probes.UPDATES = 20, 10, 2, 2
catch = presets.catch()
presets.catch = lambda: catch.replace(num_updates=1, batch_size=4)
"""


@pytest.mark.long
def test_the_notebook_runs(tmp_path, monkeypatch):
    if not os.environ.get("DISCO103_WEIGHTS"):
        pytest.skip("DISCO103_WEIGHTS does not name the published weights, which the notebook would download")
    monkeypatch.setenv("NOTEBOOK_SCALE", "0.004")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    notebook = nbformat.read(ROOT / "examples/discovered.ipynb", as_version=4)
    notebook.cells.insert(0, nbformat.v4.new_code_cell(SMALL))
    nbclient.NotebookClient(notebook, timeout=600, kernel_name="python3").execute(cwd=str(tmp_path))
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    pictures = [x for output in outputs if output.output_type == "execute_result" for x in output.data]
    assert pictures.count("image/png") == 6
