"""Arguments that the MPI standard and mpi4py permit, in programs that were not written for hpccoll.

Looked at beside them: the key of the cache in C, which reads arrays of counts in place and leaves
the others to Python; specifications with counts, whose keys hold lists and tuples only.
"""

import numpy
import pytest
from mpi4py import MPI

import hpccoll

D = MPI.DOUBLE
pytestmark = pytest.mark.mpi


@pytest.mark.parametrize("executor", ["compiled", "python"])
@pytest.mark.parametrize("form", ["{}", "I{}", "{}_init"])
def test_counts_are_arrays_of_any_integers_and_any_stride(world, monkeypatch, executor, form):
    """Of every method with counts, in each of its forms; a key of the caches is made of them."""
    monkeypatch.setenv("HPCCOLL_EXECUTOR", executor)
    comm, size = hpccoll.Comm(world.Dup()), world.size
    table = numpy.arange(size * size).reshape(size, size) % 3 + 1

    def finish(method, *args):
        request = getattr(comm, form.format(method.lower() if form[0] == "I" else method))(*args)
        if form == "{}_init":
            request.Start()
        if request is not None:
            request.Wait()

    for kind in ("i1", "u2", "i4", "u4", "i8", "u8"):
        numbers = table.astype(kind)
        for counts in (numbers[:, 0], numbers[0], numbers[::-1, 0]):
            own, many = int(counts[comm.rank]), int(counts.sum())
            wanted = numpy.repeat(numpy.arange(size), counts.astype("i8"))
            displs = numpy.cumsum(counts).astype(kind) - counts
            for _ in range(2):
                part, whole = numpy.empty(own), numpy.empty(many)
                finish("Reduce_scatter", numpy.ones(many), part, counts)
                assert (part == size).all()
                finish("Allgatherv", numpy.full(own, comm.rank * 1.), [whole, (counts, displs)])
                assert (whole == wanted).all()
                finish("Gatherv", numpy.full(own, comm.rank * 1.), [whole, counts, displs, D], 0)
                assert comm.rank or (whole == wanted).all()
                finish("Scatterv", [wanted * 1., counts], part, 0)
                assert (part == comm.rank).all()
                sent = numpy.full(size * own, comm.rank * 1.)
                finish("Alltoallv", [sent, numpy.full(size, own).astype(kind)], [whole, counts])
                assert (whole == wanted).all()
                finish("Alltoallw", [sent, (numpy.full(size, own).astype(kind),
                                            numpy.arange(size) * 8 * own), [D] * size],
                       [whole, (counts, displs.astype("i8") * 8), [D] * size])
                assert (whole == wanted).all()
    comm.Free()
