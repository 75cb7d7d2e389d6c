"""Leftover shared memory of dead jobs on this node: search, and safe removal.

A killed job removes nothing. hpccoll's own memory has no name, or has one for an instant; MPI
libraries keep files in /dev/shm as long as a job runs. A file of this user is left over if no
process maps it or has it open, and it is not so young that a process may still open it.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from hpccoll.transport.shm.mapping import DIRECTORY, PREFIX

#: Prefixes of the file names of hpccoll and MPI libraries, and their owners.
NAMES = {PREFIX: "hpccoll", "sm_segment.": "Open MPI", "vader_segment.": "Open MPI",
         "osc_rdma.": "Open MPI", "smsc_": "Open MPI", "pmix_": "PMIx", "mpich_shar_": "MPICH",
         "mpich_": "MPICH", "Intel_MPI_": "Intel MPI", "shm-col-space-": "Intel MPI"}
#: Seconds in which a starting job may have made a file that is not open yet.
YOUNG = 60.0
#: Inode of the machine's root PID namespace; processes in another one do not see all.
WHOLE_MACHINE = "pid:[4026531836]"


class Leftover(NamedTuple):
    """A file that no living process uses.

    Attributes:
        sure: True if it can be removed: no invisible process can use it.
    """

    path: str
    nbytes: int
    owner: str
    sure: bool


def leftovers(directory: str = DIRECTORY, process: str = "/proc", now: float | None = None
              ) -> list[Leftover]:
    """Return this user's shared memory files of dead jobs; never those of a living process."""
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
    used, whole = set(_open_files(process)), _sees_all(process)
    # hpccoll's files have a name for an instant, in which only their makers use them.
    return [Leftover(str(path), status.st_blocks * 512, owner, whole or owner == "hpccoll")
            for path, status, owner in found if (status.st_dev, status.st_ino) not in used]


def remove(found: list[Leftover]) -> list[Leftover]:
    """Remove the removable files; return them."""
    gone = []
    for each in found:
        if each.sure:
            try:
                os.unlink(each.path)
            except OSError:
                continue
            gone.append(each)
    return gone


def _open_files(process: str) -> Iterator[tuple[int, int]]:
    """Yield device and inode of files that processes map or have open."""
    for one in Path(process).glob("[0-9]*"):
        try:
            for line in (one / "maps").read_text(errors="replace").splitlines():
                fields = line.split(maxsplit=5)
                if len(fields) == 6 and fields[4] != "0":
                    major, minor = (int(part, 16) for part in fields[3].split(":"))
                    yield os.makedev(major, minor), int(fields[4])
        except OSError:
            pass  # another user's, or it has exited
        try:
            for descriptor in (one / "fd").iterdir():
                status = descriptor.stat()
                yield status.st_dev, status.st_ino
        except OSError:
            pass


def _sees_all(process: str) -> bool:
    """Return True if all processes of the machine are visible: not so in most containers."""
    try:
        return os.readlink(f"{process}/self/ns/pid") == WHOLE_MACHINE
    except OSError:
        return False
