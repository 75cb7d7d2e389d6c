"""What compressing costs on this machine: measured, since no data sheet says it."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from typing import Any

import numpy

from hpccoll.training.compress import parse
from hpccoll.training.compress.scheme import finish

#: Reductions that warm up, and that are timed.
WARM, TIMED = 2, 5


def compress_rate(comm: Any, scheme: str,
                  shapes: Sequence[tuple[int, ...]] = ((2048, 2048),)) -> float:
    """Bytes that a rank compresses and restores in a second; collective.

    All ranks work at once, as in a step, each alone with its own values: ranks of a node share
    its memory, and its processors where there are too few. The slowest one counts.

    Args:
        comm: the ranks.
        scheme: as text, such as ``"powersgd:rank=4"``.
        shapes: of the float32 arrays of a bucket; what a byte costs depends on them.

    Raises:
        ArgumentError: an unknown scheme.
    """
    alone = comm.Split(comm.Get_rank())
    parsed = parse(scheme)
    reduction = parsed.start(alone, shapes)
    reduction.steps = parsed.warmup_steps  # a scheme may send everything in its first steps
    count = sum(map(math.prod, shapes))
    exact = numpy.random.default_rng(comm.Get_rank()).standard_normal(count, "f4")
    seconds = []
    for _ in range(WARM + TIMED):
        values = exact.copy()
        comm.Barrier()
        begun = time.perf_counter()
        finish(reduction.reduce(values))
        seconds.append(time.perf_counter() - begun)
    alone.Free()
    return exact.nbytes / max(comm.allgather(statistics.median(seconds[WARM:])))
