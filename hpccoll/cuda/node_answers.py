"""Results of tests that start a process, shared by the ranks of a node.

The first rank that needs a result locks its place in a file, runs the test and writes the result.
Ranks that need it meanwhile wait for the lock and read. A rank may need a result alone, so only
:meth:`NodeAnswers.connect` is collective: communicators call it when they are set up.
"""

from __future__ import annotations

import fcntl
import os
import zlib
from collections.abc import Callable
from contextlib import suppress

from mpi4py import MPI

from hpccoll.cuda.device_paths import Answer
from hpccoll.transport.shm.mapping import DIRECTORY, identity

#: Bytes of a result, and number of places for results.
WIDTH, PLACES = 1 << 10, 1 << 12


class NodeAnswers:
    """The file of this process; without one each rank runs its own tests."""

    def __init__(self) -> None:
        self.file = -1

    def connect(self, node_comm: MPI.Comm) -> None:
        """Open one file on all ranks of a node, unless all have one; collective."""
        if all(node_comm.allgather(self.file >= 0)):
            return
        file, path, leads = -1, "", node_comm.Get_rank() == 0
        with suppress(OSError):
            if leads:  # without a name: it disappears with the processes
                file = os.open(DIRECTORY, os.O_RDWR | os.O_TMPFILE, 0o600)
                path = f"/proc/{os.getpid()}/fd/{file}"
        path, wanted = node_comm.bcast((path, identity(file)))
        with suppress(OSError):
            file = file if leads else os.open(path, os.O_RDWR)
        # In another PID namespace the path may lead to the file of another process.
        usable = file >= 0 and identity(file) == wanted
        if all(node_comm.allgather(usable)):
            self.file, file = file, self.file
        if file >= 0:
            os.close(file)

    def find(self, key: str, test: Callable[[], Answer]) -> Answer:
        """Return the result of a test, from the node or by running it.

        Args:
            key: equal on ranks whose results are equal.
            test: runs it, for seconds.
        """
        import json
        place = zlib.crc32(key.encode()) % PLACES * WIDTH
        try:
            fcntl.lockf(self.file, fcntl.LOCK_EX, WIDTH, place)
        except (OSError, ValueError):
            return test()
        try:
            known = os.pread(self.file, WIDTH, place).rstrip(b"\0")
            name, *found = json.loads(known) if known else ("", False, "")
            if name == key:
                return Answer(*found)
            answer = test()
            text = json.dumps((key, answer.can, answer.why)).encode()
            if not known and len(text) <= WIDTH:
                os.pwrite(self.file, text, place)
            return answer
        finally:
            fcntl.lockf(self.file, fcntl.LOCK_UN, WIDTH, place)


#: Results on the node of this process.
NODE_ANSWERS = NodeAnswers()
