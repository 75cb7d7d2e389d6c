"""A plain mpi4py program that calls every collective and leaves with an error on a wrong result.

Each upper-case collective is called blocking, nonblocking and persistent.
"""

import numpy
from mpi.cases import Calls
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.Get_rank(), comm.Get_size()
root, ranks = size - 1, list(range(size))


def check(name, found, wanted):
    if not numpy.array_equal(found, wanted):
        raise SystemExit(f"rank {rank}, {name}: {found}, expected {wanted}")


def blocking(method, arguments):
    getattr(comm, method)(*arguments)


def nonblocking(method, arguments):
    getattr(comm, "I" + method.lower())(*arguments).Wait()


def persistent(method, arguments):
    request = getattr(comm, method + "_init")(*arguments)
    request.Start()
    request.Wait()
    request.Free()


def at_root(value):
    return value if rank == root else None


for call in blocking, nonblocking, persistent:
    for case in Calls(rank, size, "i8", 4, root, "max").all():
        case.fill()
        call(case.method, case.args)
        case.check()

check("allreduce", comm.allreduce(rank), sum(ranks))
check("allreduce of lists", comm.allreduce([rank]), ranks)
check("reduce", comm.reduce({"rank": rank}["rank"], MPI.MAX, root), at_root(size - 1))
check("bcast", comm.bcast(at_root({"who": "root"}), root) == {"who": "root"}, True)
check("gather", comm.gather(str(rank), root), at_root([str(r) for r in ranks]))
check("allgather", comm.allgather((rank, "x")) == [(r, "x") for r in ranks], True)
check("scatter", comm.scatter(at_root([r * r for r in ranks]), root), rank * rank)
check("alltoall", comm.alltoall([(rank, r) for r in ranks]), [(r, rank) for r in ranks])
check("scan", comm.scan(rank), sum(ranks[:rank + 1]))
check("exscan", comm.exscan(rank), sum(ranks[:rank]) if rank else None)
comm.barrier()

ring, out = comm.Create_cart([size], periods=[True]), numpy.full(2, -1)
ring.Neighbor_allgather(numpy.array([rank]), out)
check("Neighbor_allgather", out, [(rank - 1) % size, (rank + 1) % size])
ring.Free()

# Pairs, whose order the key turns also where there are two ranks.
pair, members = comm.Split(rank // 2, key=-rank), ranks[rank // 2 * 2:][:2]
check("Split", pair.allgather(rank), members[::-1])
out = numpy.full(4, -1)
pair.Allreduce(numpy.arange(4) + 100 * rank, out)
check("Allreduce after Split", out, sum(numpy.arange(4) + 100 * r for r in members))
pair.Free()
