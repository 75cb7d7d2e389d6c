"""Device arrays that are used in place, by work that is ordered on the caller's stream.

:func:`hpccoll.cuda.device.borrow` waits for the stream, because MPI messages have no stream order.
A device library queues on the stream and needs no wait on the host.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy

from hpccoll.cuda import device
from hpccoll.errors import BufferArgumentError


class Queue(NamedTuple):
    """Queue of work on arrays.

    Attributes:
        device: the device of the arrays.
        stream: the caller's stream, which is current there.
        shared: True if the caller uses the results on that stream and need not wait for them.
    """

    device: Any
    stream: Any
    shared: bool = True

    def mark(self) -> Any:
        """Return an event after all queued work; its ``done`` is True once that has completed."""
        cupy: Any = importlib.import_module("cupy")
        with self.device:
            event = cupy.cuda.Event(disable_timing=True)
            event.record(self.stream)
        return event


class Resident:
    """Device object as an argument whose memory is used in place, without a wait.

    Attributes:
        queue: the queue of work on it, once its memory has been requested.
    """

    queue: Queue | None = None

    def __init__(self, obj: Any):
        self.obj = obj

    def __getattr__(self, name: str) -> Any:
        return getattr(self.obj, name)  # other attributes are those of the object

    def memory(self, argument: str) -> tuple[Any, Any, None]:
        """Return the result of :func:`hpccoll.calls.memory.memory_of`.

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
    """Wrap the device memory of a buffer specification for use in place; pass others unchanged."""
    obj, rest = (spec[0], spec[1:]) if isinstance(spec, (list, tuple)) and spec else (spec, None)
    if isinstance(obj, numpy.ndarray) or not device.has_cupy():
        return spec
    try:
        if not device.is_device(obj):
            return spec
    except Exception:  # such as PyTorch's for tensors that need gradients: the resolver raises it
        return spec
    return Resident(obj) if rest is None else [Resident(obj), *rest]


def queue_of(specs: Sequence[Any]) -> Queue | None:
    """Return the queue of a call with specifications of :func:`as_resident`.

    ``None`` if it uses no device memory.

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
