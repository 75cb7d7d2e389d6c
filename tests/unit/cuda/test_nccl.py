"""NCCL: members, blocks and calls."""

import subprocess
import sys

import numpy
import pytest

from hpccoll.cuda import nccl
from hpccoll.cuda.nccl import (
    Member,
    has_mps,
    introduce,
    nccl_lacks,
    nccl_version,
    obstacle,
    takes_turns,
)
from support.gpu.device import installed
from support.gpu.streams import Devices


# What NCCL has of MPI's types and operators, and its version
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


# Who can make an NCCL communicator
@pytest.mark.parametrize("members, why", [
    ([("a", "0"), ("a", "1"), ("b", "0")], ""),
    ([("a", "0"), ("b", "0"), ("a", "0")], "ranks 0,2 share GPU 0 of a"),
    ([("a", "0"), ("a", "1", "2.9.0")], "2.27.3 on rank 0; 2.9.0 on rank 1"),
    ([("a", "0", "2.32.3", True), ("a", "0", "2.32.3", True)], ""),
    ([("a", "0", "2.32.3", True), ("a", "0", "2.32.3", False)], "NCCL_MULTI_RANK_GPU_ENABLE=1"),
    ([("a", "0", "2.32.3", True), ("a", "0", "2.32.3", False)],
     "on all ranks; NCCL_MULTI_RANK_GPU_ENABLE is not 1 on rank 1"),
    ([("a", "0", "2.28.9", True), ("a", "0", "2.28.9", True)],
     "version 2.30, with NCCL_MULTI_RANK_GPU_ENABLE=1, on all ranks; NCCL is 2.28.9 on ranks 0-1"),
    ([("a", "0", "2.30.7", True), ("a", "0", "2.28.9", False)],
     "; NCCL is 2.28.9 on rank 1; NCCL_MULTI_RANK_GPU_ENABLE is not 1 on rank 1"),
    ([("a", "0", "2.32.3", True), ("a", "0", "2.32.3", True), ("b", "0", "2.32.3", False)],
     "NCCL_MULTI_RANK_GPU_ENABLE is not 1 on rank 2"),
    ([("a", "0"), ("a", "1", "", False, "no driver"), ("a", "2", "", False, "x")],
     "rank 1 (and 1 more): no driver")])
def test_who_keeps_ranks_from_it(members, why):
    found = obstacle([Member(*one, *("2.27.3",) * (len(one) == 2)) for one in members])
    assert found == "" if not why else why in found


def test_what_a_rank_says_of_itself(monkeypatch):
    with installed(True, Devices(2)) as cupy:
        told = introduce(cupy.cuda.Device(1))
        assert told[1:] == ("0000:01:00.0", "2.27.3", False, "", False)
        monkeypatch.setattr(cupy.cuda.runtime, "deviceGetPCIBusId", lambda device: 1 / 0)
        assert introduce(cupy.cuda.Device(1)).problem == "ZeroDivisionError: division by zero"
        monkeypatch.setattr(cupy.cuda.nccl, "available", False)
        assert "finds no NCCL" in introduce(cupy.cuda.Device(1)).problem


@pytest.mark.parametrize("number, enabled, shares", [
    ("2.30.7", "1", True), ("3.0.0", "1", True), ("2.9.8", "1", False), ("2.28.9", "1", False),
    ("2.30.7", "0", False), ("2.30.7", None, False)])
def test_nccl_shares_a_gpu_from_2_30_where_the_variable_is_set(monkeypatch, number, enabled,
                                                               shares):
    monkeypatch.delenv("NCCL_MULTI_RANK_GPU_ENABLE", raising=False)
    if enabled is not None:
        monkeypatch.setenv("NCCL_MULTI_RANK_GPU_ENABLE", enabled)
    with installed(True, Devices(1)) as cupy:
        major, minor, patch = map(int, number.split("."))
        cupy.cuda.nccl.get_version = lambda: (
            (10000 if (major, minor) >= (2, 9) else 1000) * major + 100 * minor + patch)
        member = introduce(cupy.cuda.Device(0))
    assert member.version == number
    assert (obstacle([member, member]) == "") is shares


@pytest.mark.parametrize("members, turns", [
    ([("a", "0", False), ("a", "1", False)], False),
    ([("a", "0", False), ("b", "0", False)], False),
    ([("a", "0", False), ("a", "0", False)], True), ([("a", "0", True), ("a", "0", True)], False),
    ([("a", "0", True), ("a", "0", False)], True), ([("a", "", False), ("a", "", False)], False)])
def test_ranks_take_turns_on_a_shared_gpu_without_mps(members, turns):
    assert turns is takes_turns([Member(host, device, has_mps=mps)
                                 for host, device, mps in members])


def test_mps_runs_where_its_pipe_is(monkeypatch, tmp_path):
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    assert not has_mps()
    (tmp_path / "control").touch()
    assert has_mps()
