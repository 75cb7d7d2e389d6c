"""Averages of gradients: arguments, arrays, sparse gradients, Adasum."""

import array as arrays_of_python

import numpy
import pytest
from mpi4py import MPI

from hpccoll.errors import ArgumentError, ArgumentTypeError, CommunicatorError, ShardError
from hpccoll.training.adasum import Adasum
from hpccoll.training.arrays import as_array, dtype_of, is_writable, spec_of, specs_of
from hpccoll.training.averaging import NODE, LateExchange, ModelAverager
from hpccoll.training.buckets import ArraySpec
from hpccoll.training.compress.scheme import finish
from hpccoll.training.exchange import Exchange
from hpccoll.training.sparse import exchange_rows
from support.threads import run_ranks

# Averages instead of exchange: when, over whom, and that no gradient is lost
RANKS = (1, 2, 3, 5, 7, 8)


def arrays(rank=0):
    """Integers, so that sums are exact in any order."""
    return [numpy.full((2, 3), 4.0 + rank, "f4"), numpy.full(5, 1.0, "f8") * (rank + 1),
            numpy.zeros(0, "f4"), numpy.full((), 3.0 - rank, "f4")]


@pytest.mark.parametrize("size", RANKS)
def test_local_sgd_averages_every_h_steps(size):
    def work(comm):
        mine = arrays()
        averager, averaged = ModelAverager(comm, mine, 3), []
        for step in range(1, 8):
            for array in mine:
                array += comm.rank * step
            averaged.append(averager.step())
        return averaged, mine

    for rank, (averaged, mine) in enumerate(run_ranks(size, work)):
        assert averaged == [0, 0, size, 0, 0, size, 0]
        mean = (size - 1) / 2
        for array, start in zip(mine, arrays()):
            numpy.testing.assert_allclose(array, start + mean * sum(range(1, 7)) + rank * 7,
                                          rtol=1e-6)


def test_rank_0_decides_how_it_begins():
    for mine in run_ranks(3, lambda comm: ModelAverager(comm, arrays(comm.rank + 5)).arrays):
        assert all((array == first).all() for array, first in zip(mine, arrays(5)))


def test_post_local_sgd_exchanges_gradients_first():
    def work(comm):
        averager, log = ModelAverager(comm, arrays(), 2, after=3), []
        for _ in range(8):
            exchanging = averager.exchanging
            log.append((exchanging, averager.step()))
        return log

    for log in run_ranks(2, work):
        assert log == [(True, 0)] * 3 + [(False, 0), (False, 2)] * 2 + [(False, 0)]


@pytest.mark.parametrize("layout, every", [
    ("2x4", {2: 2, 4: 4, 8: 8}), ("2x4", {2: 2, 4: NODE, 8: 8}), ("8", {2: 2, 4: 4, 8: 8})])
def test_the_largest_period_decides(layout, every):
    def work(comm):
        mine = [numpy.array([float(comm.rank)])]
        averager, log = ModelAverager(comm, mine, every), []
        for _ in range(8):
            mine[0][:] = comm.rank
            log.append((averager.step(), float(mine[0][0])))
        averager.close()
        return log

    for rank, log in enumerate(run_ranks(8, work, layout=layout)):
        pair, four = rank // 2 * 2 + 0.5, rank // 4 * 4 + 1.5
        assert log == [(0, rank), (2, pair), (0, rank), (4, four), (0, rank), (2, pair), (0, rank),
                       (8, 3.5)]


@pytest.mark.parametrize("every", [1, 100])
def test_averages_are_exact_after_a_period_and_at_the_end(every):
    def work(comm):
        mine = arrays()
        averager = ModelAverager(comm, mine, every)
        for array in mine:
            array += 8 * comm.rank
        assert averager.step() == comm.size * (every == 1)
        averager.finish()
        return mine

    for mine in run_ranks(4, work):
        for array, start in zip(mine, arrays()):
            assert (array == start + 12).all() and array.dtype == start.dtype


@pytest.mark.parametrize("every, message", [
    (0, "periods.*1"), ({}, "periods"), ({2: 3, 4: 8}, "3 ranks"),
    ({2: 4, 4: 2}, "2 ranks.*4"), ({2: 2}, "average"),
    ({1: "rack", 2: 8}, "'rack'.*'node'"),
    ({2: 16}, "16 ranks")], ids=str)
def test_periods_that_cannot_serve(every, message):
    with pytest.raises(ArgumentError, match=message):
        run_ranks(8, lambda comm: ModelAverager(comm, arrays(), every))


def test_ranks_that_differ_are_told():
    def work(comm):
        with pytest.raises(ShardError, match="rank 1: options"):
            ModelAverager(comm, arrays(), 2 + comm.rank)
        with pytest.raises(ShardError, match="rank 1: array 0"):
            LateExchange(comm, [numpy.zeros(2 + comm.rank)])

    run_ranks(2, work)


def gradients(rank, step):
    return [numpy.full((2, 3), float(4 * rank + step), "f4"), numpy.arange(5.0) * (rank - step)]


@pytest.mark.slow(every=10)
@pytest.mark.parametrize("late", (1, 2, 3))
@pytest.mark.parametrize("size", RANKS)
def test_every_mean_comes_once_and_late(size, late):
    def wanted(step):
        return [sum(gradients(rank, step)[k] for rank in range(size)) / size for k in (0, 1)]

    def work(comm):
        exchange, steps = LateExchange(comm, gradients(0, 0), late), 5
        for step in range(steps):
            mine = gradients(comm.rank, step)
            found = exchange.exchange(mine)
            for array in mine:
                array[...] = numpy.nan  # a backward pass may write the next ones there
            if step < late:
                assert found is None
            else:
                check(found, step - late)
        rest = 0
        for found, step in zip(exchange.finish(), range(max(steps - late, 0), steps)):
            check(found, step)
            rest += 1
        assert rest == late and not list(exchange.finish())
        exchange.exchange(gradients(comm.rank, 7))
        check(next(exchange.finish()), 7)

    def check(found, step):
        for array, right in zip(found, wanted(step)):
            numpy.testing.assert_allclose(array, right, rtol=1e-6)

    run_ranks(size, work)


def test_a_late_exchange_does_not_wait_for_ranks_that_compute():
    """Nobody takes part in the other's first exchange yet, and both go on."""
    def work(comm):
        exchange = LateExchange(comm, gradients(0, 0))
        if comm.rank == 0:
            assert exchange.exchange(gradients(0, 0)) is None
            comm.send("begun", 1)
        else:
            comm.recv(source=0)
            assert exchange.exchange(gradients(1, 0)) is None
        assert exchange.exchange(gradients(comm.rank, 1))[0][0, 0] == 2

    run_ranks(2, work)


def test_gradients_of_other_shapes():
    def work(comm):
        exchange = LateExchange(comm, [numpy.zeros(3)])
        for wrong in ([numpy.zeros(4)], [numpy.zeros(3, "f4")], []):
            with pytest.raises(ArgumentError, match="gradients: .*shapes"):
                exchange.exchange(wrong)
        with pytest.raises(ArgumentError, match="late: .*1.*0"):
            LateExchange(comm, [], 0)

    run_ranks(1, work)


# Arguments that are none are refused by name, on this rank alone
class Between:
    Get_rank, is_inter = None, True


def freed():
    comm = MPI.COMM_SELF.Dup()
    comm.Free()
    return comm


@pytest.mark.parametrize("value, error, problem", [
    (MPI.Intracomm, ArgumentTypeError, "Intracomm"), (None, ArgumentTypeError, "None"),
    (MPI.INFO_NULL, ArgumentTypeError, "<mpi4py"), (MPI.COMM_NULL, CommunicatorError, "null"),
    (freed(), CommunicatorError, "null"), (Between(), CommunicatorError, "comm.Merge")])
def test_a_communicator_that_is_none(value, error, problem):
    with pytest.raises(error, match=f"comm: .*{problem}"):
        Exchange(value)


@pytest.mark.parametrize("wrong, problem", [
    ({"comm": "world"}, "comm: .*communicator"),
    ({"like": None}, "like: .*arrays"), ({"like": b"abc"}, "like: .*list.*abc"),
    ({"like": {"weight": 1}}, r"like: .*dict.*list\(it.values\(\)\)"),
    ({"names": 5}, "names: .*texts"), ({"names": "ab"}, "names: .*a list of texts"),
    ({"names": [1]}, "names: .*strings, got 1"), ({"names": ["a", "b"]}, "2 names.*1 arr"),
    ({"op": MPI.SUM}, "op: .*unknown"), ({"op": "median"}, "op: 'median'"),
    ({"order": "any"}, "order: 'any'"), ({"missing": "ignore"}, "missing: 'ignore'"),
    ({"bucket_bytes": -1}, "bucket_bytes"), ({"bucket_bytes": 1.5}, "bucket_bytes"),
    ({"options": {"lanes": 2}}, "options: .*ExchangeOptions"),
    ({"op": "max", "compress": "onebit"}, "compress: .*max"),
    ({"like": [numpy.zeros(1)] * 2, "names": ["a", "a"]}, "names: .*same name"),
    ({"prescale": "2"}, "prescale: .*'2'"), ({"prescale": None}, "prescale: .*number"),
    ({"postscale": 1j}, "postscale: .*number"),
    ({"timeout_seconds": "1"}, "timeout_seconds: .*'1'"),
    ({"report_seconds": -1}, "report_seconds: .*seconds.*0.*-1"),
    ({"recorder": "trace.json"}, "recorder: .*'trace.json'")])
def test_an_exchange_is_refused_before_anything_is_sent(wrong, problem):
    def rank(comm):
        with pytest.raises(ArgumentError, match=problem):
            Exchange(**{"comm": comm, "like": [numpy.zeros(3)], **wrong})
        return comm.sent_bytes

    assert run_ranks(2, rank) == [0, 0]


@pytest.mark.parametrize("call", [lambda exchange: exchange.reduce(None),
                                  lambda exchange: exchange.broadcast(5)])
def test_what_is_brought_must_be_a_list(call):
    exchange = Exchange(MPI.COMM_SELF, [numpy.zeros(3)], progress="calls")
    with pytest.raises(ArgumentTypeError, match="arrays: .*arrays"):
        call(exchange)
    exchange.close()


# Arrays of any kind, seen without a copy where that can be
class Exporter:
    """Shares its memory through DLPack, as tensors of a framework do."""

    def __init__(self, values):
        self.values = values

    def __dlpack__(self, **options):
        return self.values.__dlpack__()

    def __dlpack_device__(self):
        return self.values.__dlpack_device__()

    def __array__(self, dtype=None, copy=None):
        return self.values


class Copier(Exporter):
    """Gives ``numpy.asarray`` a copy: what is written there would be lost."""

    def __array__(self, dtype=None, copy=None):
        return self.values.copy()


def test_shared_memory_is_written():
    values = numpy.zeros(3)
    view = as_array(Exporter(values))
    assert is_writable(view)
    view[...] = 5
    assert values.tolist() == [5, 5, 5]
    assert as_array(values) is values
    assert is_writable(as_array(arrays_of_python.array("d", [1, 2])))


def test_what_is_a_copy_or_read_only_is_not_written():
    assert not is_writable(as_array(Copier(numpy.zeros(3))))
    values = numpy.zeros(3)
    values.flags.writeable = False
    assert not is_writable(as_array(values))
    assert not is_writable(as_array(numpy.frombuffer(bytes(8), "f8")))


@pytest.mark.parametrize("bad", [
    [1.0], 1.0, numpy.array(["text"]), numpy.array([None]), numpy.zeros(2, ">f4"), object(),
    numpy.zeros(2, "M8[s]")])
def test_what_cannot_be_exchanged_is_refused_by_name(bad):
    with pytest.raises(ArgumentTypeError, match="weights"):
        as_array(bad, "weights")


def test_specifications():
    assert spec_of("w", numpy.zeros((2, 3), "f4")) == ArraySpec("w", (2, 3), "float32", 4)
    declared = ArraySpec("x", (5,))
    assert spec_of("ignored", declared) is declared
    assert [spec.name for spec in specs_of([numpy.zeros(1), numpy.zeros(2)])] == ["0", "1"]
    with pytest.raises(ValueError):
        specs_of([numpy.zeros(1)], ["a", "b"])


def test_bfloat16():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    spec = spec_of("w", numpy.zeros(3, ml_dtypes.bfloat16))
    assert (spec.dtype, spec.itemsize) == ("bfloat16", 2)
    assert dtype_of("bfloat16") == ml_dtypes.bfloat16 and dtype_of("float64") == numpy.float64


def test_jax_arrays_are_seen_and_not_written():
    jax = pytest.importorskip("jax")
    view = as_array(jax.numpy.arange(3.0))
    assert view.tolist() == [0, 1, 2] and not is_writable(view)


def test_torch_tensors_are_written():
    torch = pytest.importorskip("torch")
    tensor = torch.zeros(3)
    as_array(tensor)[...] = 2
    assert tensor.tolist() == [2, 2, 2]
    with pytest.raises(ArgumentTypeError):
        as_array(torch.zeros(3, requires_grad=True), "w")


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_torch_tensors_of_types_that_numpy_lacks(name):
    """``numpy.asarray`` raises for these; JAX exports them by itself."""
    torch, ml_dtypes = pytest.importorskip("torch"), pytest.importorskip("ml_dtypes")
    tensor = torch.arange(6.0).reshape(2, 3).t().to(getattr(torch, name))
    view = as_array(tensor)
    assert view.dtype == getattr(ml_dtypes, name) and view.astype("f4").tolist() == [
        [0, 3], [1, 4], [2, 5]]
    view[0] = 7
    assert tensor[0].tolist() == [7, 7] and spec_of("w", tensor).dtype == name


def test_a_torch_tensor_that_was_viewed_can_be_resized():
    torch = pytest.importorskip("torch")
    tensor = torch.ones(4)
    view = as_array(tensor)
    tensor.untyped_storage().resize_(64)
    assert view.shape == (4,) and tensor.resize_(16).numel() == 16


@pytest.mark.parametrize("kind, reason", [
    ("meta", "no memory"), ("sparse", "storage"), ("conj", "resolve_conj"), ("leaf", "detach")])
def test_torch_tensors_without_plain_memory(kind, reason):
    torch = pytest.importorskip("torch")
    tensor = {"meta": lambda: torch.ones(3, device="meta"),
              "sparse": lambda: torch.ones(3).to_sparse(),
              "conj": lambda: torch.zeros(3, dtype=torch.complex64).conj(),
              "leaf": lambda: torch.nn.Parameter(torch.ones(3))}[kind]()
    with pytest.raises(ArgumentTypeError, match=f"^w: .*{reason}"):
        as_array(tensor, "w")


# Rows by their indices, added up
def drive(task):
    while True:
        try:
            next(task).Wait()
        except StopIteration as end:
            return end.value


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_rows_of_all_ranks_are_added_up(size):
    def rank(comm):
        me = comm.Get_rank()
        indices = numpy.array([me, 7, me], numpy.int64)[:me + 1]  # one row, two, then three
        return drive(exchange_rows(comm, indices, numpy.full((len(indices), 2), 4.0 ** me)))

    dense = numpy.zeros((8, 2))
    for me in range(size):
        for index in ([me, 7, me][:me + 1]):
            dense[index] += 4.0 ** me
    for indices, rows in run_ranks(size, rank):
        assert indices.tolist() == sorted(set(indices.tolist()))
        full = numpy.zeros((8, 2))
        full[indices] = rows
        assert (full == dense).all()


def test_a_rank_without_rows_and_nobody_with_rows():
    def rank(comm, count):
        rows = numpy.ones((count, 3), numpy.float32)
        return drive(exchange_rows(comm, numpy.arange(count), rows))

    for indices, rows in run_ranks(2, lambda comm: rank(comm, comm.Get_rank() * 2)):
        assert indices.tolist() == [0, 1] and rows.shape == (2, 3)
    for indices, _ in run_ranks(2, lambda comm: rank(comm, 0)):
        assert not len(indices)


# Adasum: orthogonal gradients give the sum, parallel ones the mean
def combined(vectors, shapes):
    """What every rank has in the end."""
    def rank(comm):
        values = vectors[comm.Get_rank()].copy()
        finish(Adasum().start(comm, shapes).reduce(values))
        return values

    results = run_ranks(len(vectors), rank)
    for other in results[1:]:
        assert other.tobytes() == results[0].tobytes()
    return results[0]


def pairwise(a, b):
    aa, bb, ab = a @ a, b @ b, a @ b
    return a * (1 - ab / (2 * aa) if aa else 1) + b * (1 - ab / (2 * bb) if bb else 1)


def tree(vectors):
    """The definition, on whole vectors: extra ranks first, then neighbours of growing distance."""
    vectors = list(vectors)
    paired = 1 << (len(vectors).bit_length() - 1)
    for extra, vector in enumerate(vectors[paired:]):
        vectors[extra] = pairwise(vectors[extra], vector)
    vectors = vectors[:paired]
    while len(vectors) > 1:
        vectors = [pairwise(a, b) for a, b in zip(vectors[::2], vectors[1::2])]
    return vectors[0]


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 8])
def test_orthogonal_gives_the_sum_and_parallel_the_mean(size):
    unit = numpy.eye(size)
    assert combined([unit[rank] * 2.0 ** rank for rank in range(size)], [(size,)]).tolist() == [
        2.0 ** rank for rank in range(size)]
    line = numpy.array([1.0, -2.0, 4.0])
    same = combined([line] * size, [(3,)])
    assert numpy.allclose(same, line, rtol=1e-15)


@pytest.mark.parametrize("size", [2, 3, 4, 7, 8])
@pytest.mark.parametrize("counts", [(1,), (5, 0, 2), (13, 1, 8)])
def test_every_array_is_combined_by_itself(size, counts):
    random = numpy.random.default_rng(size)
    vectors = [random.standard_normal(sum(counts)) for _ in range(size)]
    result, start = combined(vectors, [(count,) for count in counts]), 0
    for count in counts:
        part = slice(start, start + count)
        wanted = tree([vector[part] for vector in vectors])
        assert numpy.allclose(result[part], wanted, rtol=1e-12, atol=1e-14)
        start += count


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 8])
@pytest.mark.parametrize("shapes", [[(24,)], [(5,), (3, 7), (1,)]], ids=str)
def test_bytes_are_those_of_the_closed_form(size, shapes):
    count = sum(int(numpy.prod(shape)) for shape in shapes)

    def rank(comm):
        finish(Adasum().start(comm, shapes).reduce(numpy.ones(count, "f4")))
        return comm.sent_bytes

    assert sum(run_ranks(size, rank)) == pytest.approx(size * Adasum().wire_bytes(shapes, size))
