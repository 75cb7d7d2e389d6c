"""The exchange on real ranks: bits, bytes and types."""

import random
from dataclasses import replace

import numpy
import pytest
from mpi4py import MPI

import hpccoll
from hpccoll.errors import ArgumentError
from hpccoll.training.exchange import Exchange, ExchangeOptions

NONBLOCKING = ExchangeOptions(transfer="nonblocking")

SHAPES = (1000,), (30, 5), (), (0,), (11, 13), (70000,), (1,)


def arrays_of(rank, step=0, dtype="f4"):
    """Exact sums, different on every rank."""
    return [numpy.full(shape, (index + 1) * 2 ** rank + step, dtype)
            for index, shape in enumerate(SHAPES)]


def averages(size, step=0):
    return [sum((index + 1) * 2 ** rank + step for rank in range(size)) / size
            for index in range(len(SHAPES))]


def bring(exchange, arrays, seed):
    indices = list(range(len(arrays)))
    random.Random(seed).shuffle(indices)
    for index in indices:
        exchange.ready(index, arrays[index])
    return exchange.wait()


@pytest.mark.mpi
@pytest.mark.parametrize("options", [
    {}, {"options": NONBLOCKING}, {"bucket_bytes": 4000, "first_bucket_bytes": 100},
    {"bucket_bytes": 0, "first_bucket_bytes": 0,
     "options": replace(NONBLOCKING, lanes=3)},
    {"order": "negotiated"}, {"order": "negotiated", "options": NONBLOCKING},
    {"order": "priority", "options": ExchangeOptions(partition_bytes=20000, credit_bytes=50000)},
    {"progress": "calls"}, {"options": ExchangeOptions(overlap=False)}, {"algorithm": "native"}],
    ids=str)
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_averages(world, options, dtype):
    rank, size = world.Get_rank(), world.Get_size()
    with Exchange(world, arrays_of(0, dtype=dtype), timeout_seconds=60, **options) as exchange:
        for step in range(3):
            arrays = arrays_of(rank, step, dtype)
            results = (exchange.reduce(arrays) if step == 2 else
                       bring(exchange, arrays, 10 * rank + step))
            for array, result, wanted in zip(arrays, results, averages(size, step)):
                assert result is array
                assert (result == numpy.dtype(dtype).type(wanted)).all()


@pytest.mark.mpi
@pytest.mark.parametrize("transfer", ["blocking", "nonblocking"])
def test_sixteen_bits(world, transfer):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    rank, size = world.Get_rank(), world.Get_size()
    for dtype in (numpy.float16, ml_dtypes.bfloat16):
        arrays = [numpy.full(count, 2 ** rank, dtype) for count in (5, 3000)]
        with Exchange(world, arrays, op="sum",
                      options=ExchangeOptions(transfer=transfer)) as exchange:
            bring(exchange, arrays, rank)
        assert all((array == 2 ** size - 1).all() for array in arrays)


@pytest.mark.mpi
def test_the_bits_are_those_of_one_allreduce(world):
    assert world.layout  # else the MPI library runs the first call
    numbers = numpy.random.default_rng(world.Get_rank())
    arrays = [numbers.standard_normal(count).astype("f4") for count in (1000, 7, 50000, 333)]
    wanted = numpy.concatenate(arrays[::-1])
    world.Allreduce(MPI.IN_PLACE, wanted)
    everything = {"bucket_bytes": 1 << 30, "first_bucket_bytes": 1 << 30,
                  "options": ExchangeOptions(transfer="blocking")}
    with Exchange(world, arrays, op="sum", **everything) as exchange:
        bring(exchange, arrays, world.Get_rank())
    assert numpy.concatenate(arrays[::-1]).tobytes() == wanted.tobytes()


@pytest.mark.mpi
@pytest.mark.parametrize("transfer", ["blocking", "nonblocking"])
def test_buckets_do_not_matter_where_sizes_must_not(world, transfer):
    comm = hpccoll.Comm(world, determinism="size")
    seen = set()
    for bytes_ in (0, 1000, 1 << 30):
        numbers = numpy.random.default_rng(world.Get_rank())
        arrays = [numbers.standard_normal(count) for count in (1000, 7, 5000, 333)]
        with Exchange(comm, arrays, op="sum", bucket_bytes=bytes_, first_bucket_bytes=bytes_,
                      options=ExchangeOptions(transfer=transfer)) as exchange:
            bring(exchange, arrays, world.Get_rank())
        seen.add(numpy.concatenate(arrays).tobytes())
    assert len(seen) == 1


@pytest.mark.mpi
def test_results_are_the_same_on_all_ranks(world):
    numbers = numpy.random.default_rng(world.Get_rank())
    for op in ("average", "adasum"):
        array = numbers.standard_normal(1001).astype("f4")
        with Exchange(world, [array], op=op) as exchange:
            exchange.reduce([array])
        assert len({text for text in world.allgather(array.tobytes())}) == 1


@pytest.mark.mpi
def test_on_some_of_the_ranks(world):
    part = world.Split(world.Get_rank() % 2)
    array = numpy.full(100, 2.0 ** world.Get_rank())
    with Exchange(part, [array], op="sum") as exchange:
        exchange.reduce([array])
    assert (array == sum(2.0 ** rank for rank in range(world.Get_rank() % 2, world.Get_size(), 2))
            ).all()
    part.Free()


@pytest.mark.mpi
def test_autotuning_ends_with_the_same_knobs_everywhere(world, tmp_path):
    path = world.bcast(str(tmp_path / "log.jsonl"))
    array = numpy.full(1000, 1.0)
    for _ in range(2):
        with Exchange(world, [array], autotune=path) as exchange:
            for _ in range(250):
                assert (exchange.reduce([array])[0] == 1).all()
            assert len(set(world.allgather(exchange.settings.knobs))) == 1
            knobs = exchange.settings.knobs
    assert knobs == exchange.settings.knobs


@pytest.mark.mpi
def test_bfloat16_tensors_of_torch(world):
    torch, _ = pytest.importorskip("torch"), pytest.importorskip("ml_dtypes")
    gradient = torch.full((4, 3), world.rank + 1.0, dtype=torch.bfloat16)
    with Exchange(world, like=[gradient]) as exchange:
        for _ in range(2):
            gradient.fill_(world.rank + 1.0)
            exchange.ready(0, gradient)
            exchange.wait()
            assert (gradient == (world.size + 1) / 2).all()
    small = gradient.to(torch.float8_e5m2)
    with pytest.raises(ArgumentError, match="array '0' has elements of float8_e5m2"):
        Exchange(world, like=[small])
