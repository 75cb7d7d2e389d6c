"""The lower-case collectives of mpi4py that combine or share Python objects.

``bcast``, ``reduce``, ``allreduce``, ``scan`` and ``exscan`` use messages that describe
themselves (:mod:`hpccoll.comm.objects.wire`), so no rank needs to know beforehand what the others
pass. Values are combined by calling ``op`` in mpi4py's order, so results are the same to the last
bit: ``reduce`` along a binomial tree to rank 0 (source: mpi4py), lower ranks on the left; ``scan``
and ``exscan`` by recursive doubling. On a power of two of ranks, that combines the numbers of an
``allreduce`` as the tree does, but on all ranks at once.

Two things differ from mpi4py. Arrays are not pickled. And an exception in ``op``, or in pickling,
on one rank is raised on every rank whose result depends on it, where mpi4py leaves them waiting.

The other lower-case methods, and all of them on one rank, are mpi4py's own; they are looked after
like other calls of the MPI library's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from mpi4py import MPI

from hpccoll.arrays.kernels import not_an_operator
from hpccoll.calls.resolve import check_root
from hpccoll.comm.base import Base
from hpccoll.comm.objects.exchange import ObjectExchange, Operator
from hpccoll.comm.objects.wire import (
    FRAME,
    IMMUTABLE,
    LONG,
    RemoteError,
    decode,
    encode,
    memory_for,
)
from hpccoll.comm.recognition import shortcut
from hpccoll.errors import HpccollError
from hpccoll.runtime.description import Description
from hpccoll.runtime.log import OBJECTS


class Objects(Base):
    """The lower-case collectives."""

    _frame: bytearray | None = None

    def bcast(self, obj: Any, root: int = 0) -> Any:
        """Send the root's object to every rank."""
        lifetime, size = self._check_usable(), self.Get_size()
        if type(root) is not int or not 0 <= root < size:
            root = check_root(root, size)
        with lifetime.entrance:
            if self._always:
                self._compare(Description("bcast of objects", root=str(root)))
            return self._share(obj, root, False) if size > 1 else super().bcast(obj, root)

    def reduce(self, sendobj: Any, op: Operator | MPI.Op = MPI.SUM, root: int = 0) -> Any:
        """Combine every rank's object at the root; elsewhere the result is ``None``."""
        with self._check_usable().entrance:
            exchange = self._exchange(op, "reduce")
            root = check_root(root, self.Get_size())
            if exchange is None:
                return super().reduce(sendobj, op, root)
            value = exchange.binomial_reduce(sendobj, op)
            if root:
                if exchange.rank == 0:
                    exchange.send(value, root)
                elif exchange.rank == root:
                    value = exchange.receive(0)
            return exchange.result(value if exchange.rank == root else None)

    @shortcut
    def allreduce(self, sendobj: Any, op: Operator | MPI.Op = MPI.SUM) -> Any:
        """Combine every rank's object on every rank."""
        with self._check_usable().entrance:
            exchange = self._exchange(op, "allreduce")
            if exchange is None:
                return super().allreduce(sendobj, op)
            place = exchange.context.place
            # Ranks that share processors pay for every message that wakes one up; less where all
            # wait in machine code.
            if (exchange.size & (exchange.size - 1) or place.oversubscribed and not place.compiled
                    or not (isinstance(op, MPI.Op) and op.is_predefined)):
                return self._share(exchange.binomial_reduce(sendobj, op), 0, True)
            if self._numbers is None and self._calls is not None:
                self._numbers = exchange.numbers()
            value, everywhere = exchange.doubling_allreduce(sendobj, op)
            return exchange.result(value) if everywhere else self._share(value, 0, True)

    def _resume_allreduce(self, value: Any, op: MPI.Op, distance: int, exchanged: bool) -> Any:
        """Go on with an allreduce of numbers that is not one of two numbers of a kind any more."""
        exchange = self._exchange(op, "allreduce")
        if exchange is None:
            return value
        value, everywhere = exchange.doubling_allreduce(value, op, distance, exchanged)
        return exchange.result(value) if everywhere else self._share(value, 0, True)

    def scan(self, sendobj: Any, op: Operator | MPI.Op = MPI.SUM) -> Any:
        """Combine the objects of ranks 0 to this one."""
        with self._check_usable().entrance:
            exchange = self._exchange(op, "scan")
            if exchange is None:
                return super().scan(sendobj, op)
            return exchange.doubling_scan(sendobj, op, inclusive=True)

    def exscan(self, sendobj: Any, op: Operator | MPI.Op = MPI.SUM) -> Any:
        """Combine the objects of the ranks before this one; ``None`` on rank 0."""
        with self._check_usable().entrance:
            exchange = self._exchange(op, "exscan")
            if exchange is None:
                return super().exscan(sendobj, op)
            return exchange.doubling_scan(sendobj, op, inclusive=False)

    def barrier(self) -> None:
        """Wait until every rank has entered the barrier."""
        self.Barrier()

    def gather(self, sendobj: Any, root: int = 0) -> list[Any] | None:
        """Collect every rank's object at the root; elsewhere the result is ``None``."""
        return self._attended("gather", sendobj, root)

    def scatter(self, sendobj: Sequence[Any] | None, root: int = 0) -> Any:
        """Deal the root's objects out, one to each rank."""
        return self._attended("scatter", sendobj, root)

    def allgather(self, sendobj: Any) -> list[Any]:
        """Collect every rank's object on every rank."""
        return cast("list[Any]", self._attended("allgather", sendobj))

    def alltoall(self, sendobj: Sequence[Any]) -> list[Any]:
        """Send one object from every rank to every rank."""
        return cast("list[Any]", self._attended("alltoall", sendobj))

    # -- how they are served -----------------------------------------------------------------
    def _attended(self, name: str, obj: Any, *root: int) -> Any:
        """Call a method of mpi4py's, which is looked after."""
        if root and type(root[0]) is not int:
            root = check_root(root[0], self.Get_size()),
        served = self._cache.get((name, root))
        with self._check_usable().entrance:
            if served is None:
                served = self._cache[name, root] = self._lower_case(name, root)
            try:
                return served(self, obj, *root)
            except (HpccollError, MPI.Exception):
                raise
            except Exception:
                guard = self._private().guard if self._guards else None
                if guard is not None and self._refused(name, obj, root):
                    guard.unsent()
                raise

    def _refused(self, name: str, obj: Any, root: tuple[int, ...]) -> bool:
        """Tell, by trying once more, whether mpi4py has failed to pickle what it was to send.

        Else it has failed to unpickle what it got: the call has ended on the other ranks.
        """
        if name == "scatter" and root != (self.Get_rank(),):
            return False
        several, size = name in ("scatter", "alltoall"), self.Get_size()
        try:
            objects = ([obj] if not several else [None] * size if obj is None else list(obj))
            for one in objects:
                MPI.pickle.dumps(one)
        except Exception:
            return True
        return several and len(objects) != size

    def _lower_case(self, name: str, root: tuple[int, ...]) -> Callable[..., Any]:
        """A method of mpi4py's as it is to be called."""
        for one in root:
            check_root(one, self.Get_size())
        native: Callable[..., Any] = getattr(MPI.Intracomm, name)
        guard = self._private().guard if self._guards else None
        if guard is None:
            return native
        description = Description(f"{name}{OBJECTS}", root=str(*root))
        attended = guard.objects(native, description)
        if not self._always:
            return attended

        def compared(*args: Any) -> Any:
            self._compare(description)
            return attended(*args)
        return compared

    def _exchange(self, op: Any, name: str) -> ObjectExchange | None:
        """What sends and combines the objects of a reduction; ``None`` on one rank.

        Raises:
            ArgumentTypeError: the operator cannot be called.
        """
        self._check_usable()
        if not callable(op):
            raise not_an_operator(op, name)
        if self.Get_size() == 1:
            return None
        if self._always:
            self._compare(Description(f"{name}{OBJECTS}"))
        exchange = self._private().service(ObjectExchange)
        exchange.title, exchange.error = f"{name}{OBJECTS}", None
        return exchange

    def _share(self, obj: Any, root: int, owned: bool) -> Any:
        """Send the root's object to every rank.

        The root gets a copy, as with mpi4py, unless the object was made for this call (``owned``).
        """
        try:
            context = self._private()  # compares HPCCOLL_CONTRACT, even where it is "off"
            guard = context.guard if self._guards else None
            native = MPI.Intracomm.Bcast
            return self._shared(guard.native(native, "bcast", None) if guard else native,
                                obj, root, owned)
        except MPI.Exception as error:
            verdict = self._private().fail(error, "bcast of objects")
            if verdict is not error:
                raise verdict from error
            raise

    def _shared(self, native: Callable[..., None], obj: Any, root: int, owned: bool) -> Any:
        rank = self.Get_rank()
        frame = self._frame
        if frame is None:
            frame = self._frame = bytearray(FRAME)
        if rank != root:
            native(self, [frame, FRAME, MPI.BYTE], root)
            data = memory_for(frame) if frame[0] == LONG else None
            if data is not None:
                native(self, [data, MPI.BYTE], root)
            value = decode(frame, data, rank)
            if type(value) is RemoteError:
                value.throw(rank)
            return value
        data, error = encode(frame, obj, rank)
        native(self, [frame, FRAME, MPI.BYTE], root)
        if data is not None:
            native(self, [data, MPI.BYTE], root)
        if error is not None:
            error.throw(rank)
        if type(obj) in IMMUTABLE or owned and data is obj:
            return obj
        value = decode(frame, data, rank)
        return value.copy() if value is obj else value
