"""Stream order: a call on CUDA tensors runs after the work on its caller's stream.

Each thread has its own current stream. The call records an event on the caller's stream, and
runs on a stream that waits for this event only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib import import_module
from typing import Any

import torch

from hpccoll.errors import BufferArgumentError


class CallerStream:
    """Event on the caller's stream at the time of a call.

    Args:
        device: device of the tensors.

    Raises:
        BufferArgumentError: the stream is being captured into a graph; the capture remains valid.
    """

    def __init__(self, device: torch.device):
        check_capture()
        self.device = device
        self.queued = torch.cuda.current_stream(device).record_event()

    @contextmanager
    def after_event(self) -> Iterator[None]:
        """Return a context with a stream that waits for the event; synchronize it at the end."""
        stream = torch.cuda.Stream(self.device)
        stream.wait_event(self.queued)
        with torch.cuda.stream(stream), current_in_cupy(self.device):
            yield
        stream.synchronize()


@contextmanager
def current_in_cupy(device: torch.device) -> Iterator[None]:
    """Make torch's current stream that of CuPy, on which hpccoll queues its work."""
    try:
        cupy: Any = import_module("cupy")
    except ImportError:  # the conversion of the tensor raises the error
        yield
        return
    stream = torch.cuda.current_stream(device).cuda_stream
    with cupy.cuda.Device(device.index), cupy.cuda.ExternalStream(stream, device.index):
        yield


def check_capture() -> None:
    """Reject calls during a graph capture.

    Raises:
        BufferArgumentError: the current stream is being captured.
    """
    if torch.cuda.is_current_stream_capturing():
        raise BufferArgumentError(
            "tensor", "is used during CUDA graph capture of its stream, which cannot contain MPI "
                      "messages", "end the capture before the call")


def caller_stream(tensors: Sequence[torch.Tensor]) -> CallerStream | None:
    """Return the caller's stream on the device of tensors; ``None`` for CPU tensors."""
    return CallerStream(tensors[0].device) if tensors and tensors[0].is_cuda else None


def after_caller(stream: CallerStream | None) -> AbstractContextManager[None]:
    """Return a context in which a call runs after the caller's stream."""
    return nullcontext() if stream is None else stream.after_event()
