"""Ways in which ranks may disagree about a call, and what every rank must be told then."""

import numpy
from mpi4py import MPI

from hpccoll.comm.contract import CONTRACT
from hpccoll.errors import HpccollError
from hpccoll.errors.contract import ContractError

RAW = MPI.COMM_WORLD
RANK, SIZE = RAW.Get_rank(), RAW.Get_size()
WISHES = {"allreduce": "recursive_doubling", "reduce": "binomial", "bcast": "binomial",
          "scan": "linear", "exscan": "linear", "reduce_scatter": "pairwise", "allgather": "ring",
          "alltoall": "pairwise", "gather": "linear", "scatter": "linear",
          "barrier": "dissemination"}
#: Elements of a block: in cells, and where they lie.
SMALL, LARGE = 24, 50_000


def block(count, dtype="f8"):
    return numpy.ones(count, dtype)


def blocks(count, dtype="f8"):
    return numpy.ones(count * SIZE, dtype)


def at(root, array):
    return array if RANK == root else None


#: What is called of a count, a type, an operator and a root.
CALLS = {
    "allreduce": lambda c, n, t, op, root: c.Allreduce(block(n, t), block(n, t), op),
    "reduce": lambda c, n, t, op, root: c.Reduce(block(n, t), at(root, block(n, t)), op, root),
    "bcast": lambda c, n, t, op, root: c.Bcast(block(n, t), root),
    "scan": lambda c, n, t, op, root: c.Scan(block(n, t), block(n, t), op),
    "exscan": lambda c, n, t, op, root: c.Exscan(block(n, t), block(n, t), op),
    "reduce_scatter_block": lambda c, n, t, op, root: c.Reduce_scatter_block(
        blocks(n, t), block(n, t), op),
    "reduce_scatter": lambda c, n, t, op, root: c.Reduce_scatter(
        blocks(n, t), block(n, t), [n] * SIZE, op),
    "allgather": lambda c, n, t, op, root: c.Allgather(block(n, t), blocks(n, t)),
    "allgatherv": lambda c, n, t, op, root: c.Allgatherv(block(n, t), [blocks(n, t), [n] * SIZE]),
    "alltoall": lambda c, n, t, op, root: c.Alltoall(blocks(n, t), blocks(n, t)),
    "alltoallv": lambda c, n, t, op, root: c.Alltoallv(
        [blocks(n, t), [n] * SIZE], [blocks(n, t), [n] * SIZE]),
    "alltoallw": lambda c, n, t, op, root: c.Alltoallw(*([
        blocks(n, t), [n] * SIZE, [8 * n * rank for rank in range(SIZE)],
        [MPI._typedict[numpy.dtype(t).char]] * SIZE] for _ in range(2))),
    "gather": lambda c, n, t, op, root: c.Gather(block(n, t), at(root, blocks(n, t)), root),
    "scatter": lambda c, n, t, op, root: c.Scatter(at(root, blocks(n, t)), block(n, t), root),
    "gatherv": lambda c, n, t, op, root: c.Gatherv(
        block(n, t), at(root, [blocks(n, t), [n] * SIZE]), root),
    "scatterv": lambda c, n, t, op, root: c.Scatterv(
        at(root, [blocks(n, t), [n] * SIZE]), block(n, t), root),
    "barrier": lambda c, n, t, op, root: c.Barrier()}
REDUCING = ("allreduce", "reduce", "scan", "exscan", "reduce_scatter_block", "reduce_scatter")
MOVING = ("bcast", "allgather", "alltoall", "gather", "scatter")
ROOTED = ("bcast", "reduce", "gather", "scatter")
#: Two collectives of which one rank calls the second one.
CONFUSED = [("allreduce", "bcast"), ("allreduce", "barrier"), ("scan", "exscan"),
            ("reduce", "bcast"), ("gather", "scatter"), ("allgather", "alltoall")]
#: (field, collective, collective of the odd rank)
WAYS = [*(("operator", name, name) for name in REDUCING),
        *(("dtype", name, name) for name in REDUCING),
        *(("count", name, name) for name in (*REDUCING, *MOVING)),
        *(("root", name, name) for name in ROOTED),
        *(("collective", *pair) for pair in CONFUSED),
        ("algorithm", "allreduce", "allreduce"), ("count", "allgatherv", "allgatherv"),
        ("root", "gatherv", "gatherv"), ("root", "scatterv", "scatterv"),
        ("collective", "alltoallw", "alltoallv")]
#: Types of data that only moves: compared before every call at the level ``always``, else never.
MOVED = [("dtype", name, name) for name in (*MOVING, "allgatherv", "gatherv", "scatterv",
                                            "alltoallv")]


def method_of(title):
    """The name by which a method of the table of comparisons stands in ``CALLS``."""
    name = title.lower().removesuffix("_init")
    return name if name in CALLS else name.removeprefix("i")


def rows(how):
    """Of each method that is compared so, the first field in which the odd rank may differ."""
    return [((row.fields or ("collective",))[0], title) for title, row in CONTRACT.items()
            if row.how is how]


class Formed:
    """Begins, or makes, a request where a communicator calls; waits for one that has begun."""

    def __init__(self, comm, form):
        self.comm, self.form = comm, form

    def __getattr__(self, name):
        method = getattr(self.comm, self.form.format(
            name.lower() if self.form[0] == "I" else name))
        return (lambda *args: method(*args).Wait()) if self.form[0] == "I" else method


def disagree(comm, field, usual, unusual, odd, count, preferences=WISHES, form="{}"):
    """Call, one rank something else than the others; return the error of this rank."""
    arguments = [count, "f8", MPI.SUM, 0]
    name = usual
    if RANK == odd:
        name = unusual
        if field == "algorithm":
            preferences = {**preferences, "allreduce": "linear"}
        elif field != "collective":
            place = ("count", "dtype", "operator", "root").index(field)
            arguments[place] = (count + 1, "i8", MPI.MAX, 1)[place]
    with comm.using(**preferences):
        try:
            CALLS[name](Formed(comm, form), *arguments)
            return None
        except HpccollError as error:
            return error


def check(error, field, usual, unusual, odd):
    assert type(error) is ContractError, error
    assert error.field == field
    assert not error.absent
    names = {group.ranks: group.fields["collective"] for group in error.groups}
    others = tuple(rank for rank in range(SIZE) if rank != odd)
    assert names == {(odd,): unusual, others: usual}
    assert error.ranks == ((odd,) if SIZE > 2 else ())
    values = {group.ranks: group.fields[field] for group in error.groups}
    assert values[(odd,)] != values[others]
    assert all(value in str(error) for value in values.values() if value)
