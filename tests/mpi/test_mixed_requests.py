"""mpi4py's class methods on lists of requests: hpccoll's, the library's, and null ones, in any mix.

Looked at beside them: the methods of ``hpccoll.Request`` and single waits (``test_requests.py``),
and lists without a request of hpccoll, which mpi4py's own methods serve.
"""

import time

import numpy
import pytest
from mpi.requested import OURS, mine, summed
from mpi4py import MPI

import hpccoll
from hpccoll.comm.requests import Request

pytestmark = [pytest.mark.mpi(min_size=2), pytest.mark.skipif(
    MPI.Query_thread() < MPI.THREAD_MULTIPLE, reason="the MPI library serves all requests")]
#: Ways to complete a list; a test is repeated until it is true.
COMPLETE = {
    "Waitall": lambda r: MPI.Request.Waitall(r),
    "Waitall, statuses": lambda r: MPI.Request.Waitall(r, [MPI.Status() for _ in r]),
    "waitall": lambda r: MPI.Request.waitall(r),
    "Waitany": lambda r: list(iter(lambda: MPI.Request.Waitany(r), MPI.UNDEFINED)),
    "waitany": lambda r: list(iter(lambda: MPI.Request.waitany(r)[0], MPI.UNDEFINED)),
    "Waitsome": lambda r: list(iter(lambda: MPI.Request.Waitsome(r), None)),
    "waitsome": lambda r: list(iter(lambda: MPI.Request.waitsome(r)[0], None)),
    "Testall": lambda r: list(iter(lambda: MPI.Request.Testall(r), True)),
    "testall": lambda r: list(iter(lambda: MPI.Request.testall(r)[0], True)),
    "Testany": lambda r: list(iter(lambda: MPI.Request.Testany(r), (MPI.UNDEFINED, True))),
    "testany": lambda r: list(iter(lambda: MPI.Request.testany(r)[:2], (MPI.UNDEFINED, True))),
    "Testsome": lambda r: list(iter(lambda: MPI.Request.Testsome(r), None)),
    "testsome": lambda r: list(iter(lambda: MPI.Request.testsome(r)[0], None)),
    "of persistent requests": lambda r: MPI.Prequest.Waitall(r)}


@pytest.fixture(params=["thread", "calls"])
def comm(world, request):
    comm = hpccoll.Comm(MPI.Intracomm(world).Dup(), progress=request.param)
    assert comm.layout
    with comm.using(**OURS):
        yield comm
    comm.Free()


@pytest.mark.parametrize("way", COMPLETE)
def test_any_mix(comm, way):
    right, left = (comm.rank + 1) % comm.size, comm.rank - 1
    for count in (50, 50, 50_000):
        ours, native, halo = numpy.empty(count), numpy.empty(4), numpy.empty(1)
        requests = [MPI.Request(MPI.REQUEST_NULL), comm.Iallreduce(mine(comm, count), ours),
                    comm.Irecv(halo, left % comm.size), MPI.Request(MPI.REQUEST_NULL),
                    comm.Isend(numpy.ones(1) * comm.rank, right), comm.Ibarrier()]
        with comm.using(iallreduce="native"):
            requests.append(comm.Iallreduce(mine(comm), native))
        assert type(requests[1]) is Request is not type(requests[-1])
        COMPLETE[way](requests)
        assert all(request == MPI.REQUEST_NULL for request in requests)
        assert (ours == summed(comm, count)).all() and (native == summed(comm)).all()
        assert halo == left % comm.size


@pytest.mark.parametrize("name", ["Waitany", "waitany", "Waitsome", "waitsome"])
def test_what_completes_first(comm, name):
    """Here a message of a rank that enters the collective only afterwards."""
    ours = numpy.empty(50)
    if comm.rank == 0:
        for other in range(1, comm.size):
            comm.Recv(numpy.empty(1), other, 1)
            comm.Send(numpy.ones(1), other, 2)
        for other in range(1, comm.size):
            comm.Recv(numpy.empty(1), other, 3)
        comm.Iallreduce(mine(comm, 50), ours).Wait()
    else:
        requests = [comm.Iallreduce(mine(comm, 50), ours), MPI.Request(MPI.REQUEST_NULL),
                    comm.Irecv(bytearray(8), 0, 2)]
        start = time.monotonic()
        for test in ("Testall", "testall", "Testany", "testany", "Testsome", "testsome"):
            found = getattr(MPI.Request, test)(requests)
            assert not any(request == MPI.REQUEST_NULL for request in requests[::2]), found
        assert time.monotonic() - start < 1, "a test has waited"
        comm.Send(numpy.ones(1), 0, 1)
        found = getattr(MPI.Request, name)(requests)
        assert found in (2, (2, None), [2], ([2], [None])) or found[0] in (2, [2])
        comm.Send(numpy.ones(1), 0, 3)
        MPI.Request.Waitall(requests)
    assert (ours == summed(comm, 50)).all()


def test_lists_without_a_request_of_hpccoll(comm):
    null = MPI.Request(MPI.REQUEST_NULL)
    assert MPI.Request.Waitall(requests=[null], statuses=None) is True
    assert MPI.Request.Waitany([null], status=MPI.Status()) == MPI.UNDEFINED
    assert MPI.Request.Testsome([]) is None and MPI.Request.testall([]) == (True, [])
    with pytest.raises(TypeError):
        MPI.Request.Waitall(None)
