"""Processes of this machine, found again by other processes of it: alive, stopped or dead.

Linux's ``/proc`` tells. A process number comes to mean another process some time, so it goes with
the moment at which the process began, and with the kernel and the container that count so.
"""

from __future__ import annotations

import os
from typing import NamedTuple

#: What a process may be found to be.
ALIVE, STOPPED, TRACED, DEAD = "alive", "stopped", "traced", "dead"
#: Letters of ``/proc/PID/stat``: a zombie has ended, though nobody has asked how; SIGSTOP has
#: stopped one with ``T``, and a debugger one with ``t``.
_STATES = {"Z": DEAD, "X": DEAD, "x": DEAD, "T": STOPPED, "t": TRACED}


class Process(NamedTuple):
    """A process, as others can find it again.

    Attributes:
        host: which kernel and which container; empty where that cannot be told.
        pid: its number there.
        began: when it began, in ticks since the machine did.
        node: what its machine is called, for messages to people.
    """

    host: str
    pid: int
    began: int
    node: str = ""


def this_process() -> Process:
    """This process."""
    try:
        return Process(_host(), os.getpid(), _stat(os.getpid())[1], os.uname().nodename)
    except OSError:
        return Process("", os.getpid(), 0, os.uname().nodename)


def state_of(process: Process) -> str:
    """What a process of this machine is now: ``ALIVE``, ``STOPPED``, ``TRACED`` or ``DEAD``."""
    try:
        letter, began = _stat(process.pid)
    except (FileNotFoundError, ProcessLookupError):
        return DEAD
    except OSError:
        return ALIVE  # it may not be looked at, so it is there
    return DEAD if began != process.began else _STATES.get(letter, ALIVE)


def ancestor_without(variable: str) -> Process | None:
    """The nearest ancestor whose environment has not the variable that this process has.

    Returns:
        ``None`` where it cannot be found.
    """
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
            pid = int(_fields(pid)[1])
    except OSError:
        pass
    return None


def _host() -> str:
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return f"{file.read().strip()} {os.readlink('/proc/self/ns/pid')}"


def _stat(pid: int) -> tuple[str, int]:
    """A process's state, as a letter, and when it began."""
    fields = _fields(pid)
    return fields[0].decode(), int(fields[19])


def _fields(pid: int) -> list[bytes]:
    """The fields of ``/proc/PID/stat`` from the state on."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()  # its name may hold anything
