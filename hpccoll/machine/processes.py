"""State of processes of this machine: alive, stopped or dead.

The state is read from Linux's ``/proc``. Process numbers are reused, so a process is identified by
its number and start time, in its kernel and container.
"""

from __future__ import annotations

import os
from typing import NamedTuple

#: States of a process.
ALIVE, STOPPED, TRACED, DEAD = "alive", "stopped", "traced", "dead"
#: Letters of ``/proc/PID/stat``: a zombie has ended, and its parent has not read its status;
#: SIGSTOP has stopped one with ``T``, and a debugger one with ``t``.
_STATES = {"Z": DEAD, "X": DEAD, "x": DEAD, "T": STOPPED, "t": TRACED}


class Process(NamedTuple):
    """Identity of a process for other processes.

    Attributes:
        host: kernel and container; empty if unknown.
        began: start time, in ticks since boot.
    """

    host: str
    pid: int
    began: int
    node: str = ""


def this_process() -> Process:
    """Return the identity of this process."""
    try:
        return Process(_host(), os.getpid(), _stat(os.getpid())[1], os.uname().nodename)
    except OSError:
        return Process("", os.getpid(), 0, os.uname().nodename)


def state_of(process: Process) -> str:
    """Return the state of a process: ``ALIVE``, ``STOPPED``, ``TRACED`` or ``DEAD``."""
    try:
        letter, began = _stat(process.pid)
    except (FileNotFoundError, ProcessLookupError):
        return DEAD
    except OSError:
        return ALIVE  # it exists, but its state may not be read
    return DEAD if began != process.began else _STATES.get(letter, ALIVE)


def ancestor_without(variable: str) -> Process | None:
    """Return the nearest ancestor without an environment variable of this process, or None."""
    assignment = f"{variable}={os.environ.get(variable)}".encode()
    pid = os.getppid()
    try:
        while pid:
            try:
                with open(f"/proc/{pid}/environ", "rb") as file:
                    inherits = assignment in file.read().split(b"\0")
            except PermissionError:  # a daemon of root's
                inherits = False
            if not inherits:
                return Process(_host(), pid, _stat(pid)[1])
            pid = parent_of(pid)
    except OSError:
        pass
    return None


def parent_of(pid: int) -> int:
    """Return the parent of a process."""
    return int(_fields(pid)[1])


def _host() -> str:
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return f"{file.read().strip()} {os.readlink('/proc/self/ns/pid')}"


def _stat(pid: int) -> tuple[str, int]:
    """Return the state of a process, as a letter, and its start time."""
    fields = _fields(pid)
    return fields[0].decode(), int(fields[19])


def _fields(pid: int) -> list[bytes]:
    """Return the fields of ``/proc/PID/stat`` from the state on."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()  # the name may contain any character
