"""Segments of calls on device memory: their lengths, and ranks that pass other memory."""

import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import numpy
import pytest
from mpi4py import MPI

import hpccoll
from hpccoll import cuda
from hpccoll.cuda import registered
from hpccoll.machine import limits
from support.gpu.device import installed
from support.gpu.streams import Devices

pytestmark = pytest.mark.mpi(min_size=2)
WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.rank, WORLD.size
MIB = 1 << 20


@pytest.fixture
def cupy():
    """A double of CuPy on every rank, which the ranks share by a folder."""
    with tempfile.TemporaryDirectory() as folder:
        with installed(False, Devices(), Path(WORLD.bcast(folder))) as cupy:
            with cupy.cuda.Stream(non_blocking=True):
                yield cupy
        WORLD.Barrier()


def community(**how):
    return hpccoll.Comm(MPI.Intracomm(WORLD.Dup()), **how)


def mine(count):
    return (numpy.arange(count) % 13 + RANK).astype("f4")


def check_sum(cupy, x):
    seen = x if isinstance(x, numpy.ndarray) else cupy.asnumpy(x)
    wanted = numpy.arange(x.size) % 13 * SIZE + SIZE * (SIZE - 1) // 2
    assert (seen == wanted.astype("f4")).all()


def fill(cupy, x):
    x[...] = mine(x.size) if isinstance(x, numpy.ndarray) else cupy.asarray(mine(x.size))


def segments(comm):
    """Bytes of the longest segment of each plan that the communicator has made."""
    return [max(message.extent.count for segment in plan.segments
                for phase in segment.program.phases for message in phase.messages) * 4
            for plan in comm._private().plans.entries.values()]


@pytest.mark.parametrize("host", [None, 0], ids=["all on devices", "rank 0 on the host"])
def test_staged_calls_have_segments_of_4_mib(cupy, host):
    comm = community()
    x = numpy.empty(5 * MIB // 4, "f4")
    x = x if host == RANK else cupy.asarray(x)
    for algorithm in ("recursive_doubling", "ring"):
        fill(cupy, x)
        with comm.using(allreduce=algorithm):
            comm.Allreduce(MPI.IN_PLACE, x)
            check_sum(cupy, x)
            fill(cupy, x)
            comm.Iallreduce(MPI.IN_PLACE, x).Wait()
        check_sum(cupy, x)
    assert 2 * MIB < max(segments(comm)) <= 4 * MIB
    comm.Free()


def test_a_call_below_4_mib_is_one_exchange(cupy):
    comm, x = community(), cupy.asarray(mine(2 * MIB // 4))
    with comm.using(allreduce="recursive_doubling"):
        comm.Allreduce(MPI.IN_PLACE, x)
    check_sum(cupy, x)
    plan, = comm._private().plans.entries.values()
    assert len(plan.segments) == 1
    comm.Free()


def test_one_rank_without_cupy_has_all_ranks_use_the_segments_of_the_host(cupy, monkeypatch):
    if RANK == SIZE - 1:
        monkeypatch.delitem(sys.modules, "cupy")
    comm = community()
    x = mine(MIB)
    with comm.using(allreduce="ring"):
        comm.Allreduce(MPI.IN_PLACE, x)
    check_sum(cupy, x)
    host = [each.without_large_segments() if comm._private().compiled else each
            for each in (limits.DEDICATED, limits.OVERSUBSCRIBED)]
    assert comm._private().limits in host
    comm.Free()


def test_tensors_count_from_the_moment_that_torch_has_started_cuda(cupy, monkeypatch):
    monkeypatch.delitem(sys.modules, "cupy")
    for started in (False, True):
        monkeypatch.setitem(sys.modules, "torch.cuda",
                            SimpleNamespace(is_initialized=lambda started=started: started))
        comm = community()
        comm.Barrier()
        assert (comm._private().limits.segment_bytes == 4 * MIB) == started
        comm.Free()


def test_registered_memory_changes_the_plans_of_repeated_calls(cupy):
    """Some ranks pass host memory, whose calls were cached with other segments before."""
    comm, host = community(), mine(9 * SIZE * MIB // 4)
    with comm.using(allreduce="ring"):
        for _ in range(3):  # the later ones are prepared
            fill(cupy, host)
            comm.Allreduce(MPI.IN_PLACE, host)
        device = comm.empty(host.size, "f4", xp=cupy)
        assert comm._private().limits.segment_of(9 * MIB) == 16 * MIB
        for turn in range(4):
            x = host if (turn + RANK) % 2 else device
            fill(cupy, x)
            comm.Allreduce(MPI.IN_PLACE, x)
            check_sum(cupy, x)
    comm.Free()


@pytest.mark.parametrize("algorithm", ["allpairs", "rabenseifner", "ring"])
@pytest.mark.parametrize("host", [None, 0], ids=["all registered", "rank 0 on the host"])
def test_segments_fit_into_the_scratch_of_registered_memory(cupy, algorithm, host, monkeypatch):
    """Longer ones would be staged."""
    for module in (registered, cuda):
        monkeypatch.setattr(module, "SCRATCH_BYTES", 32 << 10)
    found, finish = [], registered.RegisteredCall.finish
    monkeypatch.setattr(registered.RegisteredCall, "finish",
                        lambda self: (found.append(self), finish(self)))
    comm = community()
    x = comm.empty(100_003, "f4", xp=cupy)
    x = numpy.empty(x.size, "f4") if host == RANK else x
    with comm.using(allreduce=algorithm, segment_bytes="64K"):
        for _ in range(2):
            fill(cupy, x)
            comm.Allreduce(MPI.IN_PLACE, x)
            check_sum(cupy, x)
    assert len(found) == 2 * (host != RANK)
    comm.Free()
