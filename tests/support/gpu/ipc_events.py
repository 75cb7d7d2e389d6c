"""Events that processes of a test share: numbers in a file say what was recorded, and happened."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

import numpy

from support.gpu.streams import Devices, Event, GpuTask

#: Numbers of each event: last recorded, last happened, wanted.
NUMBERS = 3
RECORDED, HAPPENED, WANTED = range(NUMBERS)
#: Seconds between two looks, and until a rank gives another one up.
PAUSE, PATIENCE = 0.0005, 20.0


class Serving(Protocol):
    """What events ask of the process's side of the folder (``support.gpu.ipc.SharedFolder``)."""

    @property
    def numbers(self) -> numpy.ndarray: ...

    def slot(self, event: SharedEvent) -> int: ...

    def serve(self) -> None: ...


class SharedEvent(Event):
    """An event that other processes wait for, too."""

    def __init__(self, machine: Devices, share: Serving):
        self.tasks: dict[int, GpuTask] = {}
        self.share, self.slot = share, share.slot(self)
        super().__init__(machine)

    @property
    def task(self) -> GpuTask | None:
        """The last record."""
        return self._task

    @task.setter
    def task(self, task: GpuTask | None) -> None:
        self._task = task
        if task is not None and not task.done:
            self.tasks[int(self.share.numbers[self.slot][RECORDED])] = task

    def happening(self) -> Callable[[], Any]:
        numbers = self.share.numbers[self.slot]
        number = numbers[RECORDED] = int(numbers[RECORDED]) + 1

        def happen() -> None:
            numbers[HAPPENED] = max(int(numbers[HAPPENED]), number)
            self.tasks.pop(number, None)

        return happen


class ForeignTask(GpuTask):
    """A wait for an event of another process, as it was recorded last."""

    __slots__ = ("number", "numbers", "share")

    def __init__(self, share: Serving, numbers: numpy.ndarray):
        super().__init__(lambda: None, ())
        self.share, self.numbers, self.number = share, numbers, int(numbers[RECORDED])

    @property
    def missing(self) -> str:  # type: ignore[override]
        """Whoever asks wants it to happen."""
        if self.numbers[HAPPENED] >= self.number:
            return ""
        self.numbers[WANTED] = max(int(self.numbers[WANTED]), self.number)
        return "an event of another process"

    def awaited(self) -> str:
        """Give the other process time, and do what others want of this one."""
        end = time.monotonic() + PATIENCE
        while self.missing and time.monotonic() < end:
            self.share.serve()
            time.sleep(PAUSE)
        return self.missing
