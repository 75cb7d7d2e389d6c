"""hpccoll: collective operations for supercomputer jobs, proved before they run.

Importing this package starts neither MPI nor a GPU; ``hpccoll.Comm`` is loaded on first use.
"""

from __future__ import annotations

from typing import Any

from hpccoll.algorithms import algorithms, schedule
from hpccoll.errors import HpccollError
from hpccoll.simulate import simulate
from hpccoll.topology import Topology
from hpccoll.verify import verify

__version__ = "0.1.0"
__all__ = ["Comm", "HpccollError", "Topology", "algorithms", "schedule", "simulate", "verify"]


def __getattr__(name: str) -> Any:
    # mpi4py initialises MPI on import, so the communicator waits until somebody asks for it.
    if name == "Comm":
        from hpccoll.comm import Comm
        return Comm
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), "Comm"])
