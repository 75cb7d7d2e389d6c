"""Time loops of one call, by every algorithm and by the MPI library: the tables of ``make rules``.

    mpiexec -n 8 python benchmarks/measure_loops.py TABLE
    mpiexec -n 8 python benchmarks/measure_loops.py TABLE --only auto

Programs call a collective in loops, and on shared cores a barrier before each call, as in
``hpccoll tune``, would take longer than the call. The candidates take turns; a time is the median
of the slowest rank's. Those that are slow in the first turn do not get further ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter

import click
import numpy
from mpi4py import MPI

import hpccoll
from hpccoll.algorithms import ALGORITHMS
from hpccoll.config import NATIVE
from hpccoll.errors import HpccollError
from hpccoll.ir.topology import Topology
from hpccoll.tune.table import Candidate, Curves, fingerprint, write

#: Bytes of a rank's larger buffer. For more than MANY ranks every second one of them, and longer
#: turns: they leave a barrier of MPICH up to 50 ms after each other.
MANY = 16
SIZES = tuple(8 << shift for shift in (0, 3, 6, 9, 11, 13, 15, 17, 19, 21))
#: Calls before the first turn, turns, and seconds of a turn.
WARM, TURNS, SECONDS = 3, 5, 0.015
#: Calls of a turn, fewest and most.
FEWEST, FEWEST_OF_MANY, MOST = 3, 100, 300
#: Larger calls are left out: seconds of the library's. A candidate whose first calls take ROUGH
#: times as long as the fastest's is not measured; one that takes SLOW times the least not again.
LONGEST, ROUGH, SLOW = 0.02, 3.0, 1.5
#: Collectives whose larger buffer has a block of each rank.
BLOCKS = "allgather", "alltoall", "gather", "scatter", "reduce_scatter"


def calls(comm: MPI.Intracomm, collective: str, nbytes: int) -> Callable[[], object]:
    """Return a function that calls a collective."""
    size, divided = comm.Get_size(), collective in BLOCKS
    block = max(nbytes // 8 // size, 1) if divided else max(nbytes // 8, 1)
    one, many = numpy.ones(block), numpy.ones(block * size if divided else block)
    out = numpy.empty_like(many)
    return {
        "barrier": comm.Barrier,
        "bcast": lambda: comm.Bcast(one, 0),
        "reduce": lambda: comm.Reduce(one, out, root=0),
        "allreduce": lambda: comm.Allreduce(one, out),
        "scan": lambda: comm.Scan(one, out),
        "exscan": lambda: comm.Exscan(one, out),
        "allgather": lambda: comm.Allgather(one, out),
        "alltoall": lambda: comm.Alltoall(many, out),
        "gather": lambda: comm.Gather(one, out, root=0),
        "scatter": lambda: comm.Scatter(many, one, root=0),
        "reduce_scatter": lambda: comm.Reduce_scatter_block(many, one),
    }[collective]


def turn(world: MPI.Intracomm, call: Callable[[], object], count: int) -> float:
    """Return the seconds of a call in a loop, of the slowest rank."""
    world.Barrier()
    start = perf_counter()
    for _ in range(count):
        call()
    return world.allreduce((perf_counter() - start) / count, MPI.MAX)


def enough(seconds: float) -> int:
    """Return the number of calls of a turn."""
    fewest = FEWEST_OF_MANY if MPI.COMM_WORLD.Get_size() > MANY else FEWEST
    return max(fewest, min(MOST, int(SECONDS / seconds)))


def times(world: MPI.Intracomm, comm: hpccoll.Comm, collective: str, nbytes: int,
          names: Sequence[str]) -> dict[Candidate, float]:
    """Return the seconds of the library and of algorithms for one call."""
    found: dict[str, list[float]] = {}
    counts: dict[str, int] = {}
    fastest, many = LONGEST, names if len(names) > 1 else ()
    for repetition in range(TURNS):
        least = min(map(min, found.values()), default=0.0)
        for name in (NATIVE, *names):
            if repetition and (name not in found or name in many
                               and min(found[name]) > SLOW * least):
                continue
            target = world if name == NATIVE else comm
            call = calls(target, collective, nbytes)
            with comm.using(**{} if name == NATIVE else {collective: name}):
                try:
                    if not repetition:
                        turn(world, call, WARM)
                        seconds = turn(world, call, 2)
                        if name == NATIVE and seconds > LONGEST:
                            return {}
                        if name in many and seconds > ROUGH * fastest:
                            continue
                        fastest = min(fastest, seconds)
                        # Ranks leave the barrier at different times: more calls show less of that.
                        counts[name] = enough(turn(world, call, enough(seconds)))
                    found.setdefault(name, []).append(turn(world, call, counts[name]))
                except HpccollError:  # it cannot run this call, on any rank
                    found.pop(name, None)
    return {Candidate(name): median(seconds) for name, seconds in found.items()
            if name == NATIVE or len(seconds) == TURNS}


@click.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--only", help="An algorithm, or auto; all by default.")
def command(path: Path, only: str | None) -> None:
    """Measure all collectives on the ranks of this job; rank 0 writes the table."""
    world = MPI.COMM_WORLD
    comm = hpccoll.Comm(world.Dup())
    curves: Curves = {}
    for collective in ALGORITHMS:
        least = 8 * world.Get_size() if collective in BLOCKS else 8
        every = SIZES[::2] if world.Get_size() > MANY else SIZES
        sizes = (0,) if collective == "barrier" else [n for n in every if n >= least]
        names = [only] if only else list(ALGORITHMS[collective])
        found = [(nbytes, times(world, comm, collective, nbytes, names)) for nbytes in sizes]
        curves[collective, True] = tuple(point for point in found if point[1])
    machine = fingerprint(Topology.parse(world.Get_size()), world.Get_size() > 2)
    if world.Get_rank() == 0:
        write(path, {machine: curves})


if __name__ == "__main__":
    command()
