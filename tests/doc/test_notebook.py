"""The notebook runs from first to last cell, and is kept without outputs, which grow old."""

import json
import os

import pytest
from doc.conftest import BIN
from launch import ROOT, mpiexec, settings

NOTEBOOK = ROOT / "examples" / "tour.ipynb"
CELLS = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]


def source(cell):
    return "".join(cell["source"])


def test_it_is_kept_without_outputs():
    code = [cell for cell in CELLS if cell["cell_type"] == "code"]
    assert len(code) > 5
    assert not any(cell["outputs"] or cell["execution_count"] for cell in code)
    assert max(len(line) for cell in code for line in source(cell).splitlines()) <= 100


@pytest.mark.parametrize("word", ["as_text", "verify", "simulate", "mpiexec", "--draw"])
def test_it_shows_each_thing_that_a_schedule_is_for(word):
    assert any(word in source(cell) for cell in CELLS if cell["cell_type"] == "code")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_it_runs(monkeypatch, tmp_path):
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    if mpiexec(BIN) is None:
        pytest.skip("there is no mpiexec in this environment")
    made = settings(BIN)
    for name in set(os.environ) - set(made):
        monkeypatch.delenv(name)
    for name, value in {**made, "IPYTHONDIR": str(tmp_path), "JUPYTER_PLATFORM_DIRS": "1",
                        "TMPDIR": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3",
                            resources={"metadata": {"path": str(tmp_path)}}).execute()
    printed = "".join(output.get("text", "") for cell in notebook.cells
                      for output in cell.get("outputs", ()))
    assert "proved" in printed and "2 ranks: the sum is 3" in printed
    pictures = [output for cell in notebook.cells for output in cell.get("outputs", ())
                if "image/png" in output.get("data", {})]
    assert len(pictures) == 2
