"""Work that is queued on a device, and what a device refuses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


class CudaError(RuntimeError):
    """What the device refused, or what a rule forbids."""


class CudaStatus(CudaError):
    """A status of CUDA's runtime as an error."""

    def __init__(self, status: int):
        super().__init__(f"status {status}")
        self.status = status


#: What ``eventQuery`` returns of an event that has not happened.
NOT_READY = 600


class GpuTask:
    """Queued work, and what it comes after."""

    __slots__ = ("after", "done", "run")
    missing = ""

    def __init__(self, run: Callable[[], Any], after: Sequence[GpuTask]):
        self.run, self.after, self.done = run, after, False

    def awaited(self) -> str:
        """What is missing still when somebody waits for it."""
        return self.missing


def nothing() -> None:
    """The work of an event."""
