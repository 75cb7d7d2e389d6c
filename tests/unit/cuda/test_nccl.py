"""What NCCL has of MPI's types and operators, and its version."""

import subprocess
import sys

import numpy
import pytest

from hpccoll.cuda import nccl
from hpccoll.cuda.nccl import nccl_lacks, nccl_version
from support.gpu.device import installed


@pytest.mark.parametrize("method, operator, dtype, why", [
    ("allreduce", "sum", "f4", ""), ("allreduce", "max", "u8", ""), ("bcast", "", None, ""),
    ("allreduce", "sum", "i2", "elements of type int16"),
    ("allreduce", "sum", "c8", "elements of type complex64"),
    ("reduce", "band", "i4", "no operator 'band', only sum, prod, max, min"),
    ("allreduce", "user", "f4", "no operator 'user'"),
    ("scan", "sum", "f4", "no scan"), ("allgatherv", "", None, ""), ("alltoallw", "", None, ""),
    ("reduce_scatter", "sum", "f4", "no reduce_scatter"),
    ("allreduce", "sum", ">f4", "elements of type >f4")])
def test_what_it_lacks(method, operator, dtype, why):
    found = nccl_lacks(method, operator, None if dtype is None else numpy.dtype(dtype))
    assert found == "" if not why else why in found


@pytest.mark.parametrize("number, text", [(22703, "2.27.3"), (21805, "2.18.5"), (2708, "2.7.8")])
def test_version(monkeypatch, number, text):
    with installed(True) as cupy:
        monkeypatch.setattr(cupy.cuda.nccl, "get_version", lambda: number)
        assert nccl_version() == (text, "")


def test_why_there_is_none(monkeypatch):
    assert nccl_version() == ("", "CuPy is not installed")
    with installed(True) as cupy:
        monkeypatch.setattr(cupy.cuda.nccl, "available", False)
        assert "pip install nvidia-nccl-cu12" in nccl_version()[1]


def test_programs_without_device_arrays_load_nothing_of_it():
    program = ("import sys, numpy, hpccoll; from mpi4py import MPI;"
               "comm = hpccoll.Comm(MPI.COMM_WORLD); x = numpy.ones(4);"
               "comm.Allreduce(MPI.IN_PLACE, x);"
               "exec('with comm.using(allreduce=\"ring\"): comm.Allreduce(MPI.IN_PLACE, x)');"
               "print([name for name in ('cupy', 'hpccoll.cuda.nccl_group',"
               "'hpccoll.cuda.nccl_runner', 'hpccoll.guard.stream_calls') if name in sys.modules])")
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True,
                         timeout=60, check=True)
    assert ran.stdout.strip() == "[]"
    assert nccl.OPERATORS
