"""MPI point-to-point messages, as single requests or as persistent ones.

A batch is polled with ``Testall``, never waited for with a blocking MPI call. Polling is as fast as
``Waitall`` here, and it survives oversubscription, Ctrl-C and deadlines.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mpi4py import MPI

from hpccoll.errors import MessageSizeError
from hpccoll.transport import Posting

_startall, _testall = MPI.Prequest.Startall, MPI.Request.Testall


class MpiEndpoint:
    """This process's side of a private communicator."""

    def __init__(self, comm: MPI.Intracomm):
        self.comm, self.rank, self.size = comm, comm.Get_rank(), comm.Get_size()

    def direct(self, peers: Sequence[int], tag: int) -> bool:
        """MPI delivers into the receiver's memory, never in place."""
        return False

    def batch(self, postings: Sequence[Posting], tag: int,
              repeated: bool) -> PersistentBatch | SingleBatch:
        """Prepare messages; see :class:`hpccoll.transport.Endpoint`."""
        return (PersistentBatch if repeated else SingleBatch)(self.comm, postings, tag)


class SingleBatch:
    """Messages posted with ``Isend`` and ``Irecv``; received sizes are checked."""

    def __init__(self, comm: MPI.Intracomm, postings: Sequence[Posting], tag: int):
        self.comm, self.tag = comm, tag
        self.postings = [(sends, peer, wire(array)) for sends, peer, array, _ in postings]
        self.requests: list[MPI.Request] = []
        self.statuses: list[MPI.Status] = []

    def start(self) -> None:
        comm, tag = self.comm, self.tag
        self.requests = [comm.Isend(buffer, peer, tag) if sends
                         else comm.Irecv(buffer, peer, tag)
                         for sends, peer, buffer in self.postings]
        self.statuses = [MPI.Status() for _ in self.requests]

    def test(self, tries: int = 1) -> bool:
        try:
            if not _testall(self.requests, self.statuses):
                return False
        except MPI.Exception as error:
            if error.Get_error_class() in (MPI.ERR_TRUNCATE, MPI.ERR_IN_STATUS):
                raise MessageSizeError(f"a message was longer than expected ({error}); "
                                       "ranks disagree on counts") from error
            raise
        # A test after the last one waits for nothing, and checks no status a second time.
        statuses, self.statuses, self.requests = self.statuses, [], []
        for (sends, peer, (_, nbytes, _)), status in zip(self.postings, statuses):
            if not sends and status.Get_count(MPI.BYTE) != nbytes:
                raise MessageSizeError(
                    f"rank {peer} sent {status.Get_count(MPI.BYTE)} bytes where rank "
                    f"{self.comm.Get_rank()} expected {nbytes}; ranks disagree on counts")
        return True

    def free(self) -> None:
        self.requests = []


class PersistentBatch:
    """Messages prepared once with ``Send_init`` and ``Recv_init``, started many times."""

    def __init__(self, comm: MPI.Intracomm, postings: Sequence[Posting], tag: int):
        self.requests = [(comm.Send_init if sends else comm.Recv_init)(
            wire(array), peer, tag) for sends, peer, array, _ in postings]

    def start(self) -> None:
        _startall(self.requests)

    def test(self, tries: int = 1) -> bool:
        while not _testall(self.requests):
            tries -= 1
            if tries <= 0:
                return False
        return True

    def free(self) -> None:
        for request in self.requests:
            request.Free()
        self.requests = []


def wire(array: Any) -> list[Any]:
    """An array as mpi4py takes it: memory, bytes, MPI.BYTE; device memory is passed as it is.

    Requests keep the memory object alive, but the memory object does not keep the array alive:
    whoever made the batch must keep its buffers.
    """
    if hasattr(array, "__cuda_array_interface__"):
        return [array, array.nbytes, MPI.BYTE]
    address = array.__array_interface__["data"][0]
    return [MPI.memory.fromaddress(address, array.nbytes), array.nbytes, MPI.BYTE]
