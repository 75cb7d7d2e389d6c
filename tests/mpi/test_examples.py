"""Every example gives the right answer at this number of ranks, on hpccoll's collectives."""

import runpy
import sys
from pathlib import Path

import pytest
from mpi4py import MPI

import hpccoll

#: Those that train are programs with arguments and threads of their own: tests/doc runs them.
EXAMPLES = sorted(path for path in (Path(__file__).parents[2] / "examples").glob("*.py")
                  if not path.stem.startswith("train_"))


@pytest.mark.mpi
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example(path, monkeypatch):
    monkeypatch.setattr(MPI, "COMM_WORLD", hpccoll.Comm(MPI.COMM_WORLD))
    monkeypatch.setattr(sys, "argv", [str(path)])
    runpy.run_path(str(path), run_name="__main__")  # a wrong answer leaves by SystemExit
