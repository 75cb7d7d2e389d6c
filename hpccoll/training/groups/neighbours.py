"""Messages between neighbours: arrays of any type, and waits that end.

Elements travel as bytes, so that types which MPI does not know, such as bfloat16, do too.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

import numpy
from mpi4py import MPI

from hpccoll import config
from hpccoll.errors import ArgumentError, CollectiveTimeout, MessageSizeError

#: Failed tests between two looks at the clock.
PATIENCE = 1000


class Passage:
    """An array on its way to or from another rank.

    Args:
        comm: the ranks.
        title: what it is, for messages to people.
        peer: the other rank.
        request: of MPI.
        nbytes: bytes that are awaited; ``None`` for what is sent.
        keep: what must live until the end.
    """

    def __init__(self, comm: Any, title: str, peer: int, request: Any, nbytes: int | None,
                 keep: Any):
        self.comm, self.title, self.peer, self.request = comm, title, peer, request
        self.nbytes, self.keep = nbytes, keep

    def wait(self) -> None:
        """Wait until it is there, or gone.

        Raises:
            CollectiveTimeout: nothing came in ``HPCCOLL_TIMEOUT`` seconds; names the peer.
            MessageSizeError: the array that came has another size.
        """
        status, tests, since = MPI.Status(), 0, time.monotonic()
        while not self._test(status):
            tests += 1
            os.sched_yield()
            if tests % PATIENCE == 0:
                self._look(since)
        if self.nbytes is not None and status.Get_count(MPI.BYTE) != self.nbytes:
            raise MessageSizeError(self._unequal(f"{status.Get_count(MPI.BYTE)} bytes"))
        self.keep = None

    def _test(self, status: MPI.Status) -> bool:
        try:
            return bool(self.request.Test(status))
        except MPI.Exception as error:
            if error.Get_error_class() == MPI.ERR_TRUNCATE:
                raise MessageSizeError(self._unequal("more bytes")) from error
            raise

    def _look(self, since: float) -> None:
        """Raise when the time is up."""
        seconds = config.load().timeout
        if time.monotonic() - since > seconds:
            raise CollectiveTimeout(self.title, self.comm.Get_rank(), 0, (self.peer,), seconds)

    def _unequal(self, sent: str) -> str:
        return (f"{self.title}: rank {self.peer} sent {sent}, rank {self.comm.Get_rank()} expects "
                f"{self.nbytes}; give all ranks the same shapes")


def send(comm: Any, array: Any, to: int, tag: int, title: str) -> Passage:
    """Send an array; it must not change before the wait."""
    data = numpy.ascontiguousarray(array).reshape(-1).view("u1")
    return Passage(comm, title, to, comm.Isend(data, to, tag), None, data)


def receive(comm: Any, into: Any, frm: int, tag: int, title: str) -> Passage:
    """Receive into an array.

    Raises:
        ArgumentError: it is not contiguous, or read-only.
    """
    into = numpy.asarray(into)
    if not (into.flags.c_contiguous and into.flags.writeable):
        raise ArgumentError("into", "is read-only or not contiguous", "pass an array of your own")
    data = into.reshape(-1).view("u1")
    return Passage(comm, title, frm, comm.Irecv(data, frm, tag), data.nbytes, data)


def wait_all(passages: Sequence[Passage]) -> None:
    """Wait for several."""
    for passage in passages:
        passage.wait()
