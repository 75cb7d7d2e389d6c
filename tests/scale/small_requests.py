"""Small requests, begun and waited for: the MPI library's time beside ours, interleaved rounds.

    mpiexec -n 2 python tests/scale/small_requests.py [sizes [collectives [rounds]]]

A nonblocking call and its Wait, a Start of a persistent one and its Wait, each with the algorithm
that the rules name for the blocking call. Beside :mod:`small_calls`, which measures that.
"""

import sys
import time
from itertools import product
from statistics import median

from mpi4py import MPI
from small_calls import METHODS, MOST, arguments

import hpccoll

SIZES = "8,512,4096,16384,65536"
#: Seconds of a round of one candidate.
SECONDS = 0.01
#: What the rules name for few ranks of a node.
ALGORITHMS = {"reduce_scatter": "pairwise", "reduce": "binomial", "bcast": "binomial",
              "alltoall": "pairwise", "gather": "linear", "scatter": "linear",
              **dict.fromkeys(("allreduce", "allgather", "barrier", "scan", "exscan"),
                              "recursive_doubling")}
SHARED = {**ALGORITHMS, "reduce_scatter": "circulant", "alltoall": "linear", "scan": "linear",
          "exscan": "linear"}


def nonblocking(comm, method, args):
    """What begins a call and waits for it, and nothing to free."""
    begin = getattr(comm, f"I{method.lower()}")
    return lambda: begin(*args).Wait(), None


def persistent(comm, method, args):
    """What starts a request and waits for it, and the request."""
    request = getattr(comm, f"{method}_init")(*args)

    def again():
        request.Start()
        request.Wait()
    return again, request


def measure(world, comm, form, method, nbytes, rounds):
    """Median seconds of both, on this rank."""
    args, count = arguments(method, nbytes, comm), 0
    candidates = [(*form(one, method, args), []) for one in (world, comm)]
    for turn in range(rounds + 1):
        for call, _, found in candidates:
            world.Barrier()
            start = time.perf_counter()
            for _ in range(count or 20):
                call()
            seconds = (time.perf_counter() - start) / (count or 20)
            if turn:
                found.append(seconds)
        if not turn:
            count = world.allreduce(int(min(max(SECONDS / seconds, 5), MOST)), MPI.MAX)
    for _, request, _ in candidates:
        if request is not None:
            request.Free()
    return [median(found) for *_, found in candidates]


def main(sizes=SIZES, methods="", rounds="9"):
    """Print a table."""
    world = MPI.COMM_WORLD
    for form, method in product((persistent, nonblocking), (
            methods.split(",") if methods else METHODS)):
        # A communicator has channels for a few dozen persistent requests in its life.
        comm = hpccoll.Comm(world.Dup())
        with comm.using(**(ALGORITHMS if comm.size == 2 else SHARED)):
            for nbytes in map(int, sizes.split(",") if method != "Barrier" else "0"):
                native, ours = measure(world, comm, form, method, nbytes, int(rounds))
                if world.rank == 0:
                    print(f"{form.__name__:12}{method:21}{nbytes:7}{native * 1e6:10.2f}"
                          f"{ours * 1e6:10.2f} us{native / ours:8.2f}", flush=True)
        comm.Free()


if __name__ == "__main__":
    main(*sys.argv[1:])
