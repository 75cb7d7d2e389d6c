"""mpi4py: its own tests."""

from __future__ import annotations

from applications.program import Program

PROGRAM = Program(
    name="mpi4py", version="4.1.2", packages=(), sdist="mpi4py==4.1.2",
    # The first two make no communication; with hpccoll the last one does not end.
    words=("{here}/scripts/mpi4py_suite.py", "{sources}/test", "-e", "test_datatype",
           "-e", "test_util_dtlib", "-x", "TestULFMWorld.testIAgree"),
    right="its own tests pass", timed="its tests, but those of datatypes",
    # With more ranks than cores, those of MPICH poll in turns for minutes.
    modules=("mpi4py",), ranks=(2, 2), seconds=600)
