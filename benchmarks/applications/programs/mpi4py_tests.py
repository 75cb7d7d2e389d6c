"""mpi4py: its own tests of collectives."""

from __future__ import annotations

from applications.program import Program

PROGRAM = Program(
    name="mpi4py", version="4.1.2", packages=(), sdist="mpi4py==4.1.2",
    words=("{here}/scripts/suite.py", "--import-mode=prepend",
           *(f"{{sources}}/test/test_cco_{name}.py" for name in (
               "buf", "nb_buf", "nb_vec", "obj", "pr_buf", "pr_vec", "vec", "ngh_buf", "ngh_obj"))),
    right="its own tests pass", timed="its tests of collectives on intracommunicators",
    modules=("mpi4py",))
