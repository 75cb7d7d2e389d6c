"""Limits and counters that programs reach late: a test sets them low and passes them."""

import random

import numpy
import pytest
from mpi.cases import cases
from mpi.requested import OURS
from mpi4py import MPI

import hpccoll
from hpccoll.runtime import context
from hpccoll.runtime.execution.built import BUILT
from hpccoll.transport import mpi
from hpccoll.transport.shm import channels

pytestmark = pytest.mark.mpi
#: Limits that a test sets low together: where they are defined, their names and values.
LIMITS = {
    "scratch": [(context, "KEPT_SCRATCH", 64)],
    "caches": [(context, "MOST_KEPT", 2), (context, "MOST_PREPARED", 64)],
    "channels": [(context, "LANE_BYTES", 64), (context, "CUT_BYTES", 128),
                 (mpi, "MOST_TAGS", 1 << 7), (channels, "CELLS_BYTES", 1 << 12)]}


@pytest.fixture(params=["compiled", "python"] if BUILT else ["python"])
def executor(request, monkeypatch):
    monkeypatch.setenv("HPCCOLL_EXECUTOR", request.param)


@pytest.mark.usefixtures("executor")
@pytest.mark.parametrize("limits", LIMITS)
def test_calls_below_and_above_limits(monkeypatch, limits):
    """Calls of a smaller size are repeated, and alive, when a larger one is made."""
    for module, name, low in LIMITS[limits]:
        monkeypatch.setattr(module, name, low)
    comm, made = hpccoll.Comm(MPI.Intracomm(MPI.COMM_WORLD).Dup()), []
    # Some algorithms for these collectives reject uneven blocks.
    with comm.using(**{each: ours for each, ours in OURS.items()
                       if each not in ("alltoall", "gather", "scatter")}):
        for count in (3, 40, 1500):
            new = list(cases(comm.rank, comm.size, "f8", count, 0))
            for case in (*new, *made) * 2:
                case.fill()
                getattr(comm, case.method)(*case.args)
                case.check()
            made, requests = new, []
            for case in new:
                case.fill()
                requests.append(getattr(comm, f"I{case.method.lower()}")(*case.args))
            MPI.Request.Waitall(requests)
            for case in new:
                case.check()
    comm.Free()


@pytest.mark.mpi(min_size=2)
@pytest.mark.usefixtures("executor")
def test_tags_of_nonblocking_calls_turn_round_beside_persistent_ones(monkeypatch):
    """Every rank starts the persistent ones at another time, and all take the same data."""
    monkeypatch.setattr(mpi, "MOST_TAGS", 1 << 7)  # tags for eight calls of each kind
    for name in ("LANE_BYTES", "CUT_BYTES"):  # a queue would run the nonblocking ones with one tag
        monkeypatch.setattr(context, name, 0)
    comm = hpccoll.Comm(MPI.Intracomm(MPI.COMM_WORLD).Dup())
    assert comm.layout
    own = random.Random(comm.rank)
    given, outs = numpy.empty((10, 500)), numpy.empty((10, 500))
    wanted = comm.size * numpy.arange(10)[:, None] + sum(range(comm.size)) / 16
    with comm.using(**OURS):
        lasting = [comm.Allreduce_init(given[i], outs[i]) for i in range(6)]
        for _ in range(20):
            given[:] = numpy.arange(10)[:, None] + comm.rank / 16
            outs[:], requests = -1, []
            starts = own.sample([*lasting, *[None] * 4], 10)
            for start in starts:
                if start is None:
                    i = 6 + len(requests)
                    requests.append(comm.Iallreduce(given[i], outs[i]))
                else:
                    start.Start()
            MPI.Request.Waitall([*lasting, *requests])
            assert (outs == wanted).all()
    for request in lasting:
        request.Free()
    comm.Free()
