"""Collective operations for supercomputer jobs, proved before they run.

Layout from the ground up. A room imports only rooms that stand before it in this list; a test
reads it.

    errors units atomic_file record_file worker         what every room may use
    ir lang algorithms proof explain simulator          the idea: standard library only
    transport machine config arrays cuda calls runtime  the machine: NumPy and mpi4py
    testing guard tune measure                          deciding what runs, and whether it may
    comm training torch jax keras                       using it: hpccoll.Comm and what stands on it
    tools cli                                           programs

A new transport goes into ``transport``, an algorithm into ``algorithms``, a check that may stop a
call into ``guard``, a compressor into ``training.compress``, a sub-command into ``cli``.

Importing this package starts neither MPI nor a GPU. Its names are loaded on first use, so a program
that uses ``hpccoll.Comm`` alone does not load the simulator.
"""

from __future__ import annotations

import atexit
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpccoll.algorithms import Algorithm as Algorithm
    from hpccoll.algorithms import algorithm_names as algorithm_names
    from hpccoll.algorithms import schedule as schedule
    from hpccoll.arrays.reproducible import ReproducibleSum as ReproducibleSum
    from hpccoll.arrays.reproducible import reproducible_sum as reproducible_sum
    from hpccoll.arrays.user_operators import Op as Op
    from hpccoll.comm import Comm as Comm
    from hpccoll.comm import Request as Request
    from hpccoll.errors import HpccollError as HpccollError
    from hpccoll.ir.topology import Topology as Topology
    from hpccoll.proof.verifier import verify as verify
    from hpccoll.simulator import simulate as simulate
else:
    #: Module of each name.
    _MODULES = {name: module for module, names in {
        "algorithms": "Algorithm algorithm_names schedule",
        "arrays.reproducible": "ReproducibleSum reproducible_sum",
        "arrays.user_operators": "Op",
        "comm": "Comm Request",
        "errors": "HpccollError",
        "ir.topology": "Topology",
        "proof.verifier": "verify",
        "simulator": "simulate",
    }.items() for name in names.split()}
    #: Names that need MPI, which mpi4py initialises on import.
    _OF_MPI = "Comm", "Op", "Request"

    # Hidden from type checkers, which would accept any name.
    def __getattr__(name):
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        if name in _OF_MPI:
            from hpccoll.machine.launcher import require_mpi
            require_mpi()
        found = globals()[name] = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
        return found

#: Modules whose ``at_exit`` runs when the program exits, if they are loaded.
_AT_EXIT = ("hpccoll.guard.watchdog", "hpccoll.runtime.execution.compiled_operations",
            "hpccoll.transport.shm.channels", "hpccoll.guard.flight_signals")


# Exit handlers run in reverse order of registration: after handlers of later modules, which may
# call collectives, and before mpi4py finalizes MPI.
@atexit.register
def _at_exit() -> None:
    """Report the exit to the other ranks, and release resources that MPI would warn of."""
    for name in _AT_EXIT:
        if name in sys.modules:
            sys.modules[name].at_exit()


def _show_uncaught(*error: Any, previous: Any = sys.excepthook) -> None:
    """Show an uncaught error; one of hpccoll without hpccoll's frames."""
    if "hpccoll.errors" in sys.modules:
        from hpccoll.errors import uncaught
        uncaught.show(previous, *error)
    else:
        previous(*error)


sys.excepthook = _show_uncaught

__version__ = "0.1.0"
__all__ = ["Algorithm", "Comm", "HpccollError", "Op", "ReproducibleSum", "Request", "Topology",
           "algorithm_names", "reproducible_sum", "schedule", "simulate", "verify"]


def __dir__() -> list[str]:
    return sorted([*__all__, *(name for name in globals() if name.startswith("__"))])
