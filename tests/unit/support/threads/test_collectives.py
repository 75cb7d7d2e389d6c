"""Collectives of threads: MPI's results, hpccoll's traffic, and requests."""

import numpy
import pytest
from mpi.cases import Calls
from mpi4py import MPI

from hpccoll.errors import MessageSizeError
from support.threads import run_ranks

SIZES = 1, 2, 3, 5, 7, 8


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("form", ["{}", "I{}"])
def test_calls_have_the_results_of_real_ranks(size, form):
    def function(comm):
        made = set()
        for count, op in (0, "sum"), (1, "max"), (13, "band"), (size + 1, "prod"):
            for case in Calls(comm.rank, size, "i4", count, size - 1, op).all():
                call = getattr(comm, form.format(
                    case.method if form == "{}" else case.method.lower()), None)
                if call is not None:
                    case.fill()
                    request = call(*case.args)
                    if request is not None:
                        request.Wait()
                    case.check()
                    made.add(case.method)
        return made

    made, *others = run_ranks(size, function)
    assert len(made) > 8 and all(one == made for one in others)


@pytest.mark.parametrize("size", SIZES)
def test_traffic_has_its_closed_form(size):
    count = 6 * size

    def function(comm):
        sent = []
        for call in (lambda: comm.Allreduce(MPI.IN_PLACE, numpy.zeros(count, "f4")),
                     lambda: comm.Reduce_scatter_block(numpy.zeros(count), numpy.zeros(6)),
                     lambda: comm.Dup().Allgather(numpy.zeros(6), numpy.zeros(count)),
                     lambda: comm.Alltoall(numpy.zeros(count), numpy.zeros(count))):
            before = comm.sent_bytes
            call()
            sent.append(comm.sent_bytes - before)
        return sent

    block = count // size
    for sent in run_ranks(size, function):
        assert sent == [2 * 4 * block * (size - 1), *[8 * block * (size - 1)] * 3]


def test_requests_of_several_communicators_end_in_any_order():
    def function(comm):
        lanes = [comm.Dup() for _ in range(3)]
        arrays = [numpy.array([comm.rank + lane]) for lane in range(3)]
        requests = [lane.Iallreduce(MPI.IN_PLACE, array) for lane, array in zip(lanes, arrays)]
        # Ranks wait in different orders: whoever waits moves the others on.
        for number in (range(3) if comm.rank % 2 else reversed(range(3))):
            requests[number].Wait()
        while not requests[0].Test():
            pass
        assert requests[0].test() == (True, None)
        return [int(array[0]) for array in arrays]

    assert run_ranks(5, function) == [[10, 15, 20]] * 5


@pytest.mark.parametrize("determinism, same", [("run", False), ("size", True)])
def test_bits_depend_on_what_determinism_says(determinism, same):
    rng = numpy.random.default_rng(1)
    values = rng.standard_normal((5, 1000)).astype("f4")

    def function(comm):
        whole, tail = values[comm.rank].copy(), values[comm.rank][-7:].copy()
        comm.Allreduce(MPI.IN_PLACE, whole)
        comm.Allreduce(MPI.IN_PLACE, tail)
        return whole, tail

    results = run_ranks(5, function, determinism=determinism)
    assert all((whole == results[0][0]).all() for whole, _ in results)
    again = run_ranks(5, function, determinism=determinism)
    assert (again[0][0] == results[0][0]).all()
    assert (results[0][0][-7:] == results[0][1]).all() == same


def test_an_error_is_raised_where_somebody_waits():
    def function(comm):
        request = comm.Iallreduce(MPI.IN_PLACE, numpy.zeros(4 + 4 * comm.rank))
        other = comm.Dup().Iallreduce(MPI.IN_PLACE, good := numpy.ones(1))
        other.Wait()
        assert good[0] == 2
        with pytest.raises(MessageSizeError):
            request.Wait()

    run_ranks(2, function)


@pytest.mark.parametrize("size", SIZES)
def test_objects(size):
    def function(comm):
        mine = {"rank": comm.rank, "more": "x" * comm.rank}
        comm.barrier()
        return (comm.bcast(mine, size - 1)["rank"], [one["rank"] for one in comm.allgather(mine)],
                comm.gather(comm.rank, size - 1),
                comm.scatter(list("abcdefgh"[:size]) if comm.rank == 0 else None),
                comm.alltoall([(comm.rank, to) for to in range(size)]),
                comm.allreduce([comm.rank]), comm.reduce(comm.rank, max, size - 1),
                comm.scan(comm.rank), comm.exscan(str(comm.rank), lambda a, b: a + b))

    ranks = list(range(size))
    for rank, results in enumerate(run_ranks(size, function)):
        last = rank == size - 1
        assert results == (
            size - 1, ranks, ranks if last else None, "abcdefgh"[rank],
            [(source, rank) for source in ranks], ranks, size - 1 if last else None,
            sum(ranks[:rank + 1]), "".join(map(str, ranks[:rank])) or None)
