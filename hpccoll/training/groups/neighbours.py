"""Point-to-point messages of arrays of any dtype, with a time-out.

Elements are sent as bytes, because MPI lacks some dtypes such as bfloat16.
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
from hpccoll.errors.waits import RankStates, Reports, rank_list

#: Failed tests between two reads of the clock.
PATIENCE = 1000
#: Seconds between two checks for dead ranks.
AGAIN = 1.0


class MessageRequest:
    """Pending send or receive of an array.

    Args:
        comm: the ranks.
        title: description of the array, for messages.
        peer: the other rank.
        request: MPI request.
        nbytes: expected bytes of a receive; ``None`` for a send.
        keep: object that must live until completion.
    """

    def __init__(self, comm: Any, title: str, peer: int, request: Any, nbytes: int | None,
                 keep: Any):
        self.comm, self.call_name, self.peer, self.request = comm, title, peer, request
        self.nbytes, self.keep, self.checked = nbytes, keep, 0.0

    def wait(self) -> None:
        """Wait for completion.

        Raises:
            CollectiveTimeout: no message for ``HPCCOLL_TIMEOUT`` seconds, or a rank stays stopped;
                the message names the peer.
            PeerLost: a rank has died or exited.
            MessageSizeError: the received array has another size.
        """
        status, tests, since, reports = MPI.Status(), 0, time.monotonic(), None
        while not self._test(status):
            tests += 1
            os.sched_yield()
            if tests % PATIENCE == 0:
                reports = reports or Reports(config.load().report)
                self._check_timeout(time.monotonic() - since, reports)
        if self.nbytes is not None and status.Get_count(MPI.BYTE) != self.nbytes:
            raise MessageSizeError(self._size_error(f"{status.Get_count(MPI.BYTE)} bytes"))
        self.keep = None

    def _test(self, status: MPI.Status) -> bool:
        try:
            return bool(self.request.Test(status))
        except MPI.Exception as error:
            if error.Get_error_class() == MPI.ERR_TRUNCATE:
                raise MessageSizeError(self._size_error("more bytes")) from error
            raise

    def _check_timeout(self, elapsed: float, reports: Reports) -> None:
        """Print a report or raise, if the wait has taken long enough."""
        timeout = getattr(self.comm, "timeout", config.load().timeout)
        if elapsed < min(reports.due, timeout, self.checked + AGAIN):
            return
        self.checked, rank, peers = elapsed, self.comm.Get_rank(), (self.peer,)
        check = getattr(self.comm, "check_ranks", None)  # only hpccoll.Comm has this method
        states = check(peers) if check else None
        states = states or RankStates(f"no message from {rank_list(peers)}")
        if elapsed >= timeout or elapsed >= reports.due and not reports.add(
                elapsed, states, f"{self.call_name} on rank {rank}"):
            raise CollectiveTimeout(self.call_name, rank, 0, peers, round(elapsed, 2), states)

    def _size_error(self, sent: str) -> str:
        return (f"{self.call_name}: rank {self.peer} sent {sent}, rank {self.comm.Get_rank()} "
                f"expects {self.nbytes}; pass the same shapes on all ranks")


def send(comm: Any, array: Any, to: int, tag: int, title: str) -> MessageRequest:
    """Send an array, which must not change before the wait."""
    data = numpy.ascontiguousarray(array).reshape(-1).view("u1")
    return MessageRequest(comm, title, to, comm.Isend(data, to, tag), None, data)


def receive(comm: Any, into: Any, frm: int, tag: int, title: str) -> MessageRequest:
    """Receive into an array."""
    into = numpy.asarray(into)
    if not (into.flags.c_contiguous and into.flags.writeable):
        raise ArgumentError("into", "is read-only or not contiguous", "pass a writable array")
    data = into.reshape(-1).view("u1")
    return MessageRequest(comm, title, frm, comm.Irecv(data, frm, tag), data.nbytes, data)


def wait_all(passages: Sequence[MessageRequest]) -> None:
    """Wait for several messages."""
    for passage in passages:
        passage.wait()
