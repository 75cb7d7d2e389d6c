"""Device arrays that stay where they are: for whoever orders its work on the caller's stream.

:func:`hpccoll.cuda.device.borrow` waits for the stream, since messages of MPI are ordered by
nothing else. A library of the device's own is ordered by the stream, and needs no host.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy

from hpccoll.cuda import device
from hpccoll.errors import BufferArgumentError


class Queue(NamedTuple):
    """Where work on arrays is queued.

    Attributes:
        device: of the arrays.
        stream: the caller's, which is the current one there.
        shared: the caller uses the results on that stream, and need not wait for them.
    """

    device: Any
    stream: Any
    shared: bool = True

    def mark(self) -> Any:
        """An event behind all that is queued; its ``done`` tells whether that has happened."""
        cupy: Any = importlib.import_module("cupy")
        with self.device:
            event = cupy.cuda.Event(disable_timing=True)
            event.record(self.stream)
        return event


class Resident:
    """A device object as an argument whose memory is used as it is, and waited for by nobody.

    Attributes:
        queue: where work on it is queued, once its memory has been asked for.
    """

    queue: Queue | None = None

    def __init__(self, obj: Any):
        self.obj = obj

    def __getattr__(self, name: str) -> Any:
        return getattr(self.obj, name)  # what is asked of the object by whom it is passed on to

    def memory(self, argument: str) -> tuple[Any, Any, None]:
        """What :func:`hpccoll.calls.memory.memory_of` returns.

        Raises:
            BufferArgumentError: it is not contiguous, or its stream is captured into a graph.
        """
        cupy = importlib.import_module("cupy")
        flat = device.flatten(device.as_cupy(self.obj), argument)
        stream, shared = device._stream_of(self.obj, flat, cupy)
        if stream.is_capturing():
            raise BufferArgumentError(argument, "is used during CUDA graph capture of its stream, "
                                                "which would replay the call unchecked",
                                      "end the capture before the call, and start another one "
                                      "after it")
        self.queue = Queue(flat.device, stream, shared)
        return flat, cupy, None


def as_resident(spec: Any) -> Any:
    """A specification of a buffer, whose device memory stays where it is; others unchanged."""
    obj, rest = (spec[0], spec[1:]) if isinstance(spec, (list, tuple)) and spec else (spec, None)
    if isinstance(obj, numpy.ndarray) or not device.is_served():
        return spec
    try:
        if not device.is_device(obj):
            return spec
    except Exception:  # such as PyTorch's, of a tensor that needs gradients: who resolves it tells
        return spec
    return Resident(obj) if rest is None else [Resident(obj), *rest]


def queue_of(specs: Sequence[Any]) -> Queue | None:
    """Where the work of a call is queued, whose specifications are :func:`as_resident` ones.

    ``None`` where it uses no device memory.

    Raises:
        BufferArgumentError: its buffers are on two devices, or on two streams.
    """
    parts = [spec[0] if isinstance(spec, list) and spec else spec for spec in specs]
    queues = [one.queue for one in parts if isinstance(one, Resident) and one.queue is not None]
    for one in queues[1:]:
        if (one.device.id, one.stream.ptr) != (queues[0].device.id, queues[0].stream.ptr):
            raise BufferArgumentError("sendbuf", "is on another GPU or stream than recvbuf",
                                      "pass arrays of the same GPU and library")
    return queues[0] if queues else None
