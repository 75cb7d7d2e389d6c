"""Point-to-point messages of a group: send, receive, and a monitored barrier.

Messages start when they are issued, in any number, on a separate communicator. A progress queue of
the group polls messages without a waiting caller, because an MPI library may make progress only
inside its calls. Its thread runs the callbacks of their futures, which may block.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy
import torch
from mpi4py import MPI

from hpccoll import Comm
from hpccoll.errors import PeerLost, ProcessGroupError
from hpccoll.runtime.progress.engine import LONGEST_PAUSE, Progress
from hpccoll.torch.process_group.collectives import MOST_ELEMENTS
from hpccoll.torch.process_group.work import LONGEST, GroupWork, poll, run_eagerly
from hpccoll.torch.streams import after_caller, check_capture
from hpccoll.torch.tensors import as_dense, memory

#: Bytes of a block of a message that has too many for one count.
BLOCK = 1 << 20
#: Polls of a waiting thread before its first sleep.
LOOKS = 200
#: Seconds between two checks of the other rank; seconds in which the last message of an exited rank
#: can still arrive.
BETWEEN, LAST_MESSAGE = 0.5, 1.0


@run_eagerly
class MessageWork(GroupWork):
    """Pending message: a task of the group's queue, which keeps its buffer alive.

    ``check`` raises an error if it can no longer arrive. A receive expects ``nbytes``, and
    ``store`` copies them to the tensor.
    """

    threaded = True

    def __init__(self, queue: Progress, request: MPI.Request, buffer: Any, title: str,
                 tensors: list[torch.Tensor], seconds: float, check: Callable[[], None],
                 nbytes: int | None = None, store: Callable[[], object] | None = None):
        super().__init__(title, None, tensors, seconds)
        self.queue, self.request, self.buffer, self.check = queue, request, buffer, check
        self.nbytes, self.store, self.checked = nbytes, store, time.monotonic()
        self.status, self.looking = MPI.Status(), threading.Lock()
        if not self.look():
            queue.add(self)

    def look(self) -> bool:
        """Poll the request; return True if the message has completed."""
        if self.over or not self.looking.acquire(blocking=False):
            return self.over
        try:
            if not self.over and self.request.Test(self.status):
                self._on_arrival()
            elif not self.over and (now := time.monotonic()) - self.checked > BETWEEN:
                self.checked = now
                self.check()
        except BaseException as error:
            truncated = (isinstance(error, MPI.Exception)
                         and error.Get_error_class() == MPI.ERR_TRUNCATE)
            self.end(self._wrong_size(_sent_bytes(str(error), self.status))
                     if truncated else error)
        finally:
            self.looking.release()
        return self.over

    def is_completed(self) -> bool:
        """Return True if the message has completed, with or without an error."""
        return self.look()

    def progress(self) -> bool:
        """Poll for the queue, and leave it after completion."""
        if self.look():
            self.queue.remove(self)
        return self.over

    def _on_arrival(self) -> None:
        if self.nbytes is None:
            self.end()
            return
        came = self.status.Get_elements(MPI.BYTE)
        if came != self.nbytes:
            self.end(self._wrong_size(came))
            return
        if self.store is not None:
            with after_caller(self.stream):
                self.store()
        self.end(None, self.status.Get_source())

    def _wrong_size(self, came: int) -> ProcessGroupError:
        sent = came if came != self.nbytes else f"more than {came}"  # MPICH reports no other size
        return ProcessGroupError(
            f"{self.title} got {sent} bytes from rank {self.status.Get_source()} for a tensor of "
            f"{self.nbytes}; send and receive tensors of the same size and type")

    def _await(self, seconds: float) -> bool:
        """Poll until completion or time-out; return True if the message has completed."""
        return any(self.look() for _ in range(LOOKS)) or poll(self.look, seconds, LONGEST_PAUSE)


class Peers:
    """Point-to-point messages of a group, on whose communicator nothing else sends messages."""

    def __init__(self, group: Comm, name: str):
        self.group, self.name = group, name
        self.comm = MPI.Intracomm(group)
        #: Time at which each lost rank was detected.
        self.lost: dict[int, float] = {}
        self.highest = group.Get_attr(MPI.TAG_UB) or 32767
        self.queue = Progress(f"hpccoll messages of {name}", patience=LONGEST)
        #: Number of the last monitored barrier, and the messages with such numbers.
        self.round = 0
        self.rounds: list[tuple[MPI.Request, numpy.ndarray]] = []

    def send(self, tensor: torch.Tensor, destination: int, tag: int, seconds: float) -> MessageWork:
        """Start to send a tensor."""
        source = memory(self._as_sendable(as_dense(tensor)))
        request = _start_bytes(self.comm.Isend, source, destination, self._tag(tag))
        return MessageWork(self.queue, request, source,
                           f"send to rank {destination} of {self.name}", [tensor], seconds,
                           partial(self._check, destination))

    def receive(self, tensor: torch.Tensor, source: int, tag: int, seconds: float) -> MessageWork:
        """Start to receive a tensor, from any rank if ``source`` is ``MPI.ANY_SOURCE``."""
        whole = self._as_sendable(as_dense(tensor), fill=False)
        sink = memory(whole)
        request = _start_bytes(self.comm.Irecv, sink, source, self._tag(tag))
        whom = "any rank" if source == MPI.ANY_SOURCE else f"rank {source}"
        copied = whole.data_ptr() != tensor.data_ptr() or not tensor.is_contiguous()
        return MessageWork(self.queue, request, sink, f"receive from {whom} of {self.name}",
                           [tensor], seconds, partial(self._check, source), sink.nbytes,
                           (lambda: tensor.detach().copy_(whole)) if copied else None)

    def _as_sendable(self, tensor: torch.Tensor, fill: bool = True) -> torch.Tensor:
        """Return a dense tensor that MPI can send; on the host unless MPI is GPU-aware.

        With ``fill`` it has the values of the tensor.
        """
        if tensor.is_cpu or self.group.moves_device_memory:
            return tensor
        check_capture()
        return tensor.cpu() if fill else torch.empty_like(tensor, device="cpu")

    def _check(self, peer: int) -> None:
        """Raise an error if messages from or to a rank, or any rank, cannot complete."""
        try:
            self.group.check_ranks(() if peer < 0 else (peer,))
        except PeerLost as error:
            now = time.monotonic()
            gone = {rank for rank in error.ranks
                    if now - self.lost.setdefault(rank, now) > LAST_MESSAGE}
            if peer in gone or len(gone) == self.comm.size - 1:
                raise

    def _tag(self, tag: int) -> int:
        if not 0 <= tag < self.highest:
            raise ProcessGroupError(f"tag {tag} is out of range 0 to {self.highest - 1} of this "
                                    "MPI library")
        return tag

    def clear(self, error: BaseException) -> None:
        """Complete all messages with an error."""
        for work in tuple(self.queue.operations):
            work.end(error)

    def close(self) -> None:
        """Stop the thread."""
        self.queue.stop()

    # -- monitored barrier -------------------------------------------------------------------
    def monitored_barrier(self, seconds: float, everybody: bool) -> None:
        """Wait for all ranks; rank 0 reports the first missing one, or ``everybody``."""
        end = time.monotonic() + seconds
        self.round += 1
        if self.comm.rank:
            self._send_round(0)
            if self._await_round([0], end):
                raise ProcessGroupError(
                    f"monitored_barrier of {self.name}: rank {self.comm.rank} waited {seconds:g} s "
                    "for rank 0; rank 0 reports the missing ranks")
            return
        others = range(1, self.comm.size)
        missing = self._await_round(others, end)
        if missing:
            named = missing if everybody else missing[:1]
            raise ProcessGroupError(
                f"monitored_barrier of {self.name}: ranks {', '.join(map(str, named))} did not "
                f"arrive within {seconds:g} s")
        for rank in others:
            self._send_round(rank)

    def _send_round(self, rank: int) -> None:
        """Send the number of this barrier, which may be received after the next one has begun."""
        number = numpy.array([self.round])
        self.rounds = [(sent, kept) for sent, kept in self.rounds if not sent.Test()]
        self.rounds.append((self.comm.Isend(number, rank, self.highest), number))

    def _await_round(self, ranks: Iterable[int], end: float) -> list[int]:
        """Receive the number of this barrier from ranks; return those that have not sent it."""
        numbers = {rank: numpy.zeros(1, int) for rank in ranks}
        requests = {rank: self.comm.Irecv(number, rank, self.highest)
                    for rank, number in numbers.items()}
        missing = []
        for rank, number in numbers.items():
            while (poll(requests[rank].Test, end - time.monotonic(), LONGEST_PAUSE)
                   and number[0] < self.round):  # of one that failed
                requests[rank] = self.comm.Irecv(number, rank, self.highest)
            if number[0] < self.round:
                missing.append(rank)
                requests[rank].Cancel()
                requests[rank].Wait()
        return missing


def _start_bytes(start: Callable[..., MPI.Request], array: Any, peer: int, tag: int
                 ) -> MPI.Request:
    """Start a message with the bytes of an array, in any number."""
    if array.nbytes <= MOST_ELEMENTS:
        return start([array, array.nbytes, MPI.BYTE], peer, tag)
    # MPI libraries count elements in C integers: one element of blocks and a rest.
    blocks, rest = divmod(array.nbytes, BLOCK)
    block = MPI.BYTE.Create_contiguous(BLOCK)
    whole = MPI.Datatype.Create_struct([blocks, rest], [0, blocks * BLOCK], [block, MPI.BYTE])
    request = start([array, 1, whole.Commit()], peer, tag)
    for datatype in block, whole:
        datatype.Free()
    return request


def _sent_bytes(text: str, status: MPI.Status) -> int:
    """Return the size of a truncated message, or that of the buffer if the library hides it.

    Open MPI sets the status. MPICH has both sizes in its error text, exchanged, for short messages.
    """
    sizes = re.findall(r"(\d+) bytes received but buffer size is (\d+)", text)
    return max(status.Get_elements(MPI.BYTE), *(int(size) for pair in sizes for size in pair), 0)
