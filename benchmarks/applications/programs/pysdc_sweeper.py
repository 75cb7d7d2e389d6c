"""pySDC, spectral deferred corrections: its MPI sweeper, a collocation node for each rank."""

from __future__ import annotations

from applications.program import Program

PROGRAM = Program(
    name="pySDC", version="5.9", packages=("pySDC==5.9",),
    words=("{here}/programs/pysdc_sweeper.py",),
    right="the solution of the sweeper without MPI, to 1e-14",
    timed="a differential-algebraic equation, three sizes of time steps, two sweepers",
    modules=("pySDC",), tolerance=1e-12)


def main() -> None:
    """Solve with and without MPI."""
    import numpy as np
    from mpi4py import MPI
    from pySDC.projects.DAE.run.accuracy_check_MPI import run

    from applications.results import report

    comm = MPI.COMM_WORLD
    passes, numbers = {}, []
    for semi_implicit in (True, False):
        for dt in (0.1, 0.05, 0.025):
            common = {"dt": dt, "num_nodes": comm.Get_size(), "semi_implicit": semi_implicit,
                      "residual_type": "full_abs", "index_case": 1}
            with_mpi, _, _ = run(use_MPI=True, comm=comm, **common)
            alone, _, _ = run(use_MPI=False, **common)
            passes[f"{semi_implicit} {dt}"] = bool(np.allclose(with_mpi, alone, atol=1e-14))
            numbers.append(float(np.ravel(with_mpi)[0]))
    report(passes, numbers if not comm.Get_rank() else [])


if __name__ == "__main__":
    main()
