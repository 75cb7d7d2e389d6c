"""Jobs in which a rank is killed, stopped, busy or gone, and what the others must have said.

The launcher of each library has an option that makes it leave the others alone when a rank dies.
The judgement is from outside: by what ranks wrote into files, and when.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import launch

HERE = Path(__file__).resolve().parent
#: What makes the launchers leave other ranks alone when one has died.
SURVIVE = {"mpich": ["-disable-auto-cleanup"], "openmpi": ["--enable-recovery"]}
#: Seconds that a job may take on top of its deadline, until all its processes are killed.
SLACK = 25
#: Seconds below which no deadline of a test is; more on a machine that other work shares.
SHORTEST = 0.0
#: Status of a process that was ended by hpccoll's watchdog.
ENDED = 76
RANK = ('rank=${PMI_RANK:-$OMPI_COMM_WORLD_RANK}; trap "" USR1; exec 2>"$0/stderr.$rank"; '
        '"$1" "$2" "$0" "$rank" "$3"; echo $? > "$0/status.$rank"')


class Outcome(NamedTuple):
    """How a job went for one rank.

    Attributes:
        kind, text, ranks: of the error it got; ``Ended`` where its process was ended.
        seconds: from the fault to the error.
        stderr: all it printed there.
    """

    kind: str
    text: str
    ranks: tuple[int, ...]
    seconds: float
    stderr: str


def library(bin: Path) -> str:
    """``mpich`` or ``openmpi``."""
    text = subprocess.run([bin / "python", "-c", "from mpi4py import MPI;"
                           "print(MPI.Get_library_version())"], capture_output=True, text=True,
                          check=True, env=launch.settings(bin)).stdout
    return "openmpi" if "Open MPI" in text else "mpich"


def run(bin: Path, kind: str, size: int, case: dict[str, Any], timeout: float = 6.0,
        resume: float | None = None, report: float = 60.0, **settings: str
        ) -> dict[int, Outcome]:
    """Run a job to its end; return how it went, by rank, but for one that was killed.

    Args:
        bin, kind: programs of an environment, and its library.
        size: ranks.
        case: for ``program.py``.
        timeout, report: of the job, in seconds; infinity for no time-out.
        resume: a rank that is stopped goes on after so many seconds.
        settings: further environment variables.
    """
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        environment = {**launch.settings(bin), "HPCCOLL_TIMEOUT": str(timeout),
                       "HPCCOLL_REPORT": str(report), **settings}
        command = [launch.mpiexec(bin), *SURVIVE[kind], "-n", str(size), "sh", "-c", RANK, scratch,
                   str(bin / "python"), str(HERE / "program.py"), json.dumps(case)]
        process = subprocess.Popen(command, env=environment, cwd=launch.ROOT, stdout=sys.stderr,
                                   stdin=subprocess.DEVNULL, start_new_session=True)
        end = time.monotonic() + min(timeout, SLACK) + SLACK
        try:
            victim = case["odd"] if case["fault"] in ("kill", "crash", "inside", "stop") else -1
            waited = [rank for rank in range(size) if rank != victim or resume is not None]
            while time.monotonic() < end and not all(_over(directory, r) for r in waited):
                fault = directory / f"fault.{case['odd']}"
                if resume is not None and fault.exists():
                    told = json.loads(fault.read_text())
                    if time.time() - told["time"] > resume:
                        os.kill(told["pid"], signal.SIGCONT)
                        resume = float("inf")
                time.sleep(0.02)
            return {rank: _outcome(directory, rank, case["odd"]) for rank in waited}
        finally:
            _end(process, directory, size)


def _over(directory: Path, rank: int) -> bool:
    files = (directory / f"{name}.{rank}" for name in ("result", "status"))
    return any(file.exists() and file.stat().st_size for file in files)  # a shell may be writing


def _outcome(directory: Path, rank: int, odd: int) -> Outcome:
    fault, result = directory / f"fault.{odd}", directory / f"result.{rank}"
    stderr, status = directory / f"stderr.{rank}", directory / f"status.{rank}"
    when = json.loads(fault.read_text())["time"] if fault.exists() else time.time()
    text = stderr.read_text(errors="replace") if stderr.exists() else ""
    if result.exists():
        told = json.loads(result.read_text())
        return Outcome(told["kind"], told["text"], tuple(told["ranks"] or ()),
                       told["time"] - when, text)
    if status.exists() and status.read_text().strip() == str(ENDED):
        return Outcome("Ended", text, (), stderr.stat().st_mtime - when, text)
    ended = status.read_text().strip() if status.exists() else "nothing"
    return Outcome(f"status {ended}", text, (), time.time() - when, text)


def _end(process: subprocess.Popen[bytes], directory: Path, size: int) -> None:
    """Kill what is left of a job, hard; its launcher may leave ranks behind, as it was told."""
    for rank in range(size):
        told = directory / f"pid.{rank}"
        if told.exists():
            try:
                os.kill(json.loads(told.read_text())["pid"], signal.SIGKILL)
            except ProcessLookupError:
                pass
    try:
        process.wait(3)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
