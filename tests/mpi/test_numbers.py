"""The bits of results on real ranks: sums for any number of them, equality, checks, checksums."""

import hashlib
import time

import numpy
import pytest
from mpi4py import MPI

import hpccoll
from hpccoll.errors import ArgumentError, BrokenCommunicatorError, NonFiniteError
from hpccoll.errors.checks import CorruptMessage, NonFiniteInput, UnequalError

pytestmark = pytest.mark.mpi
WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.rank, WORLD.size
LAST = SIZE - 1
alone = pytest.mark.skipif(SIZE == 1, reason="one rank has nobody to differ from")
TYPES = ("f8", "f4", "f2", "c16", "c8")


def terms(count, dtype, rows=SIZE):
    """What all ranks bring, row by row."""
    random = numpy.random.default_rng(count)
    decades = 2 if dtype == "f2" else 9
    real = random.standard_normal((2, rows, count)) * 10.0 ** random.integers(
        -decades, decades, (2, rows, count))
    return (real[0] + 1j * real[1] if dtype[0] == "c" else real[0]).astype(dtype)


def same(found, expected):
    assert found.tobytes() == expected.tobytes()


def new(**options):
    return hpccoll.Comm(WORLD.Dup(), **options)


# -- any number of ranks -----------------------------------------------------------------------
@pytest.mark.parametrize("dtype", TYPES)
def test_sums_of_any_number_of_ranks(dtype):
    comm = new(determinism="any-p")
    for count in (0, 1, 60, 9000):
        everything = terms(count, dtype)
        mine, expected = everything[RANK].copy(), hpccoll.reproducible_sum(everything, axis=0)
        found = numpy.empty_like(mine)
        comm.Allreduce(mine, found)
        same(found, expected)
        comm.Allreduce(MPI.IN_PLACE, mine)
        same(mine, expected)
        mine = everything[RANK].copy()
        comm.Reduce(mine, found := numpy.empty_like(mine) if RANK == LAST else None, MPI.SUM, LAST)
        if RANK == LAST:
            same(found, expected)
        counts = [count // SIZE + (rank < count % SIZE) for rank in range(SIZE)]
        block, start = numpy.empty(counts[RANK], dtype), sum(counts[:RANK])
        comm.Reduce_scatter(mine, block, counts)
        same(block, expected[start:start + counts[RANK]])
        each = count // SIZE
        whole = mine[:each * SIZE].copy()
        comm.Reduce_scatter_block(whole, block := numpy.empty(each, dtype))
        same(block, expected[RANK * each:RANK * each + each])
        comm.Reduce_scatter_block(MPI.IN_PLACE, whole)
        same(whole[:each], expected[RANK * each:RANK * each + each])
    comm.Free()


@pytest.mark.parametrize("how", [{}, {"checksums": True}])
def test_contributions_dealt_to_the_ranks(how):
    """24 of each, whichever rank has which, and however it adds its own."""
    comm, everything = new(**how), terms(50, "f8", 24)
    expected = hpccoll.reproducible_sum(everything, axis=0)
    mine = everything[RANK::SIZE]
    same(comm.reproducible_sum(mine, axis=0), expected)
    sums = hpccoll.ReproducibleSum(50)
    for contribution in mine[::-1]:
        sums.add(contribution)
    same(comm.reproducible_sum(sums), expected)
    same(comm.reproducible_sum(everything if RANK == LAST else everything[:0], axis=0), expected)
    x, y = everything[0], everything[1]
    part = slice(RANK, None, SIZE)
    assert comm.reproducible_sum(x[part] * y[part]) == hpccoll.reproducible_sum(x * y)
    with pytest.raises(ArgumentError, match="int64"):
        comm.reproducible_sum(numpy.arange(3))
    comm.Free()


@alone
def test_too_many_summands_are_an_error_on_every_rank():
    comm, sums = new(), hpccoll.ReproducibleSum()
    sums.summands = 1 << 37 if RANK == LAST else 0
    with pytest.raises(ArgumentError, match="137438953472"):
        comm.reproducible_sum(sums)
    comm.Free()


@alone
def test_what_any_p_cannot_keep_is_refused():
    comm, x = new(determinism="any-p"), numpy.ones(3)
    for call in (lambda: comm.Allreduce(x, x.copy(), MPI.PROD), lambda: comm.Scan(x, x.copy()),
                 lambda: comm.Iallreduce(x, x.copy()), lambda: comm.Reduce_init(x, x.copy())):
        with pytest.raises(ArgumentError, match="'any-p'.*rounds"):
            call()
    for op in (MPI.MAX, MPI.MIN):
        comm.Allreduce(x, found := x.copy(), op)
        same(found, x)
    comm.Allreduce(numpy.arange(3), counted := numpy.empty(3, "i8"))
    assert (counted == SIZE * numpy.arange(3)).all()
    comm.Free()


@alone
@pytest.mark.parametrize("determinism", ["run", "size", "layout", "any-p"])
def test_bits_do_not_depend_on_the_run(determinism):
    """Digests over runs, with ranks that come at other moments each time, on new communicators."""
    digests, random = set(), numpy.random.default_rng(RANK + 1)
    mine = terms(3000, "f4")[RANK].copy()
    for _ in range(3):
        comm = new(determinism=determinism)
        for _ in range(4):
            time.sleep(random.random() * 2e-3)
            comm.Allreduce(mine, found := numpy.empty_like(mine))
            digests.add(hashlib.sha256(found.tobytes()).hexdigest())
        comm.check_equal(found, "the sum")
        comm.Free()
    assert len(set().union(*WORLD.allgather(digests))) == 1


# -- equality and checks -----------------------------------------------------------------------
@alone
def test_equality_names_who_differs():
    comm, x = new(), numpy.arange(6.0).reshape(2, 3)
    comm.check_equal(x)
    comm.check_equal(numpy.empty(0))
    for odd in {0, LAST}:
        mine = x.copy()
        mine[1, 2] += RANK == odd
        with pytest.raises(UnequalError, match="weights") as caught:
            comm.check_equal(mine, "weights")
        assert caught.value.ranks == ((odd,) if SIZE > 2 else ())
        assert sorted(map(len, caught.value.groups)) == sorted([1, SIZE - 1])
        for other in (x.astype("f4"), x.ravel()):
            with pytest.raises(UnequalError, match="float64"):
                comm.check_equal(other if RANK == odd else x)
    with pytest.raises(UnequalError):
        comm.check_equal(numpy.float64(-0.0 if RANK else 0.0))
    with pytest.raises(TypeError, match="object"):
        comm.check_equal(numpy.array([None]))
    comm.Free()


@alone
def test_the_census_names_who_brings_nan(monkeypatch):
    monkeypatch.setenv("HPCCOLL_CHECK", "nan")
    comm, x = new(), numpy.ones(8, "f4")
    for odd in {0, LAST}:
        for _ in range(3):  # calls like an earlier one are searched, too
            comm.Allreduce(x, found := x.copy())
            assert (found == SIZE).all()
        bad = x.copy()
        if RANK == odd:
            bad[[3, 5]] = numpy.nan, numpy.inf
        with pytest.raises(NonFiniteInput, match=(
                rf"reduce at \S*test_numbers.py:\d+ .*rank {odd}: NaN .*3.*2")) as caught:
            comm.Reduce(bad, found if RANK == 0 else None)
        assert caught.value.ranks == (odd,) and isinstance(caught.value, NonFiniteError)
        with pytest.raises(NonFiniteInput, match="rank 0: infinity.*element 0"):
            comm.Allreduce(MPI.IN_PLACE, numpy.full(2, numpy.inf), MPI.MAX)
    comm.Bcast(numpy.full(3, numpy.nan))
    comm.Allreduce(numpy.arange(3), numpy.empty(3, "i8"))
    comm.Free()


@alone
def test_results_that_differ_are_told(monkeypatch):
    monkeypatch.setenv("HPCCOLL_CHECK", "results")
    comm, x = new(), numpy.ones(4)
    for _ in range(2):
        comm.Allreduce(x, x.copy())
        comm.Bcast(x)
        comm.Allgather(x, numpy.empty(4 * SIZE))
        comm.Scan(x, x.copy())
        comm.Barrier()
    # An operator that is not the same function on every rank.
    def mine(one, two, datatype):
        numpy.frombuffer(two)[:] += numpy.frombuffer(one) + RANK

    odd = MPI.Op.Create(mine, commute=True)
    try:
        with pytest.raises(UnequalError, match="allreduce"), \
                comm.using(allreduce="recursive_doubling"):
            comm.Allreduce(numpy.ones(4), numpy.empty(4), odd)
    finally:
        odd.Free()
    comm.Free()


# -- checksums ---------------------------------------------------------------------------------
def flips(comm, bit):
    """Makes this rank's next checked message arrive with another bit."""
    end = comm._context.endpoint.inner
    original = end.batch

    def batch(postings, tag, repeated):
        made = original(postings, tag, repeated)
        into = [posting.array for posting in postings if not posting.sends]
        if into and into[0].nbytes:
            end.batch, test = original, made.test

            class Flipped:
                start, free, done = staticmethod(made.start), staticmethod(made.free), False

                def test(self, tries=1):
                    if test(tries) and not self.done:
                        self.done = True
                        into[0].view("u1")[bit // 8] ^= 1 << bit % 8
                    return self.done
            return Flipped()
        return made

    end.batch = batch


@alone
@pytest.mark.parametrize("shared", ["yes", "no"])
@pytest.mark.parametrize("count", [4, 200_000])
def test_a_flipped_bit_is_told_on_every_rank(monkeypatch, shared, count):
    monkeypatch.setenv("HPCCOLL_SHARED_MEMORY", shared)
    comm, x = new(checksums=True), numpy.full(count, RANK + 1.0)
    with comm.using(allreduce="ring"):
        for _ in range(4):
            comm.Allreduce(x, found := numpy.empty_like(x))
            assert (found == SIZE * (SIZE + 1) / 2).all()
        left = (LAST - 1) % SIZE
        MPI.COMM_WORLD.Barrier()  # without shared memory a failure also ends an earlier call
        if RANK == LAST:
            flips(comm, 13)
        x = x.copy()  # is not served by what was prepared for the other
        with pytest.raises((CorruptMessage, BrokenCommunicatorError)) as caught:
            for _ in range(2):  # who does not need the message hears of it in the next call
                comm.Allreduce(x, numpy.empty_like(x))
    text = f"message [0-9]+ from rank {left} to rank {LAST} in round [0-9]+ was corrupt"
    assert caught.match(text)
    assert isinstance(caught.value, CorruptMessage) == (RANK == LAST)
    comm.Free()


@alone
def test_everything_travels_with_checksums():
    comm = new(checksums=True)
    x, found = numpy.ones(300), numpy.empty(300)
    comm.Bcast(x, LAST)
    before = sum(comm._context.endpoint.numbers.values())
    assert comm.allreduce(RANK) == SIZE * LAST // 2
    with comm.using(iallreduce="ring", allreduce_init="ring"):
        comm.Iallreduce(x, found).Wait()
        request = comm.Allreduce_init(x, found)
        for _ in range(3):
            request.Start()
            request.Wait()
        request.Free()
    assert sum(comm._context.endpoint.numbers.values()) > before > 0
    comm.Free()


@alone
def test_ranks_must_agree_on_checksums():
    comm = new(checksums=RANK == LAST)
    with pytest.raises(ArgumentError, match="HPCCOLL_CHECKSUMS: .*'yes'"):
        comm.check_equal(numpy.ones(3))
    comm.Free()
