r"""Collectives in which the network copies messages, and reduces them on the way.

    mpiexec -n 3 python examples/in_network.py
    hpccoll verify examples/in_network.py:ALLREDUCE --ranks 1-8
    hpccoll explain examples/in_network.py:IN_PIECES --size 4
    hpccoll simulate examples/in_network.py:ALLREDUCE --nodes 1 --ppn 8 --machine dgx-h100 \
        --nbytes 8,1M,1G --algorithm ring,recursive_doubling

docs/write-your-own-algorithm.md explains it. ``ALLREDUCE`` is one operation of the network, as
SHARP does it (Graham et al., COMHPC 2016). In ``IN_PIECES`` each rank fetches the sum of its own
part and gives it to all others, as GPUs do through an NVSwitch (Klenk et al., ISCA 2020). ``BCAST``
is a multicast. MPI's messages have one receiver each, so the communicator refuses all three; they
run on the loopback transport, all ranks in one process.
"""
import sys

from hpccoll import Algorithm
from hpccoll.lang import COLLECTIVES, IN, OUT, Program, at, copy, in_network, multicast, recv, send


def one_operation(rank, size):
    """The network adds up the vectors of all ranks, and gives the sum to all."""
    take = (copy(at(OUT, 0), at(IN, 0)),)
    everybody = in_network(range(size), range(size))
    add = (send(everybody, at(OUT, 0)), recv(everybody, at(OUT, 0)))    # arrives when it has left
    return Program((take, add) if size > 1 else (take,))


def in_pieces(rank, size):
    """Each rank gets one part added up by the network, and the network gives it to all others."""
    take = (copy(at(OUT, 0, size), at(IN, 0, size)),)
    if size == 1:
        return Program((take,))
    add = [send(in_network(range(size), [part]), at(OUT, part)) for part in range(size)]
    add.append(recv(in_network(range(size), [rank]), at(OUT, rank)))
    give = [send(multicast(rank, range(size)), at(OUT, rank))]
    give += [recv(multicast(other, range(size)), at(OUT, other))
             for other in range(size) if other != rank]
    return Program((take, tuple(add), tuple(give)))


def bcast(rank, size, root):
    """One multicast."""
    network = multicast(root, range(size))
    step = send(network, at(OUT, 0)) if rank == root else recv(network, at(OUT, 0))
    return Program(((step,),) if size > 1 else ())


ALLREDUCE = Algorithm(one_operation, "allreduce", rounds=lambda size: min(size - 1, 1))
IN_PIECES = Algorithm(in_pieces, "allreduce", blocks=lambda size: size,
                      rounds=lambda size: 2 * min(size - 1, 1),
                      sent=lambda size: size + 1 if size > 1 else 0)
BCAST = Algorithm(bcast, "bcast", name="one_multicast", rounds=lambda size: min(size - 1, 1))


if __name__ == "__main__":
    import numpy
    from mpi4py import MPI

    import hpccoll
    from hpccoll.testing.world import Problem, run

    comm = hpccoll.Comm(MPI.COMM_WORLD)
    for algorithm in (ALLREDUCE, IN_PIECES, BCAST):
        made = hpccoll.schedule(algorithm.collective, algorithm, comm.size)
        wrong = run(made, Problem(COLLECTIVES[algorithm.collective], comm.size, [comm.size * 7]))
        if wrong:
            sys.exit(f"{made.title}: {wrong}")
    try:
        with comm.using(allreduce=ALLREDUCE):
            comm.Allreduce(numpy.ones(7), numpy.empty(7))
    except hpccoll.HpccollError as error:       # raised before any message, on every rank
        print(f"rank {comm.rank}: {error}")
    if comm.rank == 0:
        print(f"three algorithms of {comm.size} rank{'s' * (comm.size > 1)}, proved, "
              "and run on loopback")
