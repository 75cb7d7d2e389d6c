"""ZeRO++: what travels as integers, and what comes out of it, on nodes of every kind."""

import math

import numpy
import pytest

from hpccoll.errors import ArgumentError
from hpccoll.ir.topology import Topology
from hpccoll.training.compress.scheme import finish
from hpccoll.training.optimizers import Sgd
from hpccoll.training.shard.memory_model import gathered_bytes, scattered_bytes
from hpccoll.training.shard.partition import part_sizes
from hpccoll.training.shard.quantised import (
    TwoLevels,
    ZeroPlusPlus,
    decode,
    encode,
    gather,
    message_bytes,
    nodes_of,
)
from hpccoll.training.shard.weights import Fetching
from hpccoll.training.shard.zero import Sharded
from support.shards import make, one_pass, same
from support.threads import run_ranks

LAYOUTS = ("1", "2", "5", "1x2", "2x1", "2x2", "2x4", "4x2", "3,2", "2x2@0,2,1,3", "(2,2),(4)")
BLOCK = 8


def grid(rank, count, top=7):
    """Integers with the largest in every pair, so that blocks of them are exact."""
    values = numpy.random.default_rng((rank, count)).integers(-top, top + 1, count).astype("f4")
    values[::2] = top
    return values


def size_of(layout):
    return Topology.parse(layout).size


@pytest.mark.parametrize("bits", (4, 8))
@pytest.mark.parametrize("count", (0, 1, 7, 8, 9, 31))
def test_a_message_is_read_back(count, bits):
    values = grid(0, count, 7 if bits == 4 else 127)
    message = encode(values, bits, BLOCK)
    assert message.size == message_bytes(count, bits, BLOCK)
    assert (decode(message, count, bits, BLOCK) == values).all()


@pytest.mark.parametrize("bits", (4, 8))
@pytest.mark.parametrize("size", (1, 2, 3, 5, 7, 8))
@pytest.mark.parametrize("count", (0, 1, 8, 101))
def test_all_ranks_read_the_same_weights(count, size, bits):
    weights = numpy.random.default_rng(2).standard_normal(count).astype("f4")
    counts, block = part_sizes(count, size), 16

    def work(comm):
        start = sum(counts[:comm.rank])
        part = weights[start:start + counts[comm.rank]].copy()
        whole = numpy.full(count, numpy.nan, "f4")
        finish(gather(comm, part, whole, counts, bits, block))
        assert part.tobytes() == weights[start:start + counts[comm.rank]].tobytes()
        return whole

    found = run_ranks(size, work)
    assert len({whole.tobytes() for whole in found}) == 1
    step = numpy.abs(weights).max(initial=0) / (2 ** (bits - 1) - 1)
    assert (numpy.abs(found[0] - weights) <= step / 2 * (1 + 1e-6)).all()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("bits", (4, 8))
def test_the_error_of_a_sum_is_bounded(layout, bits):
    """Half a step of every rank's block, and half a step of the sum of every node."""
    size, count = size_of(layout), 120
    gradients = numpy.random.default_rng(5).standard_normal((size, count)).astype("f4")
    counts = part_sizes(count, size)

    def work(comm):
        vector = gradients[comm.rank].copy()
        finish(TwoLevels(comm, bits, BLOCK).reduce(vector, counts))
        return vector[:counts[comm.rank]]

    found = numpy.concatenate(run_ranks(size, work, layout=layout))
    top = 2 ** (bits - 1) - 1
    largest = numpy.abs(gradients).max(axis=1)
    bound = largest.sum() / top / 2
    bound += (largest.sum() + bound) / top / 2
    assert numpy.abs(found - gradients.sum(axis=0, dtype="f8")).max() <= bound


@pytest.mark.parametrize("layout", ("1", "4", "2x2", "4x2", "2x4", "1x2", "2x1"))
@pytest.mark.parametrize("bits", (4, 8))
def test_bytes_are_those_of_the_closed_forms(layout, bits):
    topology = Topology.parse(layout)
    size, count, block = topology.size, 64 * 64, 64
    inside = len(nodes_of(topology)[0])

    def work(comm):
        levels, counts = TwoLevels(comm, bits, block), part_sizes(count, size)
        start = comm.sent_bytes
        finish(levels.reduce(numpy.ones(count, "f4"), counts))
        middle = comm.sent_bytes
        finish(gather(comm, numpy.ones(counts[comm.rank], "f4"), numpy.empty(count, "f4"), counts,
                      bits, block))
        return middle - start, comm.sent_bytes - middle

    found = run_ranks(size, work, layout=layout)
    assert sum(scattered for scattered, _ in found) == size * scattered_bytes(
        count, inside, size // inside, bits, block)
    assert sum(gathered for _, gathered in found) == size * gathered_bytes(count, size, bits, block)


@pytest.mark.parametrize("layout", ("2", "2x2", "3,2"))
def test_training_with_all_of_it(layout):
    """A mean of values on the grid is exact, so weights stay those of plain training."""
    shapes, units = [(16,), (3, 8), (5,)], [[0, 1], [2]]

    def work(comm):
        everything = ZeroPlusPlus(weights=8, gradients=4, hierarchical=True, block=BLOCK)
        sharded = Sharded(comm, [numpy.zeros(shape, "f4") for shape in shapes], Sgd(1.0), stage=3,
                          units=units, zeropp=everything, fetching=Fetching(persistent=0))
        for _ in range(3):
            for unit in range(2):
                with sharded.fetched(unit):
                    pass
            for unit in (1, 0):
                with sharded.fetched(unit):
                    for index in units[unit]:
                        sharded.ready(index, grid(index, math.prod(shapes[index])
                                                  ).reshape(shapes[index]))
            assert sharded.step().applied
        for index, array in enumerate(sharded.state()["vectors"]["weights"]):
            wanted = -3 * grid(index, array.size).reshape(array.shape)
            numpy.testing.assert_allclose(array, wanted, rtol=1e-6)
        with sharded.fetched(0) as arrays:
            numpy.testing.assert_allclose(arrays[0], -3 * grid(0, 16), rtol=0, atol=21 / 254)
        sharded.close()

    run_ranks(size_of(layout), work, layout=layout)


def test_rounded_weights_do_not_flow_back():
    """What is kept is exact: with gradients of zero, weights never change."""
    def work(comm):
        sharded = make(comm, 3, Sgd(0.0), zeropp=ZeroPlusPlus(weights=4))
        before = sharded.state()["vectors"]["weights"]
        for number in (1, 2):
            one_pass(sharded, number)
            sharded.step()
        assert same(sharded.state()["vectors"]["weights"], before)

    run_ranks(3, work)


def test_what_is_not_finite_is_seen_behind_integers():
    def work(comm):
        sharded = make(comm, 3, Sgd(), zeropp=ZeroPlusPlus(gradients=4), check=True)
        for unit in range(3):
            sharded.fetch(unit)
        for index, spec in enumerate(sharded._specs):
            array = numpy.ones(spec.shape, "f4")
            if comm.rank == 1 and index == 4:
                array[2, 1] = numpy.nan
            sharded.ready(index, array)
        with pytest.raises(FloatingPointError):
            sharded.step()

    run_ranks(4, work, layout="2x2")


@pytest.mark.parametrize("wrong", [{"weights": 3}, {"gradients": 16},
                                   {"weights": 8, "block": 3}], ids=str)
def test_integers_that_do_not_exist(wrong):
    with pytest.raises(ArgumentError, match="bits|block"):
        ZeroPlusPlus(**wrong)
