"""Sharded training on real ranks: the bits of plain training, and files for other ranks."""

import numpy
import pytest
from mpi4py import MPI

import hpccoll
from hpccoll.errors import ShardError
from hpccoll.training.optimizers import Sgd
from hpccoll.training.shard.quantised import ZeroPlusPlus
from hpccoll.training.shard.weights import Fetching
from hpccoll.training.shard.zero import Sharded
from support.shards import UNITS, adam, make, one_pass, plain, same, whole

pytestmark = [pytest.mark.mpi, pytest.mark.skipif(
    MPI.Query_thread() < MPI.THREAD_MULTIPLE, reason="needs THREAD_MULTIPLE")]
WORLD = MPI.COMM_WORLD
STAGES = (0, 1, 2, 3)


@pytest.fixture
def steady():
    """A communicator that promises the order of sums."""
    comm = hpccoll.Comm(MPI.Intracomm(WORLD).Dup(), determinism="size")
    yield comm
    comm.Free()


def train(sharded, steps=3):
    for number in range(1, steps + 1):
        one_pass(sharded, number)
        sharded.step()
    return sharded


@pytest.mark.parametrize("counts", [None, (100_003, 17, 65_536)])
@pytest.mark.parametrize("stage", STAGES)
def test_same_bits_as_plain_training(steady, stage, counts):
    """Long messages run other algorithms, in the same order."""
    if counts is None:
        sharded, wanted = train(make(steady, stage, adam())), plain(steady, adam())
    else:
        random = numpy.random.default_rng(0)
        arrays = [random.standard_normal(count).astype("f4") for count in counts]
        options = {"fetching": Fetching(persistent=20)} if stage == 3 else {}
        sharded = train(Sharded(steady, arrays, adam(), stage=stage, units=[[0, 1], [2]],
                                **options), 2)
        wanted = plain(steady, adam(), 2, [array.copy() for array in arrays])
    assert same(whole(sharded), wanted)
    sharded.close()


@pytest.mark.parametrize("stage", STAGES)
def test_sums_of_exact_numbers_without_a_promise(world, stage):
    sharded = make(world, stage, Sgd(1.0), op="sum")
    before = whole(sharded)
    for unit in range(len(UNITS)):
        sharded.fetch(unit)
    for index in reversed(range(len(before))):
        sharded.ready(index, numpy.full(before[index].shape, world.rank + index, "f4"))
    sharded.step()
    total = sum(range(world.size))
    for index, (array, old) in enumerate(zip(whole(sharded), before)):
        assert (array == old - numpy.float32(total + index * world.size)).all()
    sharded.close()


@pytest.mark.parametrize("stage", STAGES)
def test_weights_of_two_bytes(world, stage):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    arrays = [numpy.ones(count, ml_dtypes.bfloat16) for count in (40, 1)]
    sharded = Sharded(world, arrays, Sgd(0.25), stage=stage)
    for index in range(2):
        sharded.fetch(index)
        sharded.ready(index, numpy.full(arrays[index].shape, 1 - world.rank % 2, arrays[0].dtype))
    sharded.step()
    mean = (world.size + 1) // 2 / world.size
    for array in whole(sharded):
        numpy.testing.assert_allclose(array, 1 - 0.25 * mean, rtol=2 ** -8)
    sharded.close()


@pytest.mark.parametrize("nodes", ("flat", "single"))
def test_zero_plus_plus(nodes):
    layout = ",".join("1" * WORLD.size) if nodes == "single" else str(WORLD.size)
    comm = hpccoll.Comm(MPI.Intracomm(WORLD).Dup(), layout)
    everything = ZeroPlusPlus(weights=8, gradients=4, hierarchical=True, block=16)
    sharded = Sharded(comm, [numpy.zeros(64, "f4"), numpy.zeros(9, "f4")], Sgd(1.0), stage=3,
                      zeropp=everything, fetching=Fetching(persistent=0))
    for _ in range(2):
        for unit in (0, 1, 1, 0):
            with sharded.fetched(unit):
                pass
        for index, count in enumerate((64, 9)):
            sharded.ready(index, numpy.full(count, 7 * (-1) ** index, "f4"))
        sharded.step()
    for index, array in enumerate(whole(sharded)):
        numpy.testing.assert_allclose(array, -14 * (-1) ** index, rtol=1e-6)
    sharded.close()
    comm.Free()


def test_files_are_read_by_half_of_the_ranks(world, tmp_path):
    folder = world.bcast(tmp_path)
    sharded = train(make(world, 2, adam()))
    sharded.save(folder)
    wanted = whole(sharded)
    sharded.close()
    half = world.Split(world.rank % 2, world.rank)
    again = make(half, 3, adam())
    again.restore(folder)
    assert same(whole(again), wanted) and again.number == 3
    again.close()
    half.Free()
    world.Barrier()


@pytest.mark.parametrize("stage", STAGES)
def test_an_error_on_one_rank_is_raised_on_all(world, stage):
    sharded, last = train(make(world, stage, adam()), 1), world.size - 1
    before = whole(sharded)
    with pytest.raises(ShardError, match=f"^rank {last}: KeyError: 'lost'"):
        with sharded.guarded():
            for unit in (0, 1, 2):
                with sharded.fetched(unit):
                    if (world.rank, unit) == (last, 1):
                        raise KeyError("lost")
            one_pass_back(sharded)
        sharded.step()
    assert same(whole(sharded), before)
    assert train(sharded, 1).number == 2
    sharded.close()


def one_pass_back(sharded):
    for unit in (2, 1, 0):
        with sharded.fetched(unit) as arrays:
            for index, array in arrays.items():
                sharded.ready(index, numpy.ones_like(array))
