"""Messages between two ranks of a group: send, receive, and a barrier that names who is missing.

Messages are under way as soon as they are issued, in any number, on a communicator of their own. A
thread looks after those that nobody waits for, because an MPI library may move a message only
while somebody calls it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from mpi4py import MPI

from hpccoll import Comm
from hpccoll.errors import PeerLost, ProcessGroupError
from hpccoll.torch.process_group.eager import run_eagerly
from hpccoll.torch.process_group.work import GroupWork
from hpccoll.torch.streams import behind, check_capture
from hpccoll.torch.tensors import dense, memory

#: Seconds between two looks at messages: first, and when nothing moves.
SHORTEST_PAUSE, LONGEST_PAUSE = 20e-6, 1e-3
#: Looks before the first pause of a rank that waits.
LOOKS = 200
#: Seconds between two looks at the other rank; seconds in which the last message of a rank that has
#: ended arrives, or never.
BETWEEN, LAST_MESSAGE = 0.5, 1.0


@run_eagerly
class MessageWork(GroupWork):
    """A message under way.

    Args:
        request: of MPI.
        title, tensors, seconds: see :class:`GroupWork`.
        nbytes: what a message has to bring; ``None`` where it is sent.
        check: raises an error where the message cannot arrive any more.
        store: copies what came to where it belongs.
    """

    def __init__(self, request: MPI.Request, title: str, tensors: list[torch.Tensor],
                 seconds: float, check: Callable[[], None], nbytes: int | None = None,
                 store: Callable[[], object] | None = None):
        super().__init__(title, None, tensors, seconds)
        self.request, self.check, self.nbytes, self.store = request, check, nbytes, store
        self.checked = time.monotonic()
        self.status = MPI.Status()
        #: What MPI reads or writes, alive until the message is over.
        self.buffer: Any = None
        self.looking = threading.Lock()

    def look(self) -> bool:
        """Look whether it is over; tell."""
        if self.over or not self.looking.acquire(blocking=False):
            return self.over
        try:
            if not self.over and self.request.Test(self.status):
                self._arrived()
            elif not self.over and (now := time.monotonic()) - self.checked > BETWEEN:
                self.checked = now
                self.check()
        except BaseException as error:
            self.end(error)
        finally:
            self.looking.release()
        return self.over

    def is_completed(self) -> bool:
        """Return True if it is over, well or with an error."""
        return self.look()

    def _arrived(self) -> None:
        if self.nbytes is None:
            self.end()
            return
        came = self.status.Get_count(MPI.BYTE)
        if came != self.nbytes:
            self.end(ProcessGroupError(
                f"{self.title} got {came} bytes from rank {self.status.Get_source()} for a tensor "
                f"of {self.nbytes}; send and receive tensors of the same size and type"))
            return
        if self.store is not None:
            with behind(self.stream):
                self.store()
        self.end(None, self.status.Get_source())

    def _await(self, seconds: float) -> bool:
        """Look until it is over, a while at once, then with pauses; tell whether it is."""
        if any(self.look() for _ in range(LOOKS)):
            return True
        pause, end = SHORTEST_PAUSE, time.monotonic() + seconds
        while not self.look() and time.monotonic() < end:
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
        return self.over


class Peers:
    """Messages between two ranks of a group.

    Args:
        group: the communicator of the group; messages have a duplicate for themselves.
        name: of the group.
    """

    def __init__(self, group: Comm, name: str):
        self.group, self.name = group, name
        self.comm = MPI.Intracomm(group).Dup()
        #: When each rank was found to be lost.
        self.lost: dict[int, float] = {}
        self.highest = group.Get_attr(MPI.TAG_UB) or 32767
        self.underway: list[MessageWork] = []
        self.changed = threading.Condition()
        self.closed = False
        self.thread: threading.Thread | None = None

    def send(self, tensor: torch.Tensor, destination: int, tag: int, seconds: float) -> MessageWork:
        """Begin to send a tensor."""
        source = memory(self._movable(dense(tensor)))
        request = self.comm.Isend([source, source.nbytes, MPI.BYTE], destination, self._tag(tag))
        work = MessageWork(request, f"send to rank {destination} of {self.name}", [tensor], seconds,
                           partial(self._check, destination))
        return self._begun(work, source)

    def receive(self, tensor: torch.Tensor, source: int, tag: int, seconds: float) -> MessageWork:
        """Begin to receive a tensor, from any rank if ``source`` is ``MPI.ANY_SOURCE``."""
        whole = self._movable(dense(tensor), fill=False)
        sink = memory(whole)
        request = self.comm.Irecv([sink, sink.nbytes, MPI.BYTE], source, self._tag(tag))
        whom = "any rank" if source == MPI.ANY_SOURCE else f"rank {source}"
        copied = whole.data_ptr() != tensor.data_ptr() or not tensor.is_contiguous()
        work = MessageWork(request, f"receive from {whom} of {self.name}", [tensor], seconds,
                           partial(self._check, source), sink.nbytes,
                           (lambda: tensor.detach().copy_(whole)) if copied else None)
        return self._begun(work, sink)

    def _movable(self, tensor: torch.Tensor, fill: bool = True) -> torch.Tensor:
        """A dense tensor that MPI moves: where the library moves no device memory, one of the host.

        It has the values of the tensor if these are wanted (``fill``).
        """
        if tensor.is_cpu or self.group.moves_device_memory:
            return tensor
        check_capture()
        return tensor.cpu() if fill else torch.empty_like(tensor, device="cpu")

    def _check(self, peer: int) -> None:
        """Raise an error where no message will come from a rank, or go to it.

        Raises:
            PeerLost: it was killed or has ended its program; for ``MPI.ANY_SOURCE``, all have.
            BrokenCommunicatorError: a call of the group has failed.
        """
        try:
            self.group.check_ranks(() if peer < 0 else (peer,))
        except PeerLost as error:
            now = time.monotonic()
            gone = {rank for rank in error.ranks
                    if now - self.lost.setdefault(rank, now) > LAST_MESSAGE}
            if peer in gone or len(gone) == self.comm.size - 1:
                raise

    def _begun(self, work: MessageWork, buffer: Any) -> MessageWork:
        work.buffer = buffer
        if not work.look():
            with self.changed:
                self.underway.append(work)
                if self.thread is None:
                    self.thread = threading.Thread(target=self._work, daemon=True,
                                                   name=f"hpccoll messages of {self.name}")
                    self.thread.start()
                self.changed.notify()
        return work

    def _tag(self, tag: int) -> int:
        if not 0 <= tag < self.highest:
            raise ProcessGroupError(f"tag {tag} is not one of 0 to {self.highest - 1}, "
                                    "which this MPI library has")
        return tag

    def clear(self, error: BaseException) -> None:
        """End all messages with an error."""
        for work in tuple(self.underway):
            work.end(error)

    def close(self) -> None:
        """End the thread."""
        with self.changed:
            self.closed = True
            self.changed.notify()

    def _work(self) -> None:
        pause = SHORTEST_PAUSE
        while True:
            with self.changed:
                self.changed.wait_for(lambda: self.underway or self.closed)
                if self.closed:
                    return
            over = [work for work in tuple(self.underway) if work.look()]
            for work in over:
                self.underway.remove(work)
            pause = SHORTEST_PAUSE if over else min(2 * pause, LONGEST_PAUSE)
            time.sleep(pause)

    # -- a barrier that names who is missing -------------------------------------------------
    def monitored_barrier(self, seconds: float, everybody: bool) -> None:
        """Wait for all ranks; rank 0 tells who did not come.

        Args:
            seconds: how long.
            everybody: name all ranks that are missing, not the first alone.

        Raises:
            ProcessGroupError: not all came.
        """
        tag, end = self.highest, time.monotonic() + seconds
        if self.comm.rank:
            request = self.comm.Irecv([None, 0, MPI.BYTE], 0, tag)
            self.comm.Isend([None, 0, MPI.BYTE], 0, tag)
            if not _by(request, end):
                request.Cancel()
                raise ProcessGroupError(
                    f"monitored_barrier of {self.name}: rank {self.comm.rank} has waited "
                    f"{seconds:g} s for rank 0; see there which ranks are missing")
            return
        requests = [self.comm.Irecv([None, 0, MPI.BYTE], rank, tag)
                    for rank in range(1, self.comm.size)]
        missing = [rank for rank, request in enumerate(requests, 1) if not _by(request, end)]
        for rank in missing:
            requests[rank - 1].Cancel()
        if missing:
            named = missing if everybody else missing[:1]
            raise ProcessGroupError(
                f"monitored_barrier of {self.name}: rank(s) {', '.join(map(str, named))} did not "
                f"come within {seconds:g} s")
        MPI.Request.Waitall([self.comm.Isend([None, 0, MPI.BYTE], rank, tag)
                             for rank in range(1, self.comm.size)])


def _by(request: MPI.Request, end: float) -> bool:
    """Wait for a request until some time; tell whether it is over."""
    pause = SHORTEST_PAUSE
    while not request.Test():
        if time.monotonic() > end:
            return False
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)
    return True
