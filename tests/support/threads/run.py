"""A function on every rank of a world of threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from hpccoll.config import ANY_P, RUN, check_determinism
from hpccoll.errors import ArgumentError
from hpccoll.ir.topology import Topology
from support.threads.comm import Circle, ThreadComm
from support.threads.world import ThreadRank, ThreadWorld

#: Seconds that ranks have to end after one of them failed.
GRACE = 5.0

T = TypeVar("T")


def run_ranks(size: int, function: Callable[[Any], T], *, layout: str | Topology | None = None,
              timeout: float = 60, determinism: str = RUN) -> list[T]:
    """Run ``function(comm)`` on every rank, each in a thread; return the results by rank.

    Args:
        size: number of ranks.
        function: gets the rank's :class:`ThreadComm`.
        layout: nodes and ranks to assume, such as ``"2x2"``; all on one level if omitted.
        timeout: seconds until all ranks must have returned.
        determinism: as of ``hpccoll.Comm``; with ``"size"`` and ``"layout"`` reductions take the
            algorithms that promise it.

    Raises:
        ArgumentError: a class of determinism that threads do not keep.
        TimeoutError: a rank did not return in time; says what each one waited for.
        BaseException: the first error that left the function on any rank. The waits of the others
            have ended with :class:`Interrupted`.

    >>> run_ranks(3, lambda comm: comm.allreduce(comm.rank))
    [3, 3, 3]
    """
    world = ThreadWorld(size)
    circle = Circle("world", Topology.parse(layout or size, size))
    if check_determinism(determinism) == ANY_P:
        raise ArgumentError("determinism", f"'{ANY_P}' is not available for ranks that are threads",
                            "use hpccoll.Comm, or hpccoll.reproducible_sum")
    ranks = [ThreadRank(world, number) for number in range(size)]
    results: list[Any] = [None] * size

    def work(here: ThreadRank) -> None:
        try:
            results[here.number] = function(ThreadComm(circle, here, here.number, determinism))
        except BaseException as error:
            world.fail(error)

    # Daemons: a rank that computes for ever must not keep the process alive.
    threads = [threading.Thread(target=work, args=(here,), name=f"rank {here.number}", daemon=True)
               for here in ranks]
    for thread in threads:
        thread.start()
    _join(threads, timeout, world)
    late = [here for here, thread in zip(ranks, threads) if thread.is_alive()]
    if late and world.failure is None:
        world.fail(TimeoutError(f"no end after {timeout:g} s: " + "; ".join(
            f"rank {here.number} waits for {' and '.join(here.waits.values())}" if here.waits
            else f"rank {here.number} does not wait" for here in late)))
    if world.failure is not None:
        _join(threads, GRACE)
        raise world.failure
    return results


def _join(threads: list[threading.Thread], seconds: float, world: ThreadWorld | None = None
          ) -> None:
    """Wait for threads until the time is up, or until a world has failed."""
    end = time.monotonic() + seconds
    for thread in threads:
        while thread.is_alive() and time.monotonic() < end:
            thread.join(min(0.05, max(end - time.monotonic(), 0)))
            if world is not None and world.failure is not None:
                return
