"""pshmem, arrays and locks in the shared memory of MPI: its own tests."""

from __future__ import annotations

from applications.program import Program

PROGRAM = Program(
    name="pshmem", version="1.3.5", packages=("pshmem==1.3.5",),
    words=("{here}/scripts/suite.py", "--pyargs", "pshmem.test"),
    right="its own tests pass", timed="its own tests", modules=("pshmem",), short=True)
