"""dask-mpi, which starts the scheduler, the client and the workers of Dask as ranks."""

from __future__ import annotations

from applications.program import Program

PROGRAM = Program(
    name="dask-mpi", version="2026.3.0", packages=("dask-mpi==2026.3.0",),
    words=("{here}/programs/dask_mpi_client.py",),
    right="the same results of 100 tasks", timed="start, 100 tasks, end",
    modules=("dask_mpi",), ranks=(4, 4))


def square(n):
    """A task."""
    return n * n


def main() -> None:
    """Be scheduler, client or worker."""
    from dask_mpi import initialize

    initialize(dashboard=False)  # returns on the client's rank only
    from distributed import Client

    from applications.results import report

    with Client() as client:
        client.wait_for_workers(2)
        found = client.gather(client.map(square, range(100)))
    report({"map": found == [n * n for n in range(100)]}, [sum(found)])


if __name__ == "__main__":
    main()
