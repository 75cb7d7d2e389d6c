"""Description of a program: what to install, what to run, what counts as right."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import NamedTuple

PROGRAMS = Path(__file__).resolve().parent / "programs"


class Program(NamedTuple):
    """A program of another project.

    Attributes:
        name: as the project writes it.
        version: the pinned version.
        packages: requirements of pip, pinned.
        words: what follows ``python -m mpi4py`` or ``python -m hpccoll run``. ``{here}`` is the
            folder of this package, ``{sources}`` the unpacked sources of :attr:`sdist`.
        right: what counts as right, a sentence for the page.
        timed: what the job does, a sentence for the page.
        sdist: the requirement whose source distribution is unpacked; none if empty.
        ranks: most ranks; fewer than two make no sense.
        tolerance: largest relative difference of the numbers to those of plain mpi4py.
        seconds: limit of one job.
        modules: modules whose import shows that the installation works.
        short: True for the short form of the bench.
    """

    name: str
    version: str
    packages: tuple[str, ...]
    words: tuple[str, ...]
    right: str
    timed: str
    sdist: str = ""
    ranks: tuple[int, int] = (2, 4)
    tolerance: float = 0.0
    seconds: float = 300.0
    modules: tuple[str, ...] = ()
    short: bool = False


#: Modules of ``programs``, in the order of the page.
NAMES = (
    "empty_script", "emcee_schwimmbad", "mpipool_map", "pshmem_tests", "mpi4py_fft_tests",
    "libensemble_tests", "ultranest_sampler", "cobaya_mcmc", "dask_mpi_client", "toast_tests",
    "pylops_mpi_tests", "heat_arrays", "pysdc_sweeper", "mpi4py_tests", "mpi4py_osu",
    "example_particles", "example_conjugate_gradient", "example_data_parallel")


def load(names: tuple[str, ...] = NAMES) -> list[Program]:
    """Return the programs of these modules."""
    return [importlib.import_module(f"applications.programs.{name}").PROGRAM for name in names]
