"""Point-to-point messages between threads: tags, wildcards, probes, and nothing buffered.

Messages between two ranks with one tag arrive in the order in which they were sent.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy
from mpi4py import MPI

from hpccoll.calls.resolve import check_root
from hpccoll.calls.specification import buffer_of, host_buffer
from hpccoll.errors import MessageSizeError
from support.threads.requests import ThreadRequest
from support.threads.world import ThreadRank


class Letter(ThreadRequest):
    """One side of a message."""

    def __init__(self, rank: ThreadRank, title: str, source: int, tag: int, memory: Any,
                 store: Callable[[], None] | None = None):
        super().__init__(rank, title)
        self.source, self.tag, self.memory, self.store = source, tag, memory, store
        self.nbytes = 0 if memory is None else memory.nbytes

    def advance(self) -> bool:
        """Nothing: the other side ends it."""
        return False

    def takes(self, sent: Letter) -> bool:
        """Tell whether this receive is for a message."""
        return (self.source in (sent.source, MPI.ANY_SOURCE)
                and self.tag in (sent.tag, MPI.ANY_TAG))

    def receive(self, sent: Letter) -> None:
        """Take a message over, which ends both sides."""
        self.source, self.tag, self.nbytes = sent.source, sent.tag, sent.nbytes
        if self.memory is None:
            self.value = pickle.loads(sent.memory.tobytes())
        elif sent.nbytes > self.memory.nbytes:
            self.error = MessageSizeError(
                f"a message of {sent.nbytes} bytes from rank {sent.source} met a receive of "
                f"{self.memory.nbytes} bytes")
        else:
            self.memory[:sent.nbytes] = sent.memory
            if self.store is not None:
                self.store()
        self.over = sent.over = True

    def describe(self, status: MPI.Status) -> None:
        """Say who sent how much, and with which tag."""
        status.source, status.tag, status.error = self.source, self.tag, MPI.SUCCESS
        status.Set_elements(MPI.BYTE, self.nbytes)


class Mailbox:
    """Messages to one rank of a communicator that have no other side yet, in order."""

    def __init__(self) -> None:
        self.sent: list[Letter] = []
        self.awaited: list[Letter] = []

    def send(self, message: Letter) -> None:
        """Give a message to the first receive that asks for it, or keep it."""
        receive = next((one for one in self.awaited if one.takes(message)), None)
        if receive is None:
            self.sent.append(message)
        else:
            self.awaited.remove(receive)
            receive.receive(message)

    def receive(self, message: Letter) -> None:
        """Take the first message that a receive asks for, or wait for one."""
        sent = self.find(message)
        if sent is None:
            self.awaited.append(message)
        else:
            self.sent.remove(sent)
            message.receive(sent)

    def find(self, message: Letter) -> Letter | None:
        """The first message that a receive asks for."""
        return next((one for one in self.sent if message.takes(one)), None)


class Messages:
    """The point-to-point methods of a communicator."""

    rank: int
    size: int
    here: ThreadRank
    mail: list[Mailbox]

    def check_alive(self) -> None:
        """Raise a ``CommunicatorError`` if the communicator was freed."""
        raise NotImplementedError

    def Isend(self, buf: Any, dest: int, tag: int = 0) -> ThreadRequest:
        """Send a buffer; it is read when the receiver is there."""
        buffer = host_buffer(buffer_of(buf, "buf", raw=True))
        if buffer.load is not None:
            buffer.load()
        return self._post(_bytes_of(buffer), dest, tag)

    def Irecv(self, buf: Any, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG
              ) -> ThreadRequest:
        """Receive into a buffer."""
        resolved = buffer_of(buf, "buf", raw=True, writable=True)
        buffer = host_buffer(resolved)
        if buffer is not resolved and buffer.load is not None:
            buffer.load()  # what the message does not reach stays
        return self._await(_bytes_of(buffer), source, tag, buffer.store)

    def Send(self, buf: Any, dest: int, tag: int = 0) -> None:
        """Send a buffer, and wait for the receiver."""
        self.Isend(buf, dest, tag).Wait()

    def Recv(self, buf: Any, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG,
             status: MPI.Status | None = None) -> None:
        """Receive into a buffer, and wait."""
        self.Irecv(buf, source, tag).Wait(status)

    def Sendrecv(self, sendbuf: Any, dest: int, sendtag: int = 0, recvbuf: Any = None,
                 source: int = MPI.ANY_SOURCE, recvtag: int = MPI.ANY_TAG,
                 status: MPI.Status | None = None) -> None:
        """Send one buffer and receive another at once."""
        sent, received = self.Isend(sendbuf, dest, sendtag), self.Irecv(recvbuf, source, recvtag)
        received.Wait(status)
        sent.Wait()

    def isend(self, obj: Any, dest: int, tag: int = 0) -> ThreadRequest:
        """Send an object."""
        return self._post(numpy.frombuffer(pickle.dumps(obj), "u1"), dest, tag)

    def irecv(self, buf: Any = None, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG
              ) -> ThreadRequest:
        """Receive an object: ``wait`` returns it."""
        return self._await(None, source, tag)

    def send(self, obj: Any, dest: int, tag: int = 0) -> None:
        """Send an object, and wait for the receiver."""
        self.isend(obj, dest, tag).Wait()

    def recv(self, buf: Any = None, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG,
             status: MPI.Status | None = None) -> Any:
        """Receive an object."""
        return self.irecv(buf, source, tag).wait(status)

    def sendrecv(self, sendobj: Any, dest: int, sendtag: int = 0, recvbuf: Any = None,
                 source: int = MPI.ANY_SOURCE, recvtag: int = MPI.ANY_TAG,
                 status: MPI.Status | None = None) -> Any:
        """Send one object and receive another at once."""
        sent, received = self.isend(sendobj, dest, sendtag), self.irecv(None, source, recvtag)
        value = received.wait(status)
        sent.wait()
        return value

    def Iprobe(self, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG,
               status: MPI.Status | None = None) -> bool:
        """Tell whether such a message is there."""
        self.here.progress()
        asked = Letter(self.here, "probe", source, tag, None)
        with self.here.world.changed:
            found = self.mail[self.rank].find(asked)
        if found is None:
            self.here.world.check(f"probe for a message to rank {self.rank}")
        elif status is not None:
            found.describe(status)
        return found is not None

    def Probe(self, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG,
              status: MPI.Status | None = None) -> bool:
        """Wait until such a message is there."""
        while True:
            seen = self.here.world.moves
            if self.Iprobe(source, tag, status):
                return True
            self.here.world.pause(seen)

    iprobe, probe = Iprobe, Probe

    def _post(self, memory: Any, dest: int, tag: int) -> Letter:
        self.check_alive()
        title = f"a send of {memory.nbytes} bytes to rank {dest}, tag {tag}"
        message = Letter(self.here, title, self.rank, tag, memory)
        if dest == MPI.PROC_NULL:
            message.over = True
            return message
        box = self.mail[check_root(dest, self.size)]
        with self.here.world.changed:
            if dest != self.rank:
                self.here.sent_bytes += memory.nbytes
            box.send(message)
            self.here.world.moved()
        return message

    def _await(self, memory: Any, source: int, tag: int,
               store: Callable[[], None] | None = None) -> Letter:
        self.check_alive()
        title = (f"a receive from {'any rank' if source == MPI.ANY_SOURCE else f'rank {source}'}, "
                 f"{'any tag' if tag == MPI.ANY_TAG else f'tag {tag}'}")
        message = Letter(self.here, title, source, tag, memory, store)
        if source == MPI.PROC_NULL:
            message.over, message.nbytes = True, 0
            return message
        if source != MPI.ANY_SOURCE:
            check_root(source, self.size)
        with self.here.world.changed:
            self.mail[self.rank].receive(message)
            self.here.world.moved()
        return message


def _bytes_of(buffer: Any) -> Any:
    """The bytes of a raw buffer of one block."""
    return buffer.array[buffer.displs[0]:][:buffer.counts[0]]
