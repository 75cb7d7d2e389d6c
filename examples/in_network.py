r"""Collectives in which the network copies messages, and reduces them on the way.

    python examples/in_network.py
    hpccoll verify examples/in_network.py:ALLREDUCE --ranks 1-8
    hpccoll explain examples/in_network.py:IN_PIECES --size 4
    hpccoll simulate examples/in_network.py:ALLREDUCE --nodes 1 --ppn 8 --machine dgx-h100 \
        --nbytes 8,1M,1G --algorithm ring,recursive_doubling

docs/write-your-own-algorithm.md explains it. ``ALLREDUCE`` is one operation of the network, as
SHARP does it (Graham et al., COMHPC 2016). In ``IN_PIECES`` each rank fetches the sum of its own
part and gives it to all others, as GPUs do through an NVSwitch (Klenk et al., ISCA 2020). ``BCAST``
and ``ALLGATHER`` are multicasts.

MPI's messages have one receiver each, so a communicator refuses them. The first command runs them
on the loopback transport, all ranks in one process.
"""
import sys

from hpccoll import Algorithm
from hpccoll.ir.collectives import IN, OUT
from hpccoll.ir.in_network import in_network, multicast
from hpccoll.ir.schedule import Program, at, copy, recv, send


def one_operation(rank, size):
    """The network adds up the vectors of all ranks, and gives the sum to all."""
    take = (copy(at(OUT, 0), at(IN, 0)),)
    everybody = in_network(range(size), range(size))
    add = (send(everybody, at(OUT, 0)), recv(everybody, at(OUT, 0)))    # arrives when it has left
    return Program((take, add) if size > 1 else (take,))


ALLREDUCE = Algorithm(one_operation, "allreduce", rounds=lambda size: min(size - 1, 1),
                      sent=lambda size: min(size - 1, 1))


def in_pieces(rank, size):
    """Each rank gets one part added up by the network, and the network gives it to all others."""
    take = (copy(at(OUT, 0, size), at(IN, 0, size)),)
    if size == 1:
        return Program((take,))
    parts = [in_network(range(size), [part]) for part in range(size)]
    add = [send(parts[part], at(OUT, part)) for part in range(size)]
    add.append(recv(parts[rank], at(OUT, rank)))
    return Program((take, tuple(add), *shared(rank, size).rounds))


def shared(rank, size):
    """Each rank's block goes to all others, in one multicast each."""
    give = [send(multicast(rank, range(size)), at(OUT, rank))] if size > 1 else []
    return Program(((*give, *(recv(multicast(other, range(size)), at(OUT, other))
                              for other in range(size) if other != rank)),))


IN_PIECES = Algorithm(in_pieces, "allreduce", blocks=lambda size: size,
                      rounds=lambda size: 2 * min(size - 1, 1),
                      sent=lambda size: size + 1 if size > 1 else 0)


def allgather(rank, size):
    """Each rank's block goes to all others, in one multicast each."""
    return Program((((copy(at(OUT, rank), at(IN, 0))),), *shared(rank, size).rounds))


ALLGATHER = Algorithm(allgather, "allgather", name="multicasts",
                      rounds=lambda size: min(size - 1, 1), sent=lambda size: min(size - 1, 1))


def bcast(rank, size, root):
    """One multicast."""
    if size == 1:
        return Program(())
    one_for_all = multicast(root, range(size))
    return Program(((send(one_for_all, at(OUT, 0)) if rank == root else
                     recv(one_for_all, at(OUT, 0)),),))


BCAST = Algorithm(bcast, "bcast", name="one_multicast", rounds=lambda size: min(size - 1, 1),
                  sent=lambda size: min(size - 1, 1))


if __name__ == "__main__":
    import hpccoll
    from hpccoll.ir.collectives import COLLECTIVES
    from hpccoll.testing.world import Problem, run

    size, failed = 5, False
    for algorithm in (ALLREDUCE, IN_PIECES, ALLGATHER, BCAST):
        schedule = hpccoll.schedule(algorithm.collective, algorithm, size)
        proof = hpccoll.verify(schedule)
        blocks = size if algorithm.collective == "allgather" else schedule.nblocks
        faults = run(schedule, Problem(COLLECTIVES[algorithm.collective], size, [7] * blocks))
        failed |= bool(faults)
        print(f"{schedule.title}: needs {' and '.join(proof.network)}; "
              f"{'; '.join(faults) or 'proved, run on loopback, right'}")
    sys.exit(failed)
