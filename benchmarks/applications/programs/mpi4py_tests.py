"""mpi4py: its own tests of collectives."""

from __future__ import annotations

from applications.program import Program

PROGRAM = Program(
    name="mpi4py", version="4.1.2", packages=(), sdist="mpi4py==4.1.2",
    words=("{here}/scripts/suite.py", "--import-mode=prepend",
           "-p", "applications.scripts.host_arrays", "-k", "World and not Dup",
           *(f"{{sources}}/test/test_cco_{name}.py" for name in (
               "buf", "nb_buf", "nb_vec", "obj", "pr_buf", "pr_vec", "vec", "ngh_buf", "ngh_obj"))),
    right="its own tests pass", timed="its tests of collectives on `COMM_WORLD`",
    # With more ranks than cores, those of MPICH poll in turns for minutes.
    modules=("mpi4py",), ranks=(2, 2))
