"""Flight records on signals: a thread writes them, the main thread may block in a native call."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import threading
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

from hpccoll.worker import Worker

#: Signals on which a rank writes a record; the second one then ends it.
SIGNALS = signal.SIGUSR1, signal.SIGTERM
#: The thread, and the socket pair that it reads.
_threads: list[tuple[Worker, socket.socket, socket.socket]] = []


class RecordWriter(Protocol):
    """Writer of flight records."""

    def dump(self, why: str) -> str:
        """Write a record; return the path of its file."""

    def write_record(self, why: str) -> None:
        """Write a record if the user has configured a folder."""


def listen(recorder: RecordWriter) -> None:
    """Write records on signals, unless the program has its own handlers for them."""
    if threading.current_thread() is not threading.main_thread():
        return  # handlers can be set only there
    ours = [one for one in SIGNALS if signal.getsignal(one) == signal.SIG_DFL]
    if not ours:
        return
    reading, writing = socket.socketpair()
    writing.setblocking(False)
    before = signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)
    if before != -1:  # the program uses the wakeup descriptor itself
        signal.set_wakeup_fd(before)
        return
    worker = Worker("hpccoll flight recorder", partial(_work, recorder, reading, ours))
    worker.wake()
    _threads.append((worker, reading, writing))
    for one in ours:
        # The thread wakes before this handler runs, which waits for the interpreter.
        signal.signal(one, partial(_handle, recorder, writing.fileno(), worker))


def _handle(recorder: RecordWriter, ours: int, worker: Worker, number: int, frame: Any) -> None:
    """Do what the thread would do, if it ended or another wakeup descriptor replaced its own.

    asyncio sets one with its first signal handler, of whatever signal.
    """
    current = signal.set_wakeup_fd(-1)
    with suppress(OSError, ValueError):  # of an event loop that is closed
        signal.set_wakeup_fd(current)
    if current != ours or worker.stopping:
        _write_on(recorder, number)


def _write_on(recorder: RecordWriter, number: int) -> None:
    """Write a record on a signal; SIGTERM ends the process then."""
    if number == signal.SIGUSR1:
        recorder.dump("SIGUSR1")
        return
    recorder.write_record("SIGTERM")
    # Only the main thread may call Python for it, which may never return to Python.
    ctypes.CDLL(None).signal(int(number), None)
    os.kill(os.getpid(), number)


def _work(recorder: RecordWriter, reading: socket.socket, ours: list[signal.Signals]) -> None:
    while numbers := reading.recv(64):  # empty after the shutdown at exit
        for number in numbers:
            if number in ours:
                _write_on(recorder, number)


def at_exit() -> None:
    """End the thread; handlers write the records then."""
    for worker, reading, writing in _threads:
        current = signal.set_wakeup_fd(-1)
        if current != writing.fileno():
            signal.set_wakeup_fd(current)
        reading.shutdown(socket.SHUT_RD)
        worker.stop()
        reading.close()
        writing.close()
    _threads.clear()
