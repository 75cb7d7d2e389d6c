"""What NCCL has of MPI's types and operators, and who can take part."""

import subprocess
import sys

import numpy
import pytest

from hpccoll.arrays import nccl
from hpccoll.arrays.nccl import Member, lacks, obstacle, version
from hpccoll.testing.device import installed


@pytest.mark.parametrize("method, operator, dtype, why", [
    ("allreduce", "sum", "f4", ""), ("allreduce", "max", "u8", ""), ("bcast", "", None, ""),
    ("allreduce", "sum", "i2", "elements of type int16"),
    ("allreduce", "sum", "c8", "elements of type complex64"),
    ("reduce", "band", "i4", "no operator 'band', only sum, prod, max, min"),
    ("allreduce", "user", "f4", "no operator 'user'"),
    ("scan", "sum", "f4", "no scan"), ("allgatherv", "", None, "no allgatherv"),
    ("allreduce", "sum", ">f4", "elements of type >f4")])
def test_what_it_lacks(method, operator, dtype, why):
    found = lacks(method, operator, None if dtype is None else numpy.dtype(dtype))
    assert found == "" if not why else why in found


@pytest.mark.parametrize("members, why", [
    ([("a", "0"), ("a", "1"), ("b", "0")], ""),
    ([("a", "0"), ("b", "0"), ("a", "0")], "ranks 0,2 share GPU 0 of a"),
    ([("a", "0"), ("a", "1", "2.9.0")], "2.27.3 on rank 0; 2.9.0 on rank 1"),
    ([("a", "0"), ("a", "1", "", "no driver"), ("a", "2", "", "x")],
     "rank 1 (and 1 more): no driver")])
def test_who_keeps_ranks_from_it(members, why):
    found = obstacle([Member(*one, *("2.27.3",) * (len(one) == 2)) for one in members])
    assert found == "" if not why else why in found


@pytest.mark.parametrize("number, text", [(22703, "2.27.3"), (21805, "2.18.5"), (2708, "2.7.8")])
def test_version(monkeypatch, number, text):
    with installed(True) as cupy:
        monkeypatch.setattr(cupy.cuda.nccl, "get_version", lambda: number)
        assert version() == (text, "")


def test_why_there_is_none(monkeypatch):
    assert version() == ("", "CuPy is not installed")
    with installed(True) as cupy:
        monkeypatch.setattr(cupy.cuda.nccl, "available", False)
        assert "pip install nvidia-nccl-cu12" in version()[1]


def test_programs_without_device_arrays_load_nothing_of_it():
    program = ("import sys, numpy, hpccoll; from mpi4py import MPI;"
               "comm = hpccoll.Comm(MPI.COMM_WORLD); x = numpy.ones(4);"
               "comm.Allreduce(MPI.IN_PLACE, x);"
               "exec('with comm.using(allreduce=\"ring\"): comm.Allreduce(MPI.IN_PLACE, x)');"
               "print([name for name in ('cupy', 'hpccoll.runtime.nccl', 'hpccoll.comm.nccl',"
               "'hpccoll.guard.queued') if name in sys.modules])")
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True,
                         timeout=60, check=True)
    assert ran.stdout.strip() == "[]"
    assert nccl.OPERATORS
