"""Shared memory that dead jobs have left on this node: found, and removed where that is safe.

A job that is killed can remove nothing. hpccoll's own memory has no name, or has it for an instant;
MPI libraries keep files in /dev/shm as long as a job runs. A file of this user is left over if no
process maps it or has it open, and it is not so young that a process may be about to.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from hpccoll.transport.shm.mapping import DIRECTORY, PREFIX

#: What the names begin with that hpccoll and MPI libraries give their files, and whose they are.
NAMES = {PREFIX: "hpccoll", "sm_segment.": "Open MPI", "vader_segment.": "Open MPI",
         "osc_rdma.": "Open MPI", "smsc_": "Open MPI", "pmix_": "PMIx", "mpich_shar_": "MPICH",
         "mpich_": "MPICH", "Intel_MPI_": "Intel MPI", "shm-col-space-": "Intel MPI"}
#: Seconds in which a job that starts may have made a file that nobody has opened yet.
YOUNG = 60.0
#: The number of the machine's own namespace of processes: who is in another one does not see all.
WHOLE_MACHINE = "pid:[4026531836]"


class Leftover(NamedTuple):
    """A file that no living process uses.

    Attributes:
        path, nbytes: where it is, and the memory that it takes.
        owner: which library made it.
        sure: it can be removed: no process can be using it that is not seen from here.
    """

    path: str
    nbytes: int
    owner: str
    sure: bool


def leftovers(directory: str = DIRECTORY, process: str = "/proc", now: float | None = None
              ) -> list[Leftover]:
    """Files of this user in shared memory that dead jobs have left; never of a living process.

    Args:
        directory: where shared memory has a file system.
        process: where the machine shows its processes.
        now: the time.
    """
    found, end = [], (time.time() if now is None else now) - YOUNG
    for path in sorted(Path(directory).glob("*")):
        owner = next((owner for start, owner in NAMES.items() if path.name.startswith(start)), "")
        try:
            status = path.lstat()
        except OSError:
            continue
        if (owner and stat.S_ISREG(status.st_mode) and status.st_uid == os.getuid()
                and max(status.st_mtime, status.st_ctime) < end):
            found.append((path, status, owner))
    if not found:
        return []
    used, whole = set(_used(process)), _sees_all(process)
    # Ours are named for an instant, in which nobody but its makers can use them: none is older.
    return [Leftover(str(path), status.st_blocks * 512, owner, whole or owner == "hpccoll")
            for path, status, owner in found if (status.st_dev, status.st_ino) not in used]


def remove(found: list[Leftover]) -> list[Leftover]:
    """Remove those that can be; return what was removed."""
    gone = []
    for each in found:
        if each.sure:
            try:
                os.unlink(each.path)
            except OSError:
                continue
            gone.append(each)
    return gone


def _used(process: str) -> Iterator[tuple[int, int]]:
    """Files that processes map or have open, by device and inode."""
    for one in Path(process).glob("[0-9]*"):
        try:
            for line in (one / "maps").read_text(errors="replace").splitlines():
                fields = line.split(maxsplit=5)
                if len(fields) == 6 and fields[4] != "0":
                    major, minor = (int(part, 16) for part in fields[3].split(":"))
                    yield os.makedev(major, minor), int(fields[4])
        except OSError:
            pass  # another user's, or it has ended
        try:
            for descriptor in (one / "fd").iterdir():
                status = descriptor.stat()
                yield status.st_dev, status.st_ino
        except OSError:
            pass


def _sees_all(process: str) -> bool:
    """Tell whether all processes of the machine can be seen: not so in most containers."""
    try:
        return os.readlink(f"{process}/self/ns/pid") == WHOLE_MACHINE
    except OSError:
        return False
