"""State of the compiled executor, built or not, without the modules that use it.

A communicator needs this at its creation; the modules load with its first call that hpccoll runs.
"""

from __future__ import annotations

from mpi4py import MPI

from hpccoll.config import COMPILED, Config
from hpccoll.errors import ArgumentError
from hpccoll.runtime.progress.waiting import incomplete_request

#: Constants of ``_executor`` that the modules of plans, channels and logs define as well: a
#: module that was compiled from other sources has other ones.
CONSTANTS = {
    "OPERATIONS": 11, "WIDTH": 8, "DONE": 0, "REMOTE": 3, "PLACES": 4, "SMALL": 1024,
    "SIZE_BITS": 24, "ALARM": 0, "NUMBER": 16, "INSIDE": 17, "CHECK": 22, "CALLS": 32,
    "REMEMBERED": 64}


def _first_progress() -> None:
    """Progress once; from then on barriers call the request's method, which takes 0.1 us less."""
    incomplete_request().Test()
    _executor.set_library_progress(incomplete_request().Test)


try:
    from hpccoll.arrays import _half  # noqa: F401
    from hpccoll.runtime.execution import _executor
except ImportError:
    # Both modules or none: the set of types with kernels must not depend on the rank.
    BUILT = False
else:
    BUILT = True
    if any(getattr(_executor, name, None) != value for name, value in CONSTANTS.items()):
        raise ImportError("hpccoll's compiled modules are of other sources: build and install "
                          "hpccoll again, in a clone with 'pip install -e .'")
    _executor.set_in_place(MPI.IN_PLACE)
    _executor.set_library_progress(_first_progress)


def executor(config: Config) -> str:
    """Return the executor of this process: ``compiled`` or ``python``.

    Raises:
        ArgumentError: the configuration requires the compiled one, which was not built.
    """
    if config.executor == COMPILED and not BUILT:
        raise ArgumentError("HPCCOLL_EXECUTOR", "the compiled executor was not built",
                            "install hpccoll with a C compiler, or use 'python'")
    return config.executor or (COMPILED if BUILT else "python")
