"""Small programs on ranks of their own, judged from outside: by status, output and time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import launch

BIN = Path(sys.executable).parent
#: What makes Open MPI's ranks go on when one has died.
ULFM = ("--with-ft", "ulfm")
#: What every program begins with. Barriers of ``world`` are the library's own.
HEAD = """
import os, signal, sys, threading, time
import numpy
from mpi4py import MPI
import hpccoll
from hpccoll.runtime.attributes import existing_context

world = MPI.Intracomm(MPI.COMM_WORLD)
rank, size = world.Get_rank(), world.Get_size()
comm = hpccoll.Comm(world.Dup())
OURS = {"allreduce": "recursive_doubling", "iallreduce": "recursive_doubling",
        "allreduce_init": "recursive_doubling", "bcast": "binomial", "barrier": "dissemination"}

def say(*words):
    sys.stdout.write(" ".join(map(str, (rank, *words))) + "\\n")
    sys.stdout.flush()
"""


class Ended(NamedTuple):
    """How a job ended.

    Attributes:
        status: the launcher's; negative where it was killed, as after too long a time.
        output: all that the ranks wrote.
        seconds: that it took.
    """

    status: int
    output: str
    seconds: float


def is_open_mpi() -> bool:
    """Tell whether this environment's library is Open MPI."""
    return any((BIN.parent / "lib").glob("libmpi.so*")) and (BIN / "prterun").exists()


def job(program: str, size: int, *options: str, seconds: float = 40, then=None,
        head: str = HEAD, **settings: str
        ) -> Ended:
    """Run a program on ranks, and kill everything that is left of it at the end.

    Args:
        program: what follows ``head``.
        size: ranks.
        options: of the launcher.
        seconds: the most that it may take.
        then: called with the ranks' processes once all of them have said ``ready``.
        settings: environment variables.
    """
    with tempfile.TemporaryDirectory() as scratch:
        path, log = Path(scratch, "program.py"), Path(scratch, "output")
        path.write_text(head + program, encoding="utf-8")
        command = [str(launch.mpiexec(BIN)), *options, "-n", str(size), sys.executable, str(path)]
        start = time.monotonic()
        with open(log, "wb") as output:
            process = subprocess.Popen(
                command, env={**launch.settings(BIN), "HPCCOLL_TIMEOUT": "8", **settings},
                cwd=launch.ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                start_new_session=True)
            try:
                if then is not None:
                    while (log.read_bytes().count(b"ready") < size and process.poll() is None
                           and time.monotonic() - start < seconds):
                        time.sleep(0.02)
                    then(ranks_of(str(path)))
                process.wait(seconds)
            except subprocess.TimeoutExpired:
                pass
            finally:
                taken = time.monotonic() - start
                kill_all(process, str(path))
        return Ended(process.returncode, log.read_text(errors="replace"), taken)


def kill_all(process: subprocess.Popen[bytes], path: str) -> None:
    """Kill a launcher and its ranks, which may be in sessions of their own."""
    for pid in ranks_of(path):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    if process.poll() is None:
        process.kill()
    process.wait()


def ranks_of(path: str) -> list[int]:
    """The processes that run a program themselves, by its path."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if words[1:2] == [path.encode()]:
            found.append(int(entry.name))
    return found
