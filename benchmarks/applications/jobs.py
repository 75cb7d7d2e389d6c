"""Jobs of the bench: one launcher each, with its time, largest memory, passes and numbers."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import libraries

from applications import results
from applications.program import Program

HERE = Path(__file__).resolve().parent
#: What runs a program's words, by the name of the candidate.
CANDIDATES: Mapping[str, tuple[str, ...]] = {
    "plain": ("-m", "mpi4py"), "hpccoll": ("-m", "hpccoll", "run")}
#: One thread a rank: ranks share the cores, and numbers do not depend on the number of threads.
SETTINGS = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1",
            "HPCCOLL_TUNING": "off", "PYTHONHASHSEED": "0"}
#: Root starts jobs in containers.
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
#: Seconds that a launcher has to end its ranks.
PATIENCE = 10


class Place(NamedTuple):
    """Where a job runs: an environment, a number of ranks, and its folder for files."""

    environment: Path
    ranks: int
    folder: Path
    sources: Path | None = None


class Outcome(NamedTuple):
    """What a job left.

    Attributes:
        status: of the launcher; 124 if the job was ended at its limit.
        seconds: from the start of the launcher to its end.
        mebibytes: largest resident memory of one process.
        processor_seconds: of all processes of the job.
        others: share of the cores that other programs used, from 0 to 1.
        passes, numbers, times: as the ranks reported them.
    """

    status: int
    seconds: float
    mebibytes: float
    passes: dict[str, bool]
    numbers: list[float]
    times: Mapping[str, float] = {}
    processor_seconds: float = 0.0
    others: float = 0.0


def words(program: Program, candidate: str, place: Place, profile: Path | None) -> list[str]:
    """Return the command line of a job."""
    known = {"here": str(HERE), "sources": str(place.sources), "folder": str(place.folder),
             "site": str(next((place.environment / "lib").glob("python3*/site-packages"), ""))}
    bin = place.environment / "bin"
    return [str(bin / "mpiexec"), "-n", str(place.ranks), str(bin / "python"),
            *CANDIDATES[candidate], *(("--json", str(profile)) if profile else ()),
            *(word.format(**known) for word in program.words)]


def run(program: Program, candidate: str, place: Place, profile: Path | None = None) -> Outcome:
    """Run a job in a fresh folder; its output stays beside that."""
    shutil.rmtree(place.folder, ignore_errors=True)
    reports = place.folder / "reports"
    reports.mkdir(parents=True)
    crowded = libraries.CROWDED if place.ranks > (os.cpu_count() or 1) else {}
    bin = place.environment / "bin"
    environment = {
        **SETTINGS, **crowded, **(AS_ROOT if os.geteuid() == 0 else {}), **_inherited(),
        results.FOLDER: str(reports), "PATH": f"{bin}{os.pathsep}{os.environ.get('PATH', '')}",
        "PYTHONPATH": str(HERE.parent)}
    with (place.folder / "output.txt").open("wb") as output:
        began, busy = time.perf_counter(), _busy_seconds()
        process = subprocess.Popen(
            words(program, candidate, place, profile), cwd=place.folder, env=environment,
            stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            start_new_session=True)
        status, usage = _wait(process, began + program.seconds)
        seconds, busy = time.perf_counter() - began, _busy_seconds() - busy
    own = usage.ru_utime + usage.ru_stime
    others = max((busy - own) / (seconds * (os.cpu_count() or 1)), 0.0)
    name = f"{program.name}-{place.environment.name}-{place.ranks}-{candidate}.txt"
    shutil.copy(place.folder / "output.txt", place.folder.with_name(name.replace(" ", "-")))
    return Outcome(status, seconds, usage.ru_maxrss / 1024, *results.read(reports), own,
                   min(others, 1.0))


def _inherited() -> dict[str, str]:
    """Return the environment, in which Python may write bytecode, as in that of a user."""
    return {name: value for name, value in os.environ.items()
            if name not in ("PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX")}


def _busy_seconds() -> float:
    """Return the seconds for which the cores were busy since the boot; 0 if unknown."""
    try:
        fields = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:9]
    except OSError:
        return 0.0
    user, nice, system, _, _, _, _, stolen = map(int, fields)
    return (user + nice + system + stolen) / os.sysconf("SC_CLK_TCK")


def served(profile: Path) -> dict[str, int] | None:
    """Return the number of collective calls of a profile, and of those that hpccoll ran."""
    try:
        found = json.loads(profile.read_text(encoding="utf-8"))
        return {"calls": found["calls"], "served": round(found["calls"] * found["served_part"])}
    except (OSError, ValueError, KeyError):
        return None


def _wait(process: subprocess.Popen[Any], limit: float
          ) -> tuple[int, resource.struct_rusage]:
    """Wait for a launcher; return its status, and what its processes used."""
    late = False
    while True:
        # Unlike Popen.wait, it has the memory of this job's processes alone.
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            process.returncode = os.waitstatus_to_exitcode(status)
            return 124 if late else process.returncode, usage
        if time.perf_counter() > limit + late * PATIENCE:
            os.killpg(process.pid, signal.SIGKILL if late else signal.SIGTERM)
            late = True
        time.sleep(0.01)
