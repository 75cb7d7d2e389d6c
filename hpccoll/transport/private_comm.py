"""Communicator for hpccoll's own objects: :class:`PrivateComm`."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import reduce
from typing import Any

from mpi4py import MPI

#: Bytes of the first message of a call: the number of bytes of the pickled object, and its start.
FRAME, HEAD = 512, 8


class PrivateComm(MPI.Intracomm):
    """Communicator whose objects are pickled by Python, and not by ``MPI.pickle``.

    A program may replace that by a pickler that knows its own types only.
    """

    def allgather(self, sendobj: Any) -> list[Any]:
        """Collect every rank's object on every rank; one call of the library for small objects."""
        data, size = pickle.dumps(sendobj), self.Get_size()
        frames = bytearray(size * FRAME)
        self.Allgather([_frame(data), MPI.BYTE], [frames, MPI.BYTE])
        lengths = [_length(frames, start) for start in range(0, size * FRAME, FRAME)]
        if max(lengths) <= FRAME - HEAD:
            return [pickle.loads(frames[start + HEAD:start + FRAME])
                    for start in range(0, size * FRAME, FRAME)]
        return _split(lengths, lambda parts: self.Allgatherv([data, MPI.BYTE], parts))

    def bcast(self, obj: Any, root: int = 0) -> Any:
        """Send the root's object to every rank."""
        data = pickle.dumps(obj) if self.Get_rank() == root else b""
        frame = bytearray(_frame(data))
        self.Bcast([frame, MPI.BYTE], root)
        length = _length(frame, 0)
        if length <= FRAME - HEAD:
            return pickle.loads(frame[HEAD:])
        whole = bytearray(data or length)
        self.Bcast([whole, MPI.BYTE], root)
        return pickle.loads(whole)

    def gather(self, sendobj: Any, root: int = 0) -> list[Any] | None:
        """Collect every rank's object at the root; elsewhere the result is ``None``."""
        data = pickle.dumps(sendobj)
        lengths = self.allgather(len(data))
        if self.Get_rank() != root:
            self.Gatherv([data, MPI.BYTE], None, root)
            return None
        return _split(lengths, lambda parts: self.Gatherv([data, MPI.BYTE], parts, root))

    def allreduce(self, sendobj: Any, op: Callable[[Any, Any], Any] = MPI.SUM) -> Any:
        """Combine every rank's object on every rank, in the order of ranks."""
        return reduce(op, self.allgather(sendobj))


def _frame(data: bytes) -> bytes:
    return (len(data).to_bytes(HEAD, "little") + data[:FRAME - HEAD]).ljust(FRAME, b"\0")


def _length(frames: bytearray, start: int) -> int:
    return int.from_bytes(frames[start:start + HEAD], "little")


def _split(lengths: list[int], collect: Callable[[Any], None]) -> list[Any]:
    """Return the objects of such lengths that ``collect`` receives."""
    whole, ends = bytearray(sum(lengths)), [0]
    collect([whole, lengths, MPI.BYTE])
    for length in lengths:
        ends.append(ends[-1] + length)
    return [pickle.loads(whole[start:end]) for start, end in zip(ends, ends[1:])]
