"""A plain mpi4py program that calls every collective and leaves with an error on a wrong result.

Each upper-case collective is called blocking, nonblocking and persistent, on rank-coded input and
poisoned output. Block sizes differ from rank to rank and may be zero.
"""

import numpy
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.Get_rank(), comm.Get_size()
root = size - 1
counts = [(2 * r + 1) % 4 for r in range(size)]
displs = [sum(counts[:r]) for r in range(size)]


def coded(r, count=4):
    """Numbers that tell which rank they come from."""
    return numpy.arange(count) + 100 * r


def poison(*shape):
    return numpy.full(shape, -1)


def at_root(value):
    return value if rank == root else None


def ragged(row):
    """One block per rank, of the sizes in ``counts``, one behind the other."""
    return numpy.concatenate([coded(row * size + r, counts[r]) for r in range(size)])


def reductions():
    """Yield (name, arguments, output, what must be in it; None for nothing)."""
    everyone = sum(coded(r) for r in range(size))
    for name, wanted in (("Allreduce", everyone), ("Scan", sum(map(coded, range(rank + 1)))),
                         ("Exscan", sum(map(coded, range(rank))) if rank else None)):
        out = poison(4)
        yield name, (coded(rank), out), out, wanted
    out, both = poison(4), coded(rank)
    yield "Reduce", (coded(rank), at_root(out), MPI.MAX, root), out, at_root(coded(size - 1))
    yield "Allreduce", (MPI.IN_PLACE, both), both, everyone
    blocks = numpy.concatenate([coded(rank + r) for r in range(size)])
    out = poison(4)
    yield "Reduce_scatter_block", (blocks, out), out, sum(coded(r + rank) for r in range(size))
    out = poison(counts[rank])
    yield ("Reduce_scatter", (ragged(rank), out, counts), out,
           sum(coded(r * size + rank, counts[rank]) for r in range(size)))


def movements():
    """The same for the collectives that move data without reducing it."""
    whole = numpy.array([coded(r) for r in range(size)])
    pieces = numpy.concatenate([coded(r, counts[r]) for r in range(size)])
    mine = coded(rank, counts[rank])
    out = coded(root) if rank == root else poison(4)
    yield "Bcast", (out, root), out, coded(root)
    out = poison(size, 4)
    yield "Gather", (coded(rank), at_root(out), root), out, at_root(whole)
    out = poison(size, 4)
    yield "Allgather", (coded(rank), out), out, whole
    out = poison(4)
    yield "Scatter", (at_root(whole), out, root), out, coded(rank)
    out = poison(sum(counts))
    yield "Gatherv", (mine, at_root([out, counts, displs, MPI.INT64_T]), root), out, at_root(pieces)
    out = poison(sum(counts))
    yield "Allgatherv", (mine, [out, counts]), out, pieces
    out = poison(counts[rank])
    yield "Scatterv", (at_root([pieces, (counts, displs)]), out, root), out, mine
    out = poison(size, 4)
    yield ("Alltoall", (numpy.array([coded(rank * size + r) for r in range(size)]), out), out,
           numpy.array([coded(r * size + rank) for r in range(size)]))
    out = poison(size * counts[rank])
    arrived = numpy.concatenate([coded(r * size + rank, counts[rank]) for r in range(size)])
    here = [counts[rank]] * size, [counts[rank] * r for r in range(size)]
    yield "Alltoallv", ([ragged(rank), (counts, displs)], [out, here]), out, arrived
    out = poison(size * counts[rank])
    types = [MPI.INT64_T] * size
    yield ("Alltoallw", ([ragged(rank), counts, [8 * d for d in displs], types],
                         [out, here[0], [8 * d for d in here[1]], types]), out, arrived)
    yield "Barrier", (), None, None


def blocking(name, arguments):
    getattr(comm, name)(*arguments)


def nonblocking(name, arguments):
    getattr(comm, "I" + name.lower())(*arguments).Wait()


def persistent(name, arguments):
    request = getattr(comm, name + "_init")(*arguments)
    request.Start()
    request.Wait()
    request.Free()


def check(name, found, wanted):
    if not numpy.array_equal(found, wanted):
        raise SystemExit(f"rank {rank}, {name}: {found}, expected {wanted}")


for call in blocking, nonblocking, persistent:
    for cases in reductions, movements:
        for name, arguments, out, wanted in cases():
            call(name, arguments)
            if wanted is not None:
                check(f"{call.__name__} {name}", out, wanted)

ranks = list(range(size))
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

ring = comm.Create_cart([size], periods=[True])
out = poison(2)
ring.Neighbor_allgather(numpy.array([rank]), out)
check("Neighbor_allgather", out, [(rank - 1) % size, (rank + 1) % size])
ring.Free()

# Pairs, whose order the key turns also where there are two ranks.
pair, members = comm.Split(rank // 2, key=-rank), ranks[rank // 2 * 2:][:2]
check("Split", pair.allgather(rank), members[::-1])
out = poison(4)
pair.Allreduce(coded(rank), out)
check("Allreduce after Split", out, sum(map(coded, members)))
pair.Free()
