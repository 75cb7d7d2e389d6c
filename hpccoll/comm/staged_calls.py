"""Small blocking calls on device memory that the MPI library cannot move, by kept host memory.

    device --load--> host memory --the same call--> host memory --store--> device

The call on host memory is one as any other: the recogniser finds its compiled plan or its native
method, and ranks with device arrays and ranks with host arrays take part in one call. The host
memory is pinned, and kept for the communicator. The form of the call on device memory is kept, too,
so that a repeated call resolves nothing. Larger calls run segment by segment
(:mod:`hpccoll.cuda.windows`).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy
from mpi4py import MPI

from hpccoll.calls.call import Call, is_staged
from hpccoll.calls.facts import CallFacts
from hpccoll.calls.memory import PLAIN, may_be_device
from hpccoll.calls.specification import is_in_place
from hpccoll.comm.methods import Method
from hpccoll.comm.recognition import LASTING, TYPES
from hpccoll.comm.uncached.conditions import conditions_of
from hpccoll.cuda import (
    DeviceMemory,
    allocate_pinned,
    device_namespace,
    find_stream,
    flatten_device,
    is_device,
    keep,
)
from hpccoll.errors import cause_of
from hpccoll.ir.methods import BLOCKING
from hpccoll.runtime.planning.choice import Choice
from hpccoll.tune.choose import instead_of_native

if TYPE_CHECKING:
    from hpccoll.comm.base import Base
    from hpccoll.runtime.context import Context

#: Bytes of the buffers of a call, at most; larger ones are copied and sent segment by segment.
MOST_BYTES = 1 << 20
#: Bytes of kept host memory, at least.
LEAST_BYTES = 64 << 10
#: Alignment of a buffer in host memory, as of CUDA.
ALIGNMENT = 256
#: Forms of calls that a communicator keeps.
MOST_FORMS = 256


#: Reason to run an hpccoll algorithm for a call that rules leave to the MPI library.
STAGING = "the MPI library does not support device memory, and the call cannot be staged"


class Moves(NamedTuple):
    """Host memory of an array, whether it is loaded before the call, and stored after it.

    ``part`` has the bytes that are stored; ``None`` for all. Another stream may write the others.
    """

    host: numpy.ndarray
    loads: bool
    stores: bool
    part: slice | None = None


class StagedCall(NamedTuple):
    """Form of a call on device memory.

    Attributes:
        moves: of each argument that is device memory, in their order.
        args: the arguments of the call on host memory.
    """

    moves: tuple[Moves, ...]
    args: tuple[Any, ...]


#: Number of an argument, its object, and that as a flat CuPy array.
Arrays = list[tuple[int, Any, Any]]


class HostMemory:
    """Pinned memory of a communicator, for one blocking call at a time; a service of a context."""

    def __init__(self, context: Context):
        self.memory = numpy.empty(0, numpy.uint8)
        #: Event and memory of the last copy to the device, for which its call does not wait.
        self.stored: tuple[Any, numpy.ndarray] | None = None

    def views(self, arrays: Sequence[Any]) -> list[numpy.ndarray]:
        """Return host memory for flat device arrays, one after the other."""
        starts, end = [], 0
        for array in arrays:
            starts.append(end)
            end += -(-array.nbytes // ALIGNMENT) * ALIGNMENT
        if end > self.memory.nbytes:
            self.wait()  # forms that are known keep the old memory
            nbytes = max(LEAST_BYTES, 1 << (end - 1).bit_length())
            self.memory = allocate_pinned(device_namespace(), nbytes)
        # An empty slice begins where the memory begins, and MPI rejects buffers that begin alike.
        return [self.memory[start:start + array.nbytes].view(array.dtype) if array.nbytes
                else numpy.empty(0, array.dtype) for start, array in zip(starts, arrays)]

    def wait(self) -> None:
        """Wait until the last copy from it has completed."""
        if self.stored is not None:
            self.stored[0].synchronize()
            self.stored = None

    def free(self) -> None:
        """Release the memory, once the last copy from it has completed."""
        if self.stored is not None:
            keep(*self.stored)
        self.stored, self.memory = None, self.memory[:0].copy()


def with_copies(comm: Base, method: Method, call: Call, facts: CallFacts, choice: Choice
                ) -> Choice:
    """Return the choice, or an hpccoll algorithm for device memory that MPI cannot move.

    Blocking native methods copy before and after the call. A nonblocking call has to copy its
    result at completion, which only hpccoll's own requests do.
    """
    if method.form == BLOCKING or not choice.is_native or not is_staged(call):
        return choice
    found = comm._cache.choices.get((method, (facts, STAGING)))
    if found is None:
        found = instead_of_native(facts, conditions_of(comm, method), STAGING) or choice
        if comm._context is not None:  # before its set-up there are no measured times
            comm._cache.remember(method, (facts, STAGING), found)
    return found


def is_small(call: Call) -> bool:
    """Return True if a call uses staged device memory, few bytes of it, and no packed copy."""
    buffers = [one for one in (call.source, call.sink) if one is not None]
    return (any(one.staged is not None for one in buffers)
            and all(one.load is None for one in buffers)
            and _output_bytes(call.sink) is not None
            and sum(one.array.nbytes for one in buffers) <= MOST_BYTES)


def run_staged(comm: Base, method: Method, args: tuple[Any, ...]) -> bool:
    """Run a call whose form is known; return False if it is not.

    Raises:
        BufferArgumentError: the stream of an array is captured.
    """
    context = comm._context
    if context is None or context.existing_service(DeviceMemory) is not None:
        return False  # the memory may be registered: a choice of all ranks
    arrays = _arrays(args)
    known = comm._cache.staged.get(_key(method, args, arrays))
    if known is None or len(arrays) == 2 and _overlap(arrays[0][2], arrays[1][2]):
        return False
    _run(comm, context, method, known, arrays)
    return True


def run_new(comm: Base, method: Method, args: tuple[Any, ...], call: Call) -> None:
    """Run a resolved call by host memory, and keep its form."""
    context, arrays, given = comm._private(), _arrays(args), list(args)
    # The buffer of a broadcast is an output, also on the root.
    sends = method.name == "bcast" and call.root == comm.Get_rank()
    in_place = sends or method.name != "bcast" and is_in_place(args[0])
    moves: list[Moves] = []
    for index, arg in enumerate(args):
        if may_be_device(_object(arg)):
            given[index] = None  # unless this rank uses it
    used = [_holds(array, call.source) or _holds(array, call.sink) for _, _, array in arrays]
    try:
        views = context.service(HostMemory).views([
            array if use else array[:0] for (_, _, array), use in zip(arrays, used)])
    except BaseException as error:
        _report(context, method, error)
        raise
    for (index, _, array), view in zip(arrays, views):
        reads, writes = (_holds(array, one) for one in (call.source, call.sink))
        start, stop = _output_bytes(call.sink) or (0, 0)
        if writes and call.sink is not None:
            shift = call.sink.array.data.ptr - array.data.ptr
            start, stop = start + shift, stop + shift
        stores = writes and not sends and stop > start
        # The input of an in-place alltoall is a copy of its output.
        moves.append(Moves(view, (reads or writes and in_place) and view.size > 0, stores,
                           slice(start, stop) if stop - start < array.nbytes else None))
        if reads or writes:
            spec = args[index]
            given[index] = [view, *spec[1:]] if type(spec) in (list, tuple) else view
    made = StagedCall(tuple(moves), tuple(given))
    key, staged = _key(method, args, arrays), comm._cache.staged
    if key is not None and context.existing_service(DeviceMemory) is None:
        if len(staged) >= MOST_FORMS:
            staged.clear()
        staged[key] = made
    _run(comm, context, method, made, arrays)


def _run(comm: Any, context: Context, method: Method, known: StagedCall, arrays: Arrays) -> None:
    """Load, call, and store, on the caller's stream of each array."""
    memory = context.service(HostMemory)
    streams = [find_stream(obj, array, method.buffers[index]) for index, obj, array in arrays]
    try:
        memory.wait()
        for (_, _, array), (stream, _), (host, loads, _, _) in zip(arrays, streams, known.moves):
            if loads:
                with array.device:  # the null stream is that of the current device
                    try:
                        array.get(stream=stream, out=host, blocking=False)
                    finally:
                        stream.synchronize()
    except BaseException as error:
        _report(context, method, error)
        raise
    comm._repeat(method, known.args)
    for (_, _, array), (stream, shared), (host, _, stores, part) in zip(arrays, streams,
                                                                        known.moves):
        if stores:
            with array.device:
                if part is not None:
                    array, host = array.view("u1")[part], host.view("u1")[part]
                array.set(host, stream=stream)
                if shared:
                    memory.stored = stream.record(
                        device_namespace().cuda.Event(disable_timing=True)), host
                else:
                    stream.synchronize()


def _report(context: Context, method: Method, error: BaseException) -> None:
    """Report a failure of the device to the ranks that wait in the call.

    Raises:
        ContractError, BrokenCommunicatorError: another rank has failed before.
    """
    diagnosis = context.fail(error, method.title)
    if diagnosis is not error:
        raise diagnosis from cause_of(error)


def _object(spec: Any) -> Any:
    return spec[0] if type(spec) in (list, tuple) and spec else spec


def _arrays(args: tuple[Any, ...]) -> Arrays:
    """Return the arguments that are device memory: their number, object, and flat array.

    An argument that this rank does not use may be one that no call can use: it is left out.
    """
    found = []
    for index, arg in enumerate(args):
        obj = arg[0] if type(arg) in (list, tuple) and arg else arg
        try:
            if type(obj) not in PLAIN and is_device(obj):
                found.append((index, obj, flatten_device(obj, "buffer")))
        except Exception:  # as of a tensor that needs gradients
            continue
    return found


def _key(method: Method, args: tuple[Any, ...], arrays: Arrays) -> Hashable | None:
    """Return the key of a form; ``None`` if an argument has no lasting identity."""
    key: list[Hashable] = [method]
    numbers = {index for index, _, _ in arrays}
    for index, arg in enumerate(args):
        kind = type(arg)
        if arg is None or kind is int:
            key.append(arg)
        elif kind is MPI.Op and id(arg) in LASTING:
            key.append(id(arg))
        elif kind is list or kind is tuple:
            key.append(_parts(arg))
        elif arg is MPI.IN_PLACE:
            key.append("in place")
        elif index not in numbers:
            return None
    for index, _, array in arrays:
        key += (index, array.nbytes, array.dtype)
    return None if _UNKNOWN in key else tuple(key)


#: Part of a key that may mean another thing in the next call.
_UNKNOWN = "unknown"


def _parts(spec: Sequence[Any]) -> Hashable:
    """Return counts, displacements and types of a buffer specification or a list, to compare."""
    parts: list[Hashable] = [type(spec)]
    for one in spec:
        if one is None or type(one) is int:
            parts.append(one)
        elif id(one) in TYPES:
            parts.append(TYPES[id(one)])
        elif type(one) in (list, tuple):
            parts.append(_parts(one))
        elif one is not spec[0] or not may_be_device(one):
            return _UNKNOWN
    return _UNKNOWN if _UNKNOWN in parts else tuple(parts)


def _output_bytes(sink: Any) -> tuple[int, int] | None:
    """Return first and last byte that a call writes to its sink; ``None`` if it leaves gaps."""
    blocks = [(displ, displ + count) for count, displ in zip(sink.counts, sink.displs)
              if count] if sink is not None else []
    if not blocks:
        return 0, 0
    start, stop = min(blocks)[0], max(blocks)[1]
    if stop - start > sink.count:
        return None
    return start * sink.array.itemsize, stop * sink.array.itemsize


def _holds(array: Any, buffer: Any) -> bool:
    """Return True if a buffer of the call lies in an array."""
    if buffer is None or buffer.staged is None:
        return False
    return bool(array.data.ptr <= buffer.array.data.ptr < array.data.ptr + max(array.nbytes, 1))


def _overlap(one: Any, other: Any) -> bool:
    start, begin = one.data.ptr, other.data.ptr
    return bool(start < begin + other.nbytes and begin < start + one.nbytes)
