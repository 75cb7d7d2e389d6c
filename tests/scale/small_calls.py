"""Small collectives back to back: the MPI library's time beside ours, median of interleaved rounds.

    mpiexec -n 2 python tests/scale/small_calls.py [sizes [collectives [rounds]]]

A benchmark that meets before every call, as ``hpccoll bench`` does, adds the skew with which ranks
leave that barrier, which is several times a small call of the compiled executor. Here calls follow
each other, as in a solver. ``HPCCOLL_EXECUTOR=python`` measures the interpreter.
"""

import sys
import time
from statistics import median

import numpy
from mpi4py import MPI

import hpccoll

METHODS = ("Allreduce", "Reduce", "Bcast", "Allgather", "Reduce_scatter_block", "Alltoall",
           "Gather", "Scatter", "Scan", "Exscan", "Barrier")
SIZES = "8,64,512,4096,16384,65536"
#: Seconds of a round of one candidate, and most calls in it.
SECONDS, MOST = 0.02, 5000


def arguments(method, nbytes, comm):
    """Buffers of a method, of so many bytes in all on the rank that has most."""
    vector = method in ("Allreduce", "Reduce", "Bcast", "Scan", "Exscan")
    share = max(nbytes // 4 // (1 if vector else comm.size), 1)
    whole = numpy.ones(share * (1 if vector else comm.size), "f4")
    part, other, root = numpy.ones(share, "f4"), numpy.empty(share, "f4"), comm.rank == 0
    return {"Bcast": (whole,), "Barrier": (), "Reduce": (part, other if root else None),
            "Gather": (part, whole if root else None), "Allgather": (part, whole),
            "Scatter": (whole if root else None, part), "Reduce_scatter_block": (whole, part),
            "Alltoall": (whole, whole.copy())}.get(method, (part, other))


def measure(world, comm, method, nbytes, rounds):
    """Median seconds of a call of both, on this rank."""
    args = arguments(method, nbytes, comm)
    candidates = (world, []), (comm, [])
    count = 0
    for turn in range(rounds + 1):
        for one, found in candidates:
            call = getattr(one, method)
            world.Barrier()
            start = time.perf_counter()
            for _ in range(count or 20):
                call(*args)
            seconds = (time.perf_counter() - start) / (count or 20)
            if turn:
                found.append(seconds)
        if not turn:
            count = world.allreduce(int(min(max(SECONDS / seconds, 5), MOST)), MPI.MAX)
    return [median(found) for _, found in candidates]


def main(sizes=SIZES, methods="", rounds="15"):
    """Print a table."""
    world, comm = MPI.COMM_WORLD, hpccoll.Comm(MPI.COMM_WORLD)
    for method in methods.split(",") if methods else METHODS:
        for nbytes in map(int, sizes.split(",") if method != "Barrier" else "0"):
            native, ours = measure(world, comm, method, nbytes, int(rounds))
            if world.rank == 0:
                print(f"{method:21}{nbytes:7}{native * 1e6:10.2f}{ours * 1e6:10.2f} us"
                      f"{native / ours:8.2f}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
