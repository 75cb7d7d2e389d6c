"""PyLops-MPI, distributed linear operators and solvers: its own tests."""

from __future__ import annotations

from applications.program import Program

PROGRAM = Program(
    name="PyLops-MPI", version="0.8.0", packages=("pylops-mpi==0.8.0",), sdist="pylops-mpi==0.8.0",
    # Its conftest.py, which adds the rank to names, needs an older pytest.
    words=("{here}/scripts/suite.py", "-p", "no:mpi", "--noconftest", *(
        f"{{sources}}/tests/test_{name}.py" for name in (
            "linearop", "stack", "matrixmult"))),
    right="its own tests pass", timed="its tests of operators, stacks and products of matrices",
    modules=("pylops_mpi",))
