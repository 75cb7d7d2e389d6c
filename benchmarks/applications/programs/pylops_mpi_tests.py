"""PyLops-MPI, distributed linear operators and solvers: its own tests."""

from __future__ import annotations

from applications.program import Program

PROGRAM = Program(
    name="PyLops-MPI", version="0.8.0", packages=("pylops-mpi==0.8.0",), sdist="pylops-mpi==0.8.0",
    words=("{here}/scripts/suite.py", "-p", "no:mpi", *(
        f"{{sources}}/tests/test_{name}.py" for name in (
            "distributedarray", "derivative", "linearop", "solver", "stack", "matrixmult"))),
    right="its own tests pass", timed="its tests of arrays, operators and solvers",
    modules=("pylops_mpi",), short=True)
