"""Threads of this package. Each has an owner, which stops and joins it before MPI is finalized."""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable

#: Longest pause in seconds that a wake-up does not end: a sleep costs less than a wait.
NAP = 1e-3


class Worker:
    """Daemon thread that calls a function repeatedly; starts with the first :meth:`wake`.

    Args:
        name: name of the thread.
        work: returns the seconds until its next call, or None to sleep until :meth:`wake`.
        at_exit: called when the interpreter exits, if the thread was started.
    """

    def __init__(self, name: str, work: Callable[[], float | None],
                 at_exit: Callable[[], object] | None = None):
        self.name, self.work, self.at_exit = name, work, at_exit
        self.stopping = False
        self.thread: threading.Thread | None = None
        self._wakeup, self._starting = threading.Event(), threading.Lock()

    @property
    def is_alive(self) -> bool:
        """Return True if the thread was started and has not ended."""
        return self.thread is not None and self.thread.is_alive()

    def wake(self) -> None:
        """Start the thread or end its sleep.

        Raises:
            RuntimeError: no thread can be started.
        """
        self._wakeup.set()
        if self.thread is None:
            with self._starting:
                if self.thread is None and not self.stopping:
                    thread = threading.Thread(target=self._run, name=self.name, daemon=True)
                    thread.start()
                    self.thread = thread
                    if self.at_exit is not None:
                        atexit.register(self.at_exit)

    def stop(self, seconds: float | None = None) -> None:
        """End the thread after one more call of its function, and join it for some seconds."""
        self.stopping = True
        self._wakeup.set()
        if self.at_exit is not None:
            atexit.unregister(self.at_exit)
        if self.thread is not None and self.thread is not threading.current_thread():
            self.thread.join(seconds)

    def _run(self) -> None:
        while True:
            self._wakeup.clear()  # before the function looks for work
            last = self.stopping
            pause = self.work()
            if last:
                return
            if pause is not None and pause <= NAP:
                time.sleep(pause)
            else:
                self._wakeup.wait(pause)
