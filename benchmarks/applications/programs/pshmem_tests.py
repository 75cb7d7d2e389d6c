"""pshmem, arrays and locks in the shared memory of MPI: its own tests."""

from __future__ import annotations

from applications.program import Program

PROGRAM = Program(
    name="pshmem", version="1.3.5", packages=("pshmem==1.3.5",),
    # The tests of batches sleep, and one test creates communicators until the library has no more.
    words=("{here}/scripts/suite.py", "--pyargs", "pshmem.test", "-k",
           "not Batch and not max_shmem_segments"),
    right="its own tests pass", timed="its tests of arrays and locks",
    modules=("pshmem",), short=True)
