"""Lower-case collectives of mpi4py for Python objects.

``bcast``, ``reduce``, ``allreduce``, ``scan`` and ``exscan`` use self-describing messages
(:mod:`hpccoll.comm.objects.wire`), so no rank needs the types or sizes of the others. Values are
combined by calling ``op`` in mpi4py's order, so results are the same to the last
bit: ``reduce`` along a binomial tree to rank 0 (source: mpi4py), lower ranks on the left; ``scan``
and ``exscan`` by recursive doubling. On a power of two of ranks, recursive doubling combines the
numbers of an ``allreduce`` in the order of the tree, on all ranks. With ``mpi4py.rc.fast_reduce``
false, objects are combined one after another, by rank.

Two things differ from mpi4py. Arrays are not pickled. An exception in ``op``, or in pickling, on
one rank is raised on every rank whose result depends on it; with mpi4py these ranks hang.
``gather`` and ``scatter`` pickle objects before the call is counted.

``allgather`` and ``alltoall``, and all methods on one rank, are mpi4py's own. They are monitored
like other calls of the MPI library.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, cast

from mpi4py import MPI

from hpccoll.comm.base import Base
from hpccoll.comm.first_calls import first_by_mpi4py
from hpccoll.comm.recognition import shortcut
from hpccoll.errors import HpccollError
from hpccoll.errors.mpi import error_handler_of
from hpccoll.runtime.events.call_log import OBJECTS
from hpccoll.runtime.planning.description import Description

if TYPE_CHECKING:
    from hpccoll.comm.objects.exchange import ObjectExchange, Operator

#: True if objects are combined one after another; mpi4py reads its ``rc`` at its import only.
SERIAL = getattr(sys.modules.get("mpi4py.rc"), "fast_reduce", True) in (False, "no")


class Objects(Base):
    """Implements the lower-case collectives."""

    def bcast(self, obj: Any, root: int = 0) -> Any:
        """Send the root's object to every rank."""
        lifetime, size = self._check_usable(), self.Get_size()
        if type(root) is not int or not 0 <= root < size:
            root = self._check_root(root, size)
        with lifetime.call_guard:
            if size == 1:
                return super().bcast(obj, root)
            if first_by_mpi4py(self):
                return _run_first(self, "bcast", obj, root)
            return self._exchange("bcast", root=root).share(obj, root, False)

    def reduce(self, sendobj: Any, op: Operator | MPI.Op = MPI.SUM, root: int = 0) -> Any:
        """Combine every rank's object at the root; elsewhere the result is ``None``."""
        with self._check_usable().call_guard:
            root = self._check_root(root, self.Get_size())
            if self._reduces_first(op, "reduce"):
                return _run_first(self, "reduce", sendobj, root, op)
            exchange = self._reduction("reduce", op, root)
            if exchange is None:
                return super().reduce(sendobj, op, root)
            value = (exchange.serial_reduce if SERIAL else exchange.binomial_reduce)(sendobj, op)
            if root:
                if exchange.rank == 0:
                    exchange.send(value, root)
                elif exchange.rank == root:
                    value = exchange.receive(0)
            return exchange.result(value if exchange.rank == root else None)

    @shortcut
    def allreduce(self, sendobj: Any, op: Operator | MPI.Op = MPI.SUM) -> Any:
        """Combine every rank's object on every rank."""
        with self._check_usable().call_guard:
            if self._reduces_first(op, "allreduce"):
                return _run_first(self, "allreduce", sendobj, op=op)
            exchange = self._reduction("allreduce", op)
            if exchange is None:
                return super().allreduce(sendobj, op)
            if SERIAL:
                return exchange.share(exchange.serial_reduce(sendobj, op), 0, True)
            place = exchange.context.place
            # On shared cores every message that wakes a rank is expensive; less so if all ranks
            # wait in machine code.
            if (exchange.size & (exchange.size - 1) or place.oversubscribed and not place.compiled
                    or not (isinstance(op, MPI.Op) and op.is_predefined)):
                return exchange.share(exchange.binomial_reduce(sendobj, op), 0, True)
            if self._numbers is None and self._calls is not None:
                self._numbers = exchange.numbers()
            value, everywhere = exchange.doubling_allreduce(sendobj, op)
            return exchange.result(value) if everywhere else exchange.share(value, 0, True)

    def _resume_allreduce(self, value: Any, op: MPI.Op, distance: int, exchanged: bool) -> Any:
        """Continue an allreduce whose operands are no longer numbers of one type."""
        exchange = self._private().service(_exchange_class())
        exchange.select("allreduce", op)
        exchange.mark()
        exchange.error = None
        value, everywhere = exchange.doubling_allreduce(value, op, distance, exchanged)
        return exchange.result(value) if everywhere else exchange.share(value, 0, True)

    def scan(self, sendobj: Any, op: Operator | MPI.Op = MPI.SUM) -> Any:
        """Combine the objects of ranks 0 to this one."""
        with self._check_usable().call_guard:
            if self._reduces_first(op, "scan"):
                return _run_first(self, "scan", sendobj, op=op)
            exchange = self._reduction("scan", op)
            if exchange is None:
                return super().scan(sendobj, op)
            return exchange.scan(sendobj, op, True, SERIAL)

    def exscan(self, sendobj: Any, op: Operator | MPI.Op = MPI.SUM) -> Any:
        """Combine the objects of the ranks before this one; ``None`` on rank 0."""
        with self._check_usable().call_guard:
            if self._reduces_first(op, "exscan"):
                return _run_first(self, "exscan", sendobj, op=op)
            exchange = self._reduction("exscan", op)
            if exchange is None:
                return super().exscan(sendobj, op)
            return exchange.scan(sendobj, op, False, SERIAL)

    def barrier(self) -> None:
        """Wait until every rank has entered the barrier."""
        self.Barrier()

    def gather(self, sendobj: Any, root: int = 0) -> list[Any] | None:
        """Collect every rank's object at the root; elsewhere the result is ``None``."""
        with self._check_usable().call_guard:
            root = self._check_root(root, self.Get_size())
            if self.Get_size() == 1:
                return super().gather(sendobj, root)
            data = MPI.pickle.dumps(sendobj)  # before the call is counted
            if first_by_mpi4py(self):
                parts = _run_first(self, "gather", data, root)
            else:
                parts = self._exchange("gather", root=root).gather(data, root)
            return None if parts is None else [MPI.pickle.loads(part) for part in parts]

    def scatter(self, sendobj: Sequence[Any] | None, root: int = 0) -> Any:
        """Distribute the root's objects, one to each rank."""
        with self._check_usable().call_guard:
            size, parts = self.Get_size(), []
            root = self._check_root(root, size)
            if size == 1:
                return super().scatter(sendobj, root)
            if self.Get_rank() == root:
                parts += [MPI.pickle.dumps(one) for one in
                         ([None] * size if sendobj is None else sendobj)]
                if len(parts) != size:
                    raise ValueError(f"expecting {size} items, got {len(parts)}")
            if first_by_mpi4py(self):
                return MPI.pickle.loads(_run_first(self, "scatter", parts, root))
            exchange = self._exchange("scatter", root=root)
            return MPI.pickle.loads(exchange.scatter(parts, root))

    def allgather(self, sendobj: Any) -> list[Any]:
        """Collect every rank's object on every rank."""
        with self._check_usable().call_guard:
            if first_by_mpi4py(self):
                return cast("list[Any]", _run_first(self, "allgather", sendobj))
        return cast("list[Any]", self._call_native("allgather", sendobj))

    def alltoall(self, sendobj: Sequence[Any]) -> list[Any]:
        """Send one object from every rank to every rank."""
        with self._check_usable().call_guard:
            if first_by_mpi4py(self):
                size = self.Get_size()
                objects = [None] * size if sendobj is None else list(sendobj)
                if len(objects) != size:
                    raise ValueError(f"expecting {size} items, got {len(objects)}")
                return cast("list[Any]", _run_first(self, "alltoall", objects))
        return cast("list[Any]", self._call_native("alltoall", sendobj))

    # -- implementation ----------------------------------------------------------------------
    def _check_root(self, root: Any, size: int) -> int:
        """Return the root as an ``int``; raise like :func:`check_root`."""
        if type(root) is int and 0 <= root < size:
            return root
        from hpccoll.calls.resolve import check_root
        with error_handler_of(self):
            return check_root(root, size)

    def _call_native(self, name: str, obj: Any) -> Any:
        """Call an mpi4py method, monitored by the guard."""
        served = self._cache.get((name, ()))
        with self._check_usable().call_guard:
            if served is None:
                served = self._cache[name, ()] = self._lower_case(name)
            try:
                return served(self, obj)
            except (HpccollError, MPI.Exception):
                raise
            except Exception:
                if self._guards and self._is_unpicklable(name, obj):
                    self._private().library.unsent()
                raise

    def _is_unpicklable(self, name: str, obj: Any) -> bool:
        """Pickle again; return True if mpi4py failed to pickle the object to send.

        Otherwise it failed to unpickle received data: the call has completed on the other ranks.
        """
        several, size = name == "alltoall", self.Get_size()
        try:
            objects = ([obj] if not several else [None] * size if obj is None else list(obj))
            for one in objects:
                MPI.pickle.dumps(one)
        except Exception:
            return True
        return several and len(objects) != size

    def _lower_case(self, name: str) -> Callable[..., Any]:
        """Return a guarded wrapper of an mpi4py method."""
        native: Callable[..., Any] = getattr(MPI.Intracomm, name)
        if not self._guards:
            return native
        description = Description(f"{name}{OBJECTS}")
        attended = self._private().library.objects(native, description)
        if not self._always:
            return attended

        def call_compared(*args: Any) -> Any:
            self._compare(description)
            return attended(*args)
        return call_compared

    def _exchange(self, name: str, op: Any = None, root: int | None = None) -> ObjectExchange:
        """Start a call on several ranks: count it and, if configured, compare it first.

        Raises:
            ContractError: the ranks have made different calls.
        """
        exchange = self._private().service(_exchange_class())
        exchange.select(name, op, root)
        if self._always:
            self._compare(exchange.call.description)
        exchange.begin()
        return exchange

    def _reduces_first(self, op: Any, name: str) -> bool:
        """Return True if mpi4py runs the next reduction, as one of the first calls.

        Raises:
            ArgumentTypeError: the operator is not callable.
        """
        if not callable(op):
            from hpccoll.arrays.kernels import not_an_operator
            raise not_an_operator(op, name)
        return first_by_mpi4py(self)

    def _reduction(self, name: str, op: Any, root: int | None = None) -> ObjectExchange | None:
        """Start a reduction of objects; return ``None`` on one rank."""
        self._check_usable()
        return self._exchange(name, op, root) if self.Get_size() > 1 else None


@cache
def _exchange_class() -> type[ObjectExchange]:
    """Return the class of exchanges; only the first call imports it, every call needs it."""
    from hpccoll.comm.objects.exchange import ObjectExchange
    return ObjectExchange


def _run_first(comm: Base, name: str, obj: Any, root: int | None = None, op: Any = None) -> Any:
    """Run a collective of objects by mpi4py; see :mod:`hpccoll.comm.objects.first`."""
    from hpccoll.comm.objects.first import run_first
    return run_first(comm, name, obj, root, op)
