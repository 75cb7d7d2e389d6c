"""Calls like an earlier one: served without resolving, choosing or planning again.

Two calls have one *shape* when they call the same method on arrays of the same sizes and types,
with the same operator and root. Every rank has seen the same shapes, so every rank takes the same
path: what the MPI library served before, it serves again; what hpccoll prepared before runs again
if the arrays lie where they lay - and goes the long way if not, which is no concern of the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mpi4py import MPI
from numpy import ndarray

from hpccoll.calls.specification import native_form
from hpccoll.comm.cache import NATIVE_SHAPE, Shape, Shapes, same_arrays, same_memory
from hpccoll.comm.lifetime import Lifetime
from hpccoll.config import Config
from hpccoll.ir.operators import OPERATORS
from hpccoll.ir.topology import Topology
from hpccoll.runtime.choice import Choice
from hpccoll.runtime.context import Context
from hpccoll.runtime.executor import Execution, run_prepared

_address, _IN_PLACE = MPI.Get_address, MPI.IN_PLACE


#: Shapes remembered, before all are forgotten: sizes may be new in every call.
MOST_SHAPES = 2048
#: Operators that always exist; the ``id`` of any other may come to mean another operator.
LASTING = frozenset(id(getattr(MPI, name.upper())) for name in OPERATORS)
#: The same of types.
TYPES = {id(value): name for name, value in vars(MPI).items()
         if isinstance(value, MPI.Datatype) and value != MPI.DATATYPE_NULL}
#: The buffers of a call, and what else its shape depends on.
_PARTS: dict[str, Callable[..., tuple[Any, Any, Any]]] = {
    "bcast": lambda buf, root: (None, buf, root),
    "allreduce": lambda sendbuf, recvbuf, op: (sendbuf, recvbuf, id(op)),
    "scan": lambda sendbuf, recvbuf, op: (sendbuf, recvbuf, id(op)),
    "exscan": lambda sendbuf, recvbuf, op: (sendbuf, recvbuf, id(op)),
    "reduce_scatter_block": lambda sendbuf, recvbuf, op: (sendbuf, recvbuf, id(op)),
    "reduce_scatter": lambda sendbuf, recvbuf, counts, op: (
        sendbuf, recvbuf, (id(op), tuple(map(int, counts)))),
    "reduce": lambda sendbuf, recvbuf, op, root: (sendbuf, recvbuf, (id(op), root)),
    "allgather": lambda sendbuf, recvbuf: (sendbuf, recvbuf, None),
    "allgatherv": lambda sendbuf, recvbuf: (sendbuf, recvbuf, None),
    "alltoall": lambda sendbuf, recvbuf: (sendbuf, recvbuf, None),
    "alltoallv": lambda sendbuf, recvbuf: (sendbuf, recvbuf, None),
    "alltoallw": lambda sendbuf, recvbuf: (sendbuf, recvbuf, None),
    "gather": lambda sendbuf, recvbuf, root: (sendbuf, recvbuf, root),
    "scatter": lambda sendbuf, recvbuf, root: (sendbuf, recvbuf, root),
}


class Recalling:
    """Mixin: what a communicator remembers of its calls."""

    # ``Dup`` and ``Clone`` make instances without calling ``__init__``, hence class defaults.
    _config: Config
    _life: Lifetime | None = None
    _context: Context | None = None
    _layout: Topology | None = None
    _wishes: dict[str, Choice] = {}
    #: Shapes seen under the present wishes, and under each set of wishes so far.
    _shapes: Shapes
    _seen_under: dict[tuple, Shapes]

    def _again(self, name: str, sendbuf: Any, recvbuf: Any, extra: Any) -> Shape | bool:
        """Serve a call like an earlier one at once; tell whether that was possible.

        Returns:
            ``NATIVE_SHAPE`` where the native method is to serve it: that is left to the caller,
            who need not pack its arguments for it.
        """
        # The hot path: no helper functions, and nothing is looked at twice.
        shapes = self._shapes
        repeat = shapes.repeats.get(id(recvbuf)) if shapes.repeats else None
        if repeat is not None:
            method, others, same, execution = repeat
            if (method is name and others == extra and same(sendbuf, recvbuf)
                    and execution.hot is not None):
                try:
                    run_prepared(execution, self._context.config)
                except BaseException:
                    self._context.abandon(execution)
                    raise
                return True
        if type(sendbuf) is ndarray and type(recvbuf) is ndarray:
            shape = shapes.get((name, extra, recvbuf.nbytes, recvbuf.dtype,
                                sendbuf.nbytes, sendbuf.dtype))
        elif type(recvbuf) is ndarray and (sendbuf is _IN_PLACE or sendbuf is None):
            sendbuf = None
            shape = shapes.get((name, extra, recvbuf.nbytes, recvbuf.dtype))
        else:
            recvbuf, sendbuf, extra = _plain(sendbuf, recvbuf, extra)
            if recvbuf is None:
                return False
            shape = shapes.get(
                (name, extra, recvbuf.nbytes, recvbuf.dtype) if sendbuf is None else
                (name, extra, recvbuf.nbytes, recvbuf.dtype, sendbuf.nbytes, sendbuf.dtype))
        if shape is NATIVE_SHAPE:
            if sendbuf is not None and (
                    sendbuf is recvbuf or sendbuf.base is not None or recvbuf.base is not None
            ) and not _usable(sendbuf, recvbuf):
                return False
            return shape
        if shape is None:
            return False
        try:
            # Only contiguous arrays have an address here.
            place = shape, _address(recvbuf), None if sendbuf is None else _address(sendbuf)
        except BufferError:
            return False
        # A read-only array is an error, unless it is this rank's input; the long way tells.
        return recvbuf.flags.writeable and self._prepared(place)

    def _prepared(self, place: tuple) -> bool:
        """Run what was prepared for a shape on these addresses; tell whether there is such."""
        context = self._context
        execution = context.prepared.get(place)
        if execution is None:
            return False
        try:
            run_prepared(execution, context.config)
        except BaseException:
            context.abandon(execution)
            raise
        return True

    def _repeated(self, name: str, args: tuple, execution: Execution) -> None:
        """Note which arrays a prepared execution serves, to be found by the output's ``id``."""
        sendbuf, recvbuf, extra = _PARTS[name](*args) if args else (None, None, None)
        if (execution.hot is not None and type(recvbuf) is ndarray
                and (type(sendbuf) is ndarray or sendbuf is _IN_PLACE)):
            arrays = [array for array in (sendbuf, recvbuf) if array is not _IN_PLACE]
            # NumPy does not resize an array that has weak references; no view can be resized.
            same = (same_arrays if all(array.base is not None for array in arrays)
                    else same_memory)(sendbuf, recvbuf)
            self._shapes.repeats[id(recvbuf)] = name, extra, same, execution

    def _remember(self, method: str, name: str, args: tuple, shape: Shape) -> tuple | None:
        """Note under which shape a call was served; its place, if it can repeat.

        ``method`` is ``allreduce`` or ``iallreduce`` where the ``name`` is ``allreduce``.
        """
        key, arrays = _key(method, name, args)
        # An alltoall in place works on a copy made for the call, which is gone afterwards.
        if key is None or (shape is not NATIVE_SHAPE and name.startswith("alltoall")
                           and len(arrays) < 2):
            return None
        if shape is NATIVE_SHAPE and any(native_form(arg) is not arg for arg in args):
            return None
        if len(self._shapes) + len(self._shapes.repeats) >= MOST_SHAPES:
            self._shapes.clear()  # on one rank or on all: the long way ends at the same choice
        shape = self._shapes.setdefault(key, shape)
        first, second = (*map(_address, arrays), None, None)[:2]
        return shape, first, second


def counted(op: MPI.Op, counts: Any) -> tuple | None:
    """What the shape of a reduce-scatter depends on; ``None`` for counts not understood here."""
    if type(counts) not in (list, tuple):
        return None
    extra = id(op), tuple(counts)
    try:
        hash(extra)
    except TypeError:
        return None
    return extra


def _plain(sendbuf: Any, recvbuf: Any, extra: Any
           ) -> tuple[ndarray | None, ndarray | None, Any]:
    """The arrays of a call, output and input, and what else its shape depends on.

    Both are ``None`` for buffers that are not understood here.
    """
    if type(sendbuf) in (list, tuple):
        sendbuf, more = _specified(sendbuf)
        extra = extra, more
    if type(recvbuf) in (list, tuple):
        recvbuf, more = _specified(recvbuf)
        extra = extra, more, 0
    if type(sendbuf) is ndarray and type(recvbuf) is ndarray:
        return recvbuf, sendbuf, extra
    if sendbuf is None or sendbuf is _IN_PLACE:
        return recvbuf if type(recvbuf) is ndarray else None, None, extra
    if type(sendbuf) is ndarray and (recvbuf is None or recvbuf is _IN_PLACE):
        return sendbuf, None, (extra, recvbuf is None)
    return None, None, extra


def _specified(spec: list | tuple) -> tuple[Any, Any]:
    """The array of ``[array, counts, displs, type]`` and its like, and the rest, hashable."""
    if len(spec) == 2 and type(spec[0]) is ndarray and id(spec[1]) in TYPES:
        return spec[0], TYPES[id(spec[1])]  # by far the most common
    try:
        rest = tuple(map(_frozen, spec[1:]))
    except TypeError:
        return (), None  # a spec that is not understood; no array, and not None either
    return spec[0] if spec and type(spec[0]) is ndarray else (), rest


def _frozen(part: Any) -> Any:
    if isinstance(part, (list, tuple)):
        return tuple(map(_frozen, part))
    if part is None or type(part) in (int, str):
        return part
    if id(part) in TYPES:
        return TYPES[id(part)]
    raise TypeError


def _key(method: str, name: str, args: tuple) -> tuple[tuple | None, Sequence[ndarray]]:
    """The key of a call's shape, as the hot path forms it, and its arrays: output, input."""
    if name == "barrier":
        return (method,), ()
    if name not in _PARTS or any(
            isinstance(arg, MPI.Op) and id(arg) not in LASTING for arg in args):
        return None, ()
    sendbuf, recvbuf, extra = _PARTS[name](*args)
    recvbuf, sendbuf, extra = _plain(sendbuf, recvbuf, extra)
    arrays = [array for array in (recvbuf, sendbuf) if array is not None]
    if not arrays or not all(array.flags.c_contiguous for array in arrays):
        return None, ()
    return (method, extra, *(part for array in arrays for part in (array.nbytes, array.dtype))
            ), arrays


def _usable(sendbuf: ndarray, recvbuf: ndarray) -> bool:
    """Tell whether views can be used as they are: contiguous, writable, and surely apart."""
    if not (sendbuf.flags.c_contiguous and recvbuf.flags.carray):
        return False  # the long way has words for it
    owner, another = (sendbuf if sendbuf.base is None else sendbuf.base,
                      recvbuf if recvbuf.base is None else recvbuf.base)
    if (owner is not another and type(owner) is ndarray and type(another) is ndarray
            and owner.base is None and another.base is None):
        return True  # parts of two arrays that own their memory
    first, second = _address(sendbuf), _address(recvbuf)
    return first >= second + recvbuf.nbytes or second >= first + sendbuf.nbytes
