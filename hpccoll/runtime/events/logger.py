"""Python logger ``hpccoll``: records choices with their reasons, and failures.

    INFO    nodes, transports and table of a communicator; the algorithm of each new call; errors
    DEBUG   the same of all ranks; every plan

``HPCCOLL_LOG`` enables it, or a program configures :mod:`logging`. Rank 0 logs what is the same on
all ranks. A call from the cache logs nothing and has no extra cost.
"""

from __future__ import annotations

import sys
import threading
from functools import cache
from typing import TYPE_CHECKING

from mpi4py import MPI

from hpccoll.calls.call import Call
from hpccoll.errors.waits import summary
from hpccoll.runtime.planning.call_hash import describe_native
from hpccoll.runtime.planning.choice import Choice
from hpccoll.runtime.planning.description import Description

if TYPE_CHECKING:
    from logging import Logger

    from hpccoll.runtime.ranks import Ranks

#: Levels of :mod:`logging`, which takes 4 ms to load.
DEBUG, INFO = 10, 20
#: Largest number of calls logged per communicator: every call may have a new size.
MOST_TOLD = 2048


@cache
def logger() -> Logger:
    """Return the logger ``hpccoll``."""
    import logging
    return logging.getLogger("hpccoll")


def is_enabled(level: int) -> bool:
    """Return True if a record of a level would be logged: not in programs without logging."""
    return "logging" in sys.modules and logger().isEnabledFor(level)


def start(level: str) -> None:
    """Log to standard error from a level on, unless the program has configured handlers."""
    import logging
    if not level or logger().level:
        return
    logger().setLevel(level.upper())
    if not logger().hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter(
            f"%(asctime)s hpccoll rank {MPI.COMM_WORLD.Get_rank()}: %(message)s", "%H:%M:%S"))
        logger().addHandler(handler)


def log_communicator(comm: MPI.Intracomm, ranks: Ranks) -> None:
    """Log the properties of a communicator, when hpccoll prepares its first call."""
    if not is_enabled(_level(ranks.rank)):
        return
    place, node = ranks.place, ranks.node
    peers = len(node.local) if node is not None else 0
    paths = ["shared memory"] * bool(peers) + ["MPI messages"] * (peers < ranks.size - 1)
    logger().log(_level(ranks.rank), "%s: %d ranks, layout %s%s; messages by %s; %s executor",
               name_of(comm), ranks.size, ranks.topology,
               ", ranks share processors" * place.oversubscribed
               + ", ranks share a cache" * place.shared_cache,
               " and ".join(paths) or "nobody", "compiled" if ranks.compiled else "Python")


def log_table(comm: MPI.Intracomm, source: str, note: str, online: bool) -> None:
    """Log the source of the measured times behind choices."""
    level = _level(comm.Get_rank())
    if not is_enabled(level):
        return
    text = "candidates are measured in this job" if online else (
        f"measured times of {source}" if source else
        f"no measured times{f' ({note})' * bool(note)}, built-in rules select")
    logger().log(level, "%s: %s", name_of(comm), text)


def log_choice(comm: MPI.Intracomm, logged: set[Description], title: str, call: Call | None,
                choice: Choice | None) -> None:
    """Log which algorithm runs a call, and why; once per kind of call."""
    level = _level(comm.Get_rank())
    if not is_enabled(level):
        return
    known = describe_native(call, title)._replace(
        collective=title, algorithm=str(choice.key) if choice is not None else "")
    if known in logged or len(logged) >= MOST_TOLD:
        return
    logged.add(known)
    words = [known.collective, *filter(None, (
        known.count and f"count {known.count}", known.dtype, known.operator,
        known.root and f"root {known.root}"))]
    logger().log(level, "%s: %s: %s (%s)", name_of(comm), ", ".join(words), served_by(choice),
               (choice.reason or "asked for") if choice is not None
               else "only the MPI library supports this call")


def log_error(rank: int, error: BaseException) -> None:
    """Log that a call failed here.

    Without a handler, logging prints errors itself. Here it does so for other threads only: the
    caller may never see their errors, while errors of its own thread are raised.
    """
    if ("logging" in sys.modules and logger().hasHandlers()
            or threading.current_thread() is not threading.main_thread()):
        logger().error("a call failed on rank %d: %s", rank, summary(error))


def served_by(choice: Choice | None) -> str:
    """Return the name of the algorithm of a call, for log lines."""
    if choice is None or choice.is_native:
        return "native"
    words = [choice.name or "a user-defined algorithm",
             *(f"{key}={value}" for key, value in choice.params.items())]
    return " ".join(words)


def name_of(comm: MPI.Intracomm) -> str:
    """Return the name of a communicator, or a text that it has none."""
    return comm.Get_name() or f"communicator of {comm.Get_size()}"


def _level(rank: int) -> int:
    return DEBUG if rank else INFO
