"""Collective operations for supercomputer jobs, proved before they run.

Layout from the ground up. A room imports only rooms that stand before it in this list; a test
reads it.

    errors units atomic_file                            what every room may use
    ir lang algorithms proof explain simulator          the idea: standard library only
    transport machine config arrays cuda calls runtime  the machine: NumPy and mpi4py
    testing guard tune measure                          deciding what runs, and whether it may
    comm training torch jax keras                       using it: hpccoll.Comm and what stands on it
    tools cli                                           programs

A new transport goes into ``transport``, an algorithm into ``algorithms``, a check that may stop a
call into ``guard``, a compressor into ``training.compress``, a sub-command into ``cli``.

Importing this package starts neither MPI nor a GPU; ``hpccoll.Comm`` is loaded on first use.
"""

from __future__ import annotations

import atexit
import sys
from typing import TYPE_CHECKING

from hpccoll.algorithms import Algorithm, algorithm_names, schedule
from hpccoll.errors import HpccollError
from hpccoll.ir.topology import Topology
from hpccoll.proof.verifier import verify
from hpccoll.simulator import simulate

if TYPE_CHECKING:
    from hpccoll.arrays.reproducible import ReproducibleSum as ReproducibleSum
    from hpccoll.arrays.reproducible import reproducible_sum as reproducible_sum
    from hpccoll.arrays.user_operators import Op as Op
    from hpccoll.comm import Comm as Comm
    from hpccoll.comm import Request as Request
else:
    # Hidden from type checkers, which would accept any name.
    def __getattr__(name):
        # mpi4py initialises MPI on import, so it is imported at the first use of Comm.
        if name in ("Comm", "Request"):
            from hpccoll.machine.launcher import require_mpi
            require_mpi()
            from hpccoll import comm
            return getattr(comm, name)
        if name == "Op":
            from hpccoll.machine.launcher import require_mpi
            require_mpi()
            from hpccoll.arrays.user_operators import Op
            return Op
        if name in ("ReproducibleSum", "reproducible_sum"):
            from hpccoll.arrays import reproducible
            return getattr(reproducible, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

#: Modules whose ``at_exit`` runs when the program exits, if they are loaded.
_AT_EXIT = ("hpccoll.guard.watchdog", "hpccoll.runtime.execution.compiled_operations",
            "hpccoll.transport.shm.channels")


# Exit handlers run in reverse order of registration: after handlers of later modules, which may
# call collectives, and before mpi4py finalizes MPI.
@atexit.register
def _at_exit() -> None:
    """Report the exit to the other ranks, and release resources that MPI would warn of."""
    for name in _AT_EXIT:
        if name in sys.modules:
            sys.modules[name].at_exit()


__version__ = "0.1.0"
__all__ = ["Algorithm", "Comm", "HpccollError", "Op", "ReproducibleSum", "Request", "Topology",
           "algorithm_names", "reproducible_sum", "schedule", "simulate", "verify"]


def __dir__() -> list[str]:
    return sorted([*__all__, *(name for name in globals() if name.startswith("__"))])
