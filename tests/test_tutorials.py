"""Tests the notebooks of docs/tutorials: short, saved with their outputs, and they run."""

import json
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "docs" / "tutorials"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
MAX_CELLS = 10
LIMIT_S = 300
"""Of one cell, on a machine with other work."""


@pytest.mark.parametrize("path", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])
def test_notebook_is_short_and_has_outputs(path):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    assert len(cells) <= MAX_CELLS
    first = "".join(cells[0]["source"])
    assert first.startswith("# ")
    assert "Afterwards you can" in first
    outputs = [output for cell in cells for output in cell.get("outputs", ())]
    assert any("text/html" in output.get("data", {}) for output in outputs)
    assert not [o for o in outputs if o["output_type"] == "error" or o.get("name") == "stderr"]
    assert len(path.read_bytes()) < 150_000


@pytest.mark.extended
@pytest.mark.timeout(len(NOTEBOOKS) * LIMIT_S)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])
def test_notebook_runs(path, tmp_path):
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    where = {"metadata": {"path": str(tmp_path)}}
    notebook = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(notebook, timeout=LIMIT_S, resources=where).execute()
