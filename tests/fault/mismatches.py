"""All ways in which one rank can differ, at every rank, and whether all raise the right error.

    mpiexec -n 8 python -m mpi4py tests/fault/mismatches.py [--modes 0,1] [-o FILE.json]

makes each call of ``tests/mpi/disagreeing.py`` on a communicator of its own, each rank in turn
being the odd one, in every mode: hpccoll's algorithms, on a new communicator and after a thousand
good calls of the same shape; and, at the level ``always``, the default choice. At the level
``tags`` the default choice is tried if it is an algorithm of hpccoll: a rank in a native call ends
its process (``tests/fault/test_faults.py``). Every rank must get a ``ContractError`` that names the
odd rank, the field and both values. Prints a line for each mode; with ``-o`` it adds the modes to
the file that ``docs/promises.py`` reads for docs/internal/promises.md. A row also has the time that
the slowest rank's process waited for a processor.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import sys
import time
from pathlib import Path
from typing import NamedTuple

sys.path.append(str(Path(__file__).resolve().parents[1]))
os.environ |= {"HPCCOLL_TIMEOUT": "20"}

from mpi.disagreeing import (
    CALLS,
    MOVED,
    RANK,
    RAW,
    SIZE,
    SMALL,
    WAYS,
    WISHES,
    check,
    disagree,
)
from mpi4py import MPI

import hpccoll
from hpccoll.errors import HpccollError
from hpccoll.runtime.events.call_log import NUMBER


class Mode(NamedTuple):
    """How calls are made.

    Attributes:
        calls: in words.
        preferences: who serves them.
        contract: the level.
        before: good calls of the same shape.
    """

    calls: str
    preferences: dict[str, str]
    contract: str
    before: int


MODES = (Mode("hpccoll", WISHES, "tags", 0), Mode("hpccoll", WISHES, "tags", 1000),
         Mode("chosen by default", {}, "always", 0), Mode("chosen by default", {}, "always", 1000),
         Mode("chosen by default, hpccoll", {}, "tags", 0))
Way = tuple[str, str, str]


def ways_of(mode: Mode) -> list[Way]:
    """The ways to disagree in a mode."""
    ways = [way for way in WAYS if mode.preferences or way[0] != "algorithm"]
    if mode.contract != "tags":
        return [*ways, *MOVED]
    if mode.preferences:
        return ways
    comm, ours = hpccoll.Comm(MPI.Intracomm(RAW).Dup()), set()
    for name, call in CALLS.items():
        call(comm, SMALL, "f8", MPI.SUM, 0)
        log = comm._private().guard.logs.mine
        if log.description(log.words[NUMBER]).algorithm != "native":
            ours.add(name)
    comm.Free()
    return [way for way in ways if {*way[1:]} <= ours]


def delayed() -> float:
    """Seconds that this process's threads have waited for a processor."""
    return sum(int(file.read_text().split()[1])
               for file in Path("/proc/self/task").glob("*/schedstat")) * 1e-9


def tried(mode: Mode, way: Way, odd: int) -> tuple[str, float, float]:
    """What is wrong about this rank's error, if anything; the seconds until it came, and those of
    them in which it waited for a processor.
    """
    comm = hpccoll.Comm(MPI.Intracomm(RAW).Dup(), contract=mode.contract)
    with comm.using(**mode.preferences):
        for _ in range(mode.before):
            CALLS[way[1]](comm, SMALL, "f8", MPI.SUM, 0)
    RAW.Barrier()
    start, before = time.monotonic(), delayed()
    error = disagree(comm, *way, odd, SMALL, mode.preferences)
    seconds, waited = time.monotonic() - start, delayed() - before
    RAW.Barrier()
    # A rank that only sends has left its call: its next call raises. If all ranks only sent, the
    # difference is found there, and a rank that has left that call raises in the one after it.
    for _ in range(2):
        if error is None:
            seconds = 0.0
            with comm.using(**mode.preferences):
                try:
                    comm.Barrier()
                except HpccollError as late:
                    error = late
        RAW.Barrier()
    try:
        check(error, *way, odd)
        wrong = ""
    except AssertionError as failure:
        wrong = f"{type(error).__name__}: {error}: {failure}"
    RAW.Barrier()
    comm.Free()
    return wrong, seconds, waited


def main() -> int:
    """Try everything; return 1 if any rank got a wrong error."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--modes", help="numbers of modes, the first is 0; all if omitted",
                        default=",".join(map(str, range(len(MODES)))))
    parser.add_argument("-o", "--output", type=Path, help="a file for the rows of the table")
    options = parser.parse_args()
    logging.disable()  # each error is logged, too
    library = "openmpi" if "Open MPI" in MPI.Get_library_version() else "mpich"
    modes = [MODES[int(number)] for number in options.modes.split(",")]
    rows = []
    if options.output and options.output.exists():
        rows = [row for row in json.loads(options.output.read_text(encoding="utf-8"))
                if all((row["calls"], row["contract"], row["before"]) != (
                    mode.calls, mode.contract, mode.before) for mode in modes)]
    for mode in modes:
        ways = ways_of(mode)
        if not ways:
            if RANK == 0:
                print(f"{SIZE} ranks, calls {mode.calls}: hpccoll runs none of them", flush=True)
            continue
        errors = [(odd, way, *one) for way in ways for odd in range(SIZE)
                  for one in RAW.allgather(tried(mode, way, odd))]
        right = sum(not wrong for *_, wrong, _, _ in errors)
        times = [(seconds, waited) for *_, seconds, waited in errors if seconds]
        median = statistics.median(seconds for seconds, _ in times)
        rows.append({"library": library, "ranks": SIZE, "calls": mode.calls,
                     "contract": mode.contract, "before": mode.before,
                     "cases": len(ways) * SIZE, "errors": len(errors), "right": right,
                     "median": round(median, 4), "worst": round(max(times)[0], 3),
                     "waited": round(max(times)[1], 3)})
        if RANK == 0:
            print(rows[-1], flush=True)
            if options.output:  # each at once: many ranks on few cores take long
                options.output.write_text(json.dumps(rows, indent=0) + "\n", encoding="utf-8")
            for odd, way, wrong, *_ in errors:
                if wrong:
                    print(f"{way}, odd rank {odd}: {wrong}", file=sys.stderr)
    return int(any(row["right"] != row["errors"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
