"""What being looked after costs: calls compared, recorded and traced, beside calls that are not.

    mpiexec -n 2 python -m mpi4py tests/fault/price.py [--sizes 0,8] [-o FILE.json]

makes the same calls on communicators that differ in nothing but who looks on, in turn, in rounds of
some milliseconds each; one has the level ``off``, where nothing is compared nor recorded, and all
others are compared with it round by round. Prints a row for each: microseconds a call (median of
the rounds, rank 0), and the median of the differences. What it came to is in
docs/internal/notebook/monitoring.md.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
from mpi4py import MPI

import hpccoll
from hpccoll.comm import profiled

RAW = MPI.Intracomm(MPI.COMM_WORLD)
RANK = RAW.Get_rank()
#: Who looks on, by what the environment says then; the first is what others are compared with.
LOOKING: dict[str, dict[str, str]] = {
    "off": {"CONTRACT": "off"}, "tags": {"CONTRACT": "tags"}, "always": {"CONTRACT": "always"},
    "tags, traced": {"CONTRACT": "tags", "TRACE": tempfile.gettempdir()},
    "tags, phases": {"CONTRACT": "tags", "TRACE": tempfile.gettempdir(), "TRACE_PHASES": "yes"}}
#: Bytes of an allreduce, 0 for a barrier.
SIZES = 0, 8, 16 << 10, 64 << 10, 256 << 10, 1 << 20
ROUNDS, SECONDS = 101, 0.002


def communicator(settings: dict[str, str], executor: str) -> Any:
    """A communicator that is looked after so."""
    names = {f"HPCCOLL_{name}" for one in LOOKING.values() for name in one}
    for name in names:
        os.environ.pop(name, None)
    os.environ |= {f"HPCCOLL_{name}": value for name, value in settings.items()}
    os.environ["HPCCOLL_EXECUTOR"] = executor
    return hpccoll.Comm(RAW.Dup())


def timed(call: Callable[[], None], count: int) -> float:
    """Seconds of a call, over so many."""
    RAW.Barrier()
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count


def measured(executor: str, nbytes: int) -> list[dict[str, Any]]:
    """A row for everybody who may look on."""
    data, result = numpy.ones(nbytes // 8), numpy.ones(nbytes // 8)
    calls: dict[str, Callable[[], None]] = {}
    for name, settings in LOOKING.items():
        comm = communicator(settings, executor)
        if nbytes:
            calls[name] = lambda comm=comm: comm.Allreduce(data, result)
        else:
            calls[name] = comm.Barrier
        for _ in range(20):
            calls[name]()
    calls["the MPI library's"] = RAW.Barrier if not nbytes else (
        lambda: RAW.Allreduce(data, result))
    counts = {name: RAW.bcast(max(int(SECONDS / timed(call, 20)), 5))
              for name, call in calls.items()}
    order, numbers = list(calls), random.Random(1)
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        numbers.shuffle(order)
        for name in order:
            times[name].append(timed(calls[name], counts[name]))
    first = times[next(iter(LOOKING))]
    rows = []
    for name, found in times.items():
        more = statistics.median(one - other for one, other in zip(found, first))
        rows.append({"executor": executor, "nbytes": nbytes, "looking": name,
                     "us": round(1e6 * statistics.median(found), 3), "more ns": round(1e9 * more),
                     "more %": round(100 * more / statistics.median(first), 2)})
    return rows


def main() -> int:
    """Measure everything, and print it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sizes", help="bytes of an allreduce, 0 for a barrier",
                        default=",".join(map(str, SIZES)))
    parser.add_argument("-o", "--output", type=Path, help="a file for the rows")
    options = parser.parse_args()
    profiled.write_at_end = lambda folder: None  # nobody reads these traces
    rows: list[dict[str, Any]] = []
    for executor in ("compiled", "python"):
        for nbytes in map(int, options.sizes.split(",")):
            rows += measured(executor, nbytes)
            if RANK == 0:
                for row in rows[-len(LOOKING) - 1:]:
                    print("  ".join(f"{value!s:>12}" for value in row.values()), flush=True)
    if options.output and RANK == 0:
        options.output.write_text(json.dumps(rows, indent=0) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
