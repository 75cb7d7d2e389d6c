"""Table of collective methods: the native method of each, and its resolver, loaded on first use."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from hpccoll.ir.methods import BLOCKING, METHODS, NONBLOCKING, PERSISTENT

if TYPE_CHECKING:
    from hpccoll.calls.call import Call
    from hpccoll.comm.base import Base

#: Native methods. ``super()`` would find the same ones in a third of a microsecond more.
native = MPI.Intracomm


#: Arguments that mpi4py lets a caller omit.
DEFAULTS = {"op": MPI.SUM, "root": 0, "recvcounts": None}


class Method:
    """Method of a communicator.

    Args:
        name: the name of its blocking form, in lower case.
        native: the native method.
        form: blocking, nonblocking or persistent.

    Attributes:
        title: the name of this form, for example ``iallreduce``.
        collective: the name under which its algorithms are registered.
        names: the names that select it in user choices, the most specific first.
        buffers: number of its first arguments that are buffers.
    """

    def __init__(self, name: str, native: Callable[..., Any], form: str = BLOCKING):
        self.name, self.native, self.form = name, native, form
        self.title, self.collective = form.format(name), METHODS[name]
        self.names = self.title, name, self.collective
        self.buffers = {"barrier": 0, "bcast": 1}.get(name, 2)

    @cached_property
    def resolve(self) -> Callable[..., Call]:
        """Return ``resolve(size, rank, *arguments)``, which returns a call."""
        from hpccoll.calls import resolve
        resolver: Callable[..., Call] = getattr(resolve, self.name)
        return resolver

    def positional(self, args: tuple[Any, ...], options: dict[str, Any]) -> tuple[Any, ...]:
        """Return all arguments of a call in the order of the parameters."""
        code = self.resolve.__code__
        names = code.co_varnames[2:code.co_argcount]  # the first two are the size and the rank
        given = {**DEFAULTS, **dict(zip(names, args)), **options}
        return tuple(given[name] for name in names)

    def serve(self, comm: Base, *args: Any) -> Any:
        """Run an uncached call."""
        return comm._serve(self, args)

    def serve_native(self, comm: MPI.Intracomm, *args: Any,
                     native: Callable[..., Any] | None = None, **options: Any) -> Any:
        """Call the native method and convert its errors to hpccoll's.

        ``native`` is a wrapper of that method, if the call has to be recorded.
        """
        from hpccoll.calls.native import call_native
        argument = "buf" if self.name == "bcast" else "sendbuf"
        return call_native(native or self.native, argument, comm, *args, **options)


BARRIER = Method("barrier", native.Barrier)
BCAST = Method("bcast", native.Bcast)
REDUCE = Method("reduce", native.Reduce)
ALLREDUCE = Method("allreduce", native.Allreduce)
SCAN = Method("scan", native.Scan)
EXSCAN = Method("exscan", native.Exscan)
REDUCE_SCATTER_BLOCK = Method("reduce_scatter_block", native.Reduce_scatter_block)
REDUCE_SCATTER = Method("reduce_scatter", native.Reduce_scatter)
ALLGATHER = Method("allgather", native.Allgather)
ALLGATHERV = Method("allgatherv", native.Allgatherv)
GATHER = Method("gather", native.Gather)
GATHERV = Method("gatherv", native.Gatherv)
SCATTER = Method("scatter", native.Scatter)
SCATTERV = Method("scatterv", native.Scatterv)
ALLTOALL = Method("alltoall", native.Alltoall)
ALLTOALLV = Method("alltoallv", native.Alltoallv)
ALLTOALLW = Method("alltoallw", native.Alltoallw)


def _form(form: str, method: Method, native: Callable[..., Any]) -> Method:
    return Method(method.name, native, form)


IBARRIER = _form(NONBLOCKING, BARRIER, native.Ibarrier)
IBCAST = _form(NONBLOCKING, BCAST, native.Ibcast)
IREDUCE = _form(NONBLOCKING, REDUCE, native.Ireduce)
IALLREDUCE = _form(NONBLOCKING, ALLREDUCE, native.Iallreduce)
ISCAN = _form(NONBLOCKING, SCAN, native.Iscan)
IEXSCAN = _form(NONBLOCKING, EXSCAN, native.Iexscan)
IREDUCE_SCATTER_BLOCK = _form(NONBLOCKING, REDUCE_SCATTER_BLOCK, native.Ireduce_scatter_block)
IREDUCE_SCATTER = _form(NONBLOCKING, REDUCE_SCATTER, native.Ireduce_scatter)
IALLGATHER = _form(NONBLOCKING, ALLGATHER, native.Iallgather)
IALLGATHERV = _form(NONBLOCKING, ALLGATHERV, native.Iallgatherv)
IGATHER = _form(NONBLOCKING, GATHER, native.Igather)
IGATHERV = _form(NONBLOCKING, GATHERV, native.Igatherv)
ISCATTER = _form(NONBLOCKING, SCATTER, native.Iscatter)
ISCATTERV = _form(NONBLOCKING, SCATTERV, native.Iscatterv)
IALLTOALL = _form(NONBLOCKING, ALLTOALL, native.Ialltoall)
IALLTOALLV = _form(NONBLOCKING, ALLTOALLV, native.Ialltoallv)
IALLTOALLW = _form(NONBLOCKING, ALLTOALLW, native.Ialltoallw)

BARRIER_INIT = _form(PERSISTENT, BARRIER, native.Barrier_init)
BCAST_INIT = _form(PERSISTENT, BCAST, native.Bcast_init)
REDUCE_INIT = _form(PERSISTENT, REDUCE, native.Reduce_init)
ALLREDUCE_INIT = _form(PERSISTENT, ALLREDUCE, native.Allreduce_init)
SCAN_INIT = _form(PERSISTENT, SCAN, native.Scan_init)
EXSCAN_INIT = _form(PERSISTENT, EXSCAN, native.Exscan_init)
REDUCE_SCATTER_BLOCK_INIT = _form(PERSISTENT, REDUCE_SCATTER_BLOCK,
                                  native.Reduce_scatter_block_init)
REDUCE_SCATTER_INIT = _form(PERSISTENT, REDUCE_SCATTER, native.Reduce_scatter_init)
ALLGATHER_INIT = _form(PERSISTENT, ALLGATHER, native.Allgather_init)
ALLGATHERV_INIT = _form(PERSISTENT, ALLGATHERV, native.Allgatherv_init)
GATHER_INIT = _form(PERSISTENT, GATHER, native.Gather_init)
GATHERV_INIT = _form(PERSISTENT, GATHERV, native.Gatherv_init)
SCATTER_INIT = _form(PERSISTENT, SCATTER, native.Scatter_init)
SCATTERV_INIT = _form(PERSISTENT, SCATTERV, native.Scatterv_init)
ALLTOALL_INIT = _form(PERSISTENT, ALLTOALL, native.Alltoall_init)
ALLTOALLV_INIT = _form(PERSISTENT, ALLTOALLV, native.Alltoallv_init)
ALLTOALLW_INIT = _form(PERSISTENT, ALLTOALLW, native.Alltoallw_init)
