"""A script that starts MPI and ends: what the start of a job costs."""

from __future__ import annotations

from applications.program import Program

PROGRAM = Program(
    name="an empty script", version="", packages=(),
    words=("{here}/programs/empty_script.py",),
    right="each rank starts and ends",
    timed="imports mpi4py.MPI and ends", short=True)


def main() -> None:
    """Start MPI, and report the rank."""
    from mpi4py import MPI

    from applications.results import report

    report({f"rank {MPI.COMM_WORLD.Get_rank()}": True})


if __name__ == "__main__":
    main()
