"""All ranks promise device arrays: NCCL and other paths by rules, on doubles of GPUs."""

import tempfile
import time
from pathlib import Path

import numpy
import pytest
from mpi4py import MPI

import hpccoll
from hpccoll.cuda import Ways, nccl_runner
from hpccoll.cuda.nccl_runner import Nccl
from hpccoll.errors import ArgumentError, HpccollError
from hpccoll.runtime.attributes import existing_context
from support.gpu.device import installed
from support.gpu.streams import Devices

pytestmark = pytest.mark.mpi(min_size=2)
WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.rank, WORLD.size


@pytest.fixture
def machine():
    machine = Devices()
    machine.first = RANK
    return machine


@pytest.fixture
def cupy(machine):
    with tempfile.TemporaryDirectory() as folder:
        folder = WORLD.bcast(folder)
        with installed(False, machine, Path(folder)) as cupy:
            yield cupy
        WORLD.Barrier()


def community(**how):
    return hpccoll.Comm(MPI.Intracomm(WORLD.Dup()), device="cuda", **how)


def check_allreduce(comm, cupy, path, count=4, dtype="f8"):
    x = cupy.asarray(numpy.full(count, RANK + 1, dtype))
    comm.Allreduce(MPI.IN_PLACE, x)
    assert (cupy.asnumpy(x) == SIZE * (SIZE + 1) // 2).all()
    assert comm._served[0].split(",")[0] == path


@pytest.mark.parametrize("contract", ["tags", "always", "off"])
def test_nccl_runs_all_calls_that_it_can(cupy, contract):
    comm = community(contract=contract)
    check_allreduce(comm, cupy, "nccl")
    check_allreduce(comm, cupy, "nccl", 1000, "f4")
    check_allreduce(comm, cupy, "native", 4, "c16")  # NCCL has no complex numbers
    mine, all_of_it = cupy.asarray(numpy.full(RANK, RANK, "f4")), cupy.empty(
        SIZE * (SIZE - 1) // 2, "f4")
    comm.Allgatherv(mine, [all_of_it, list(range(SIZE))])
    assert (cupy.asnumpy(all_of_it) == numpy.repeat(range(SIZE), range(SIZE))).all()
    assert comm._served[0] == "nccl"
    comm.Barrier()
    with comm.using(allreduce="ring"):
        check_allreduce(comm, cupy, "ring")
    with comm.using(allreduce="auto"):
        check_allreduce(comm, cupy, "nccl")
    assert "rule: device arrays by nccl" in comm.explain("allreduce", 8)
    comm.Free()


def test_the_host_waits_unless_a_stream_is_current(cupy, machine):
    comm = community()
    x, stream = cupy.asarray(numpy.ones(4)), cupy.cuda.Stream(non_blocking=True)
    for turn in (1, 2):
        before = machine.nulls[0].synchronized
        comm.Allreduce(MPI.IN_PLACE, x)
        assert machine.nulls[0].synchronized == before + 1
        assert (x.raw == SIZE ** turn).all()
    with stream:
        y = cupy.asarray(numpy.ones(4))
        for _ in range(3):
            comm.Allreduce(MPI.IN_PLACE, y)
        assert not stream.synchronized and comm._served[0] == "nccl"
        assert (cupy.asnumpy(y) == SIZE ** 3).all()
    comm.Free()


def test_no_exchange_after_the_first_call(cupy, monkeypatch):
    comm = community(contract="off")
    check_allreduce(comm, cupy, "nccl")
    for place, name in ((nccl_runner, "introduce"), (nccl_runner, "join"), (Ways, "look")):
        monkeypatch.setattr(place, name, None)
    check_allreduce(comm, cupy, "nccl")
    comm.Free()


def test_without_nccl_on_one_rank_all_use_copies(cupy, monkeypatch):
    if RANK == 1:
        monkeypatch.setattr(cupy.cuda.nccl, "available", False)
    comm = community()
    check_allreduce(comm, cupy, "native")
    check_allreduce(comm, cupy, "ring", (4 << 20) // 8)
    assert "rank 1" in existing_context(comm).service(Nccl).reasons["nccl"]
    comm.Free()


@pytest.mark.parametrize("has_mps", [True, False])
def test_ranks_that_share_a_gpu(cupy, machine, monkeypatch, tmp_path, has_mps):
    monkeypatch.setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1")
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    monkeypatch.setattr(cupy.cuda.nccl, "get_version", lambda: 23203)
    if has_mps:
        (tmp_path / "control").touch()
    machine.first = 0
    comm = community()
    check_allreduce(comm, cupy, "nccl" if has_mps else "native")
    comm.Free()


@pytest.mark.parametrize("how", [{"checksums": True}, {"determinism": "run"}])
def test_guarantees_that_nccl_does_not_have(cupy, how):
    comm = community(**how)
    x = cupy.asarray(numpy.full(4, RANK + 1.0))
    comm.Allreduce(MPI.IN_PLACE, x)
    assert (cupy.asnumpy(x) == SIZE * (SIZE + 1) // 2).all() and comm._served[0] != "nccl"
    comm.Free()


def test_host_memory_on_one_rank_is_its_own_error(cupy, monkeypatch):
    monkeypatch.setenv("HPCCOLL_TIMEOUT", "2")
    comm = community()
    check_allreduce(comm, cupy, "nccl")
    x = numpy.ones(4) if RANK == 1 else cupy.asarray(numpy.ones(4))
    if RANK == 1:
        with pytest.raises(ArgumentError, match="recvbuf: is in host memory"):
            comm.Allreduce(MPI.IN_PLACE, x)
    else:
        with pytest.raises(HpccollError) as found:
            for _ in range(2000):
                comm.Allreduce(MPI.IN_PLACE, x)
                time.sleep(0.01)
        assert "rank 1" in str(found.value) or SIZE > 2
    WORLD.Barrier()


def test_derived_types_are_refused_where_nccl_runs_the_others(cupy):
    comm, kind = community(), MPI.DOUBLE.Create_vector(2, 1, 2).Commit()
    check_allreduce(comm, cupy, "nccl")
    x = cupy.asarray(numpy.ones(4))
    with pytest.raises(ArgumentError, match="nccl cannot run this bcast.*derived datatypes"):
        comm.Bcast([x, 1, kind], 0)
    check_allreduce(comm, cupy, "nccl")
    kind.Free()
    comm.Free()


def test_registered_memory_is_used_where_nccl_is_not(machine, monkeypatch):
    machine.first = 0  # ranks share the GPU, which this NCCL refuses
    with tempfile.TemporaryDirectory() as folder:
        folder = WORLD.bcast(folder)
        with installed(False, machine, Path(folder)) as cupy, cupy.cuda.Stream(non_blocking=True):
            comm, count = community(), (8 << 20) // 8
            check_allreduce(comm, cupy, "ring", count)
            x = comm.empty(count, xp=cupy)
            x[...] = cupy.asarray(numpy.full(count, RANK + 1.0))
            comm.Allreduce(MPI.IN_PLACE, x)
            assert (cupy.asnumpy(x) == SIZE * (SIZE + 1) // 2).all()
            assert comm._served[0].split(",")[0].startswith("allpairs")
            assert "device arrays by ipc" in comm.explain("allreduce", "8M")
            check_allreduce(comm, cupy, "native", 4)
            comm.Free()
        WORLD.Barrier()
