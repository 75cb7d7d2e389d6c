"""The first lower-case collectives of a communicator, which mpi4py runs.

They cost no set-up and keep the promises of the others: objects are pickled here, and mpi4py moves
bytes. An exception in pickling or in ``op`` on one rank travels in place of its object.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy
from mpi4py import MPI

from hpccoll.comm.objects.messages import operator_name
from hpccoll.comm.objects.wire import FRAME, LONG, RemoteError, decode, encode, memory_for
from hpccoll.runtime.events.call_log import OBJECTS
from hpccoll.runtime.planning.description import Description

if TYPE_CHECKING:
    from hpccoll.comm.base import Base


def run_first(comm: Base, name: str, obj: Any, root: int | None = None, op: Any = None) -> Any:
    """Run a collective of objects by mpi4py, once all ranks have entered it.

    Args:
        comm, name, obj: the communicator, the method, and this rank's object or objects.
        root, op: of the call; ``None`` if it has none.
    """
    parcels = Parcels(comm.Get_rank())
    comm._check_alive().first_calls += 1
    arguments: list[Any] = [None]
    if root in (None, parcels.rank) or name in ("reduce", "gather"):
        arguments = [[parcels.pack(one) for one in obj] if name in ("scatter", "alltoall")
                     else parcels.pack(obj)]
    if op is not None:
        arguments.append(parcels.combine(op))
    if root is not None:
        arguments.append(root)
    with comm._setup(name, Description(
            f"{name}{OBJECTS}", operator="" if op is None else operator_name(op),
            root="" if root is None else str(root))):
        found = getattr(MPI.Intracomm, name)(comm, *arguments)
    opened = [parcels.open(one) for one in (found if isinstance(found, list) else [found])]
    for one in (*opened, parcels.error):
        if type(one) is RemoteError:
            one.throw(parcels.rank)
    return opened if isinstance(found, list) else opened[0]


class Parcels:
    """Objects as bytes, on their way through mpi4py.

    Args:
        rank: this rank.

    Attributes:
        error: the last error of this rank that travels in place of an object.
    """

    def __init__(self, rank: int):
        self.rank = rank
        self.error: RemoteError | None = None

    def pack(self, obj: Any) -> bytes:
        """Return an object, or the error of pickling it, as bytes."""
        frame = bytearray(FRAME)
        data, error = encode(frame, obj, self.rank)
        self.error = error or self.error
        return bytes(frame) if data is None else bytes(frame) + bytes(data)

    def open(self, parcel: bytes | None) -> Any:
        """Return the object in a parcel; a ``RemoteError`` if it is one or unpickling fails."""
        if parcel is None:
            return None
        frame = bytearray(parcel[:FRAME])
        memory = memory_for(frame) if frame[0] == LONG else None
        if isinstance(memory, numpy.ndarray):
            memory.reshape(-1).view("u1")[...] = numpy.frombuffer(parcel, "u1", offset=FRAME)
        elif memory is not None:
            memory[:] = parcel[FRAME:]
        return decode(frame, memory, self.rank)

    def combine(self, op: Callable[[Any, Any], Any]) -> Callable[[bytes, bytes], bytes]:
        """Return an operator for parcels; an error in one of them is the result."""
        def apply(one: bytes, two: bytes) -> bytes:
            left, right = self.open(one), self.open(two)
            for parcel, value in ((one, left), (two, right)):
                if type(value) is RemoteError:
                    return parcel
            try:
                return self.pack(op(left, right))
            except Exception as error:
                return self.pack(RemoteError(error, self.rank))
        return apply
