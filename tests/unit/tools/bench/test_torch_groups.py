"""PyTorch's process groups as candidates."""

import sys

import numpy
import pytest

pytest.importorskip("click")
pytest.importorskip("rich")

from click.testing import CliRunner

from hpccoll.cli import main
from hpccoll.measure.cases import make
from hpccoll.tools.bench import torch_groups


def bench(*words):
    return CliRunner().invoke(main, ["bench", *words])


def test_without_pytorch_one_line_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    ran = bench("allreduce", "--peers")
    assert ran.exit_code == 2 and ran.stdout == ""
    assert ran.stderr.startswith("hpccoll: bench: --peers requires PyTorch; run pip")
    assert ran.stderr.count("\n") == 1


@pytest.mark.parametrize("collective, dtype, op, in_place, problem", [
    ("allreduce", "f4", "sum", False, ""), ("allreduce", "i8", "max", True, ""),
    ("barrier", "f4", "sum", False, ""), ("scan", "f4", "sum", False, "PyTorch has no scan"),
    ("bcast", "F", "sum", False, "Gloo has no complex64"),
    ("reduce", "i4", "bxor", False, "PyTorch has no operator bxor"),
    ("allgather", "f4", "sum", True, "PyTorch has no allgather in place")])
def test_what_pytorch_can_serve(collective, dtype, op, in_place, problem):
    case = make(collective, 4, 1024, numpy.dtype(dtype), op=op, in_place=in_place)
    assert torch_groups.objection(case) == problem
