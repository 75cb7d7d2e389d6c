"""Collectives of threads: MPI's results, hpccoll's traffic, and requests."""

import ml_dtypes
import numpy
import pytest
from mpi4py import MPI

from hpccoll.errors import ArgumentError, MessageSizeError
from hpccoll.testing.exact import exact_reduction, inputs, wrong
from support.threads import run_ranks

SIZES = 1, 2, 3, 5, 7, 8


def own(rank, count, dtype="i8"):
    return (numpy.arange(count) + 100 * rank + 1).astype(dtype)


@pytest.mark.slow(every=10)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("op, name", [(MPI.SUM, "sum"), (MPI.MAX, "max"), (MPI.BAND, "band"),
                                      (MPI.PROD, "prod")])
def test_reductions(size, op, name):
    for count in 0, 1, size - 1, size + 1, 13:
        given = [inputs(name, "i4", rank, size, count) for rank in range(size)]

        def function(comm):
            mine = given[comm.rank]
            out, scanned, before = (numpy.full(count, -1, "i4") for _ in range(3))
            comm.Allreduce(mine, out, op=op)
            comm.Scan(mine, scanned, op)
            comm.Exscan(mine, before, op)
            at_root = numpy.full(count, -1, "i4")
            comm.Reduce(mine, at_root if comm.rank == size - 1 else None, op, size - 1)
            return out, scanned, before, at_root

        for rank, (out, scanned, before, at_root) in enumerate(run_ranks(size, function)):
            total = exact_reduction(name, "i4", range(size), size, count)
            assert not wrong(out, total, True)
            assert not wrong(scanned, exact_reduction(name, "i4", range(rank + 1), size, count),
                             True)
            assert not wrong(at_root, total if rank == size - 1 else at_root * 0 - 1, True)
            if rank:
                assert not wrong(before, exact_reduction(name, "i4", range(rank), size, count),
                                 True)


@pytest.mark.parametrize("size", SIZES)
def test_blocks_of_unequal_size_land_where_displacements_say(size):
    counts = [(3 * rank + 1) % 4 for rank in range(size)]
    displs = [5 * rank + 1 for rank in reversed(range(size))]

    def function(comm):
        rank, everything = comm.rank, numpy.full(5 * size, -1)
        comm.Allgatherv(own(rank, counts[rank]), [everything, (counts, displs), MPI.INT64_T])
        whole = numpy.concatenate([own(one, counts[one]) for one in range(size)])
        part = numpy.empty(counts[rank], "i8")
        comm.Reduce_scatter(whole, part, counts)
        comm.Scatterv([everything, (counts, displs)] if rank == 0 else None, part2 := part * 0)
        gathered = numpy.full(5 * size, -1)
        comm.Gatherv(part2, [gathered, (counts, displs)] if rank == 0 else None)
        return everything, part, gathered

    for rank, (everything, part, gathered) in enumerate(run_ranks(size, function)):
        expected = numpy.full(5 * size, -1)
        for one in range(size):
            expected[displs[one]:][:counts[one]] = own(one, counts[one])
        assert (everything == expected).all()
        assert (part == size * own(rank, counts[rank])).all()
        assert rank or (gathered == expected).all()


@pytest.mark.parametrize("size", SIZES)
def test_every_pair_exchanges_its_own_block(size):
    def count(source, to):
        return (2 * source + 3 * to) % 4

    def block(source, to):
        return own(source * size + to, count(source, to))

    def function(comm):
        sent = [block(comm.rank, to) for to in range(size)]
        counts = [count(source, comm.rank) for source in range(size)]
        out = numpy.empty(sum(counts), "i8")
        request = comm.Ialltoallv([numpy.concatenate(sent), [len(one) for one in sent]],
                                  [out, counts])
        request.Wait()
        even = numpy.arange(size) + 10 * comm.rank
        comm.Alltoall(MPI.IN_PLACE, even)
        return out, even

    for rank, (out, even) in enumerate(run_ranks(size, function)):
        assert (out == numpy.concatenate([block(source, rank) for source in range(size)])).all()
        assert (even == 10 * numpy.arange(size) + rank).all()


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, "f2"])
def test_half_precision_accumulates_in_float32(dtype):
    # 256 + 1 + 1 is 256 in bfloat16, twice rounded; 258 in float32, once rounded.
    large = 256 if dtype != "f2" else 2048

    def function(comm):
        values = numpy.array([large if comm.rank == 0 else 1], dtype)
        with comm.using(allreduce="linear"):
            comm.Allreduce(MPI.IN_PLACE, values)
        return float(values[0])

    assert run_ranks(3, function) == [large + 2] * 3


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


def test_calls_under_way_on_one_communicator_do_not_mix():
    def function(comm):
        arrays = [numpy.full(size, float(comm.rank + size)) for size in (3, 12, 1, 7)]
        requests = [comm.Iallreduce(MPI.IN_PLACE, array) for array in arrays]
        comm.Barrier()
        for request in requests if comm.rank % 2 else reversed(requests):
            request.Wait()
        return [array.tolist() for array in arrays]

    assert run_ranks(5, function) == [
        [[10.0 + 5 * size] * size for size in (3, 12, 1, 7)]] * 5


def test_an_operator_that_does_not_commute_keeps_the_order_of_ranks():
    def combine(one, other, datatype):
        left, right = (numpy.frombuffer(each, "f8").reshape(-1, 2) for each in (one, other))
        # x -> a x + b, applied left to right.
        right[:] = numpy.stack([left[:, 0] * right[:, 0],
                                left[:, 1] * right[:, 0] + right[:, 1]], 1)

    op = MPI.Op.Create(combine, commute=False)

    def function(comm):
        pair = MPI.DOUBLE.Create_contiguous(2).Commit()
        pair.Free()
        values = numpy.array([2.0, comm.rank])
        comm.Reduce_scatter_block(numpy.tile(values, comm.size), out := numpy.empty(2), op)
        return out.tolist()

    expected = numpy.array([1.0, 0.0])
    for rank in range(5):
        expected = numpy.array([expected[0] * 2, expected[1] * 2 + rank])
    assert run_ranks(5, function) == [expected.tolist()] * 5


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


def test_choices_are_those_of_the_block():
    def function(comm):
        array, sent = numpy.zeros(10, "u1"), []
        for preference in {}, {"bcast": "linear"}, {"ibcast": "linear"}, {"bcast": "native"}:
            with comm.using(**preference):
                for call in (comm.Bcast, comm.Ibcast):
                    before = comm.sent_bytes
                    (call(array, 0) or comm.Ibarrier()).Wait()
                    sent.append(comm.sent_bytes - before)
        return sent

    # The root of a chain sends once, that of a star to everybody.
    assert run_ranks(3, function)[0] == [10, 10, 20, 20, 10, 20, 10, 10]


def test_wrong_arguments_are_hpccolls_errors():
    def function(comm):
        with pytest.raises(ArgumentError, match="'wrong'"), \
                comm.using(allreduce="wrong"):
            pass
        with pytest.raises(ArgumentError, match="3 elements"):
            comm.Allgather(numpy.zeros(1), numpy.zeros(3))

    run_ranks(2, function)


def test_what_only_an_mpi_library_serves():
    with pytest.raises(NotImplementedError, match="reduce_scatter"):
        run_ranks(1, lambda comm: comm.Reduce_scatter(numpy.zeros(1), numpy.zeros(1)))


def test_an_error_is_raised_where_somebody_waits():
    def function(comm):
        request = comm.Iallreduce(MPI.IN_PLACE, numpy.zeros(4 + 4 * comm.rank))
        other = comm.Dup().Iallreduce(MPI.IN_PLACE, good := numpy.ones(1))
        other.Wait()
        assert good[0] == 2
        with pytest.raises(MessageSizeError):
            request.Wait()

    run_ranks(2, function)


def test_ranks_that_disagree_on_a_count_see_an_error():
    with pytest.raises(MessageSizeError):
        run_ranks(2, lambda comm: comm.Allreduce(MPI.IN_PLACE, numpy.zeros(4 + 4 * comm.rank)))


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


def test_scatter_and_alltoall_want_an_object_for_every_rank():
    with pytest.raises(ValueError, match="2 objects"):
        run_ranks(2, lambda comm: comm.alltoall([1, 2, 3]))
