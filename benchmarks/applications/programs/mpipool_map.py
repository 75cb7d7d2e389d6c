"""mpipool, an executor of mpi4py ranks in the form of concurrent.futures."""

from __future__ import annotations

from applications.program import Program

PROGRAM = Program(
    name="mpipool", version="2.2.1", packages=("mpipool==2.2.1",),
    words=("{here}/programs/mpipool_map.py",),
    right="the same results of 300 tasks",
    timed="300 short tasks by map, 100 by submit", modules=("mpipool",))


def task(n):
    """Sum some squares."""
    return sum(k * k for k in range(n % 500))


def main() -> None:
    """Map on all ranks."""
    from mpipool import MPIExecutor

    from applications.results import report

    with MPIExecutor() as pool:
        pool.workers_exit()
        found = list(pool.map(task, range(300)))
        later = [pool.submit(task, n) for n in range(100)]
        found += [future.result() for future in later]
        report({"map": found[:300] == [task(n) for n in range(300)]}, [sum(found), len(found)])


if __name__ == "__main__":
    main()
