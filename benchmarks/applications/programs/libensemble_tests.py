"""libEnsemble, a manager of ensembles of computations: functionality tests of its sources."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from applications.program import Program

PROGRAM = Program(
    name="libEnsemble", version="1.6.1", packages=("libensemble==1.6.1",),
    sdist="libensemble==1.6.1",
    words=("{here}/programs/libensemble_tests.py",
           "{sources}/libensemble/tests/functionality_tests"),
    right="its own functionality tests pass", timed="five functionality tests in one job",
    modules=("libensemble",))
#: Short tests for MPI that run with two and with four ranks, and one after the other.
TESTS = ("1d_super_simple", "comms", "new_field", "uniform_sampling_cancel",
         "evaluate_existing_plus_gen")


def main(folder: Path) -> None:
    """Run the tests one after the other, as the scripts that they are."""
    from mpi4py import MPI

    from applications.results import report

    passes = {}
    for name in TESTS:
        path = folder / f"test_{name}.py"
        sys.argv = [str(path)]
        try:
            runpy.run_path(str(path), run_name="__main__")
            passes[name] = True
        except SystemExit as stop:
            passes[name] = not stop.code
        except Exception as error:
            print(f"{name}: {type(error).__name__}: {error}", flush=True)
            passes[name] = False
        MPI.COMM_WORLD.Barrier()
    report(passes)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
