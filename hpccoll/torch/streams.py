"""Streams: a call on CUDA tensors comes behind what its caller has queued, in any thread.

Every thread has a current stream of its own. So the caller's is asked for an event where the call
is made, and the call is run on a stream that waits for this event, and for nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

from hpccoll.errors import BufferArgumentError


class CallerStream:
    """What a caller had queued on its stream when it made a call.

    Args:
        device: of the tensors.

    Raises:
        BufferArgumentError: the stream is captured into a graph; the capture stays whole.
    """

    def __init__(self, device: torch.device):
        check_capture()
        self.device = device
        self.queued = torch.cuda.current_stream(device).record_event()

    @contextmanager
    def behind(self) -> Iterator[None]:
        """Make a stream current that comes behind it; at the end, wait for what is queued there."""
        stream = torch.cuda.Stream(self.device)
        stream.wait_event(self.queued)
        with torch.cuda.stream(stream):
            yield
        stream.synchronize()


def check_capture() -> None:
    """Raise where the current stream is captured.

    Raises:
        BufferArgumentError: it is.
    """
    if torch.cuda.is_current_stream_capturing():
        raise BufferArgumentError(
            "tensor", "is used during CUDA graph capture of its stream, which cannot contain MPI "
                      "messages", "end the capture before the call")


def caller_stream(tensors: Sequence[torch.Tensor]) -> CallerStream | None:
    """The caller's stream on the device of some tensors; ``None`` for tensors of the CPU."""
    return CallerStream(tensors[0].device) if tensors and tensors[0].is_cuda else None


def behind(stream: CallerStream | None) -> AbstractContextManager[None]:
    """What makes a call come behind a caller's stream."""
    return nullcontext() if stream is None else stream.behind()
