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
from functools import partial

from mpi4py import MPI

from hpccoll.cuda.device_paths import Answer
from hpccoll.transport.shm.mapping import open_on_node, wait_for_lock

#: Bytes of a result, and number of places for results.
WIDTH, PLACES = 1 << 10, 1 << 12
#: Most seconds that a rank waits for another one's test; then it runs the test itself.
PATIENCE = 60.0


class NodeAnswers:
    """The file of this process; without one each rank runs its own tests."""

    def __init__(self) -> None:
        self.file = -1

    def connect(self, node_comm: MPI.Comm) -> None:
        """Open one file on all ranks of a node, unless all have one; collective."""
        if all(node_comm.allgather(self.file >= 0)):
            return
        file, _ = open_on_node(node_comm)
        if file >= 0:
            self.file, file = file, self.file
        if file >= 0:
            os.close(file)

    def find(self, key: str, test: Callable[[], Answer]) -> Answer:
        """Return the result of a test, which ranks share if ``key`` is equal, or run it."""
        import json
        place = zlib.crc32(key.encode()) % PLACES * WIDTH
        try:
            wait_for_lock(partial(fcntl.lockf, self.file, fcntl.LOCK_EX | fcntl.LOCK_NB, WIDTH,
                                  place), PATIENCE)
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
                with suppress(OSError):  # a full file system: other ranks run the test too
                    os.pwrite(self.file, text, place)
            return answer
        finally:
            fcntl.lockf(self.file, fcntl.LOCK_UN, WIDTH, place)


#: Results on the node of this process.
NODE_ANSWERS = NodeAnswers()
