"""Weights that come and go: what is here when, what is fetched ahead, and from where."""

import numpy
import pytest

from hpccoll.ir.topology import Topology
from hpccoll.training.optimizers import Sgd
from hpccoll.training.shard.quantised import ZeroPlusPlus
from hpccoll.training.shard.weights import Fetching
from hpccoll.training.shard.zero import Sharded
from support.shards import make, one_pass, same
from support.threads import run_ranks

#: Four units of ten elements each.
ARRAYS = [numpy.arange(10, dtype="f4") + 10 * unit for unit in range(4)]


def model(comm, **limits):
    return Sharded(comm, ARRAYS, Sgd(0.0), stage=3,
                   fetching=Fetching(**{"persistent": 0, "prefetch": 0, "reuse": 0, **limits}))


def train(sharded):
    """One step of zero gradients; returns what was live after each fetch."""
    weights, seen = sharded._weights, []
    for unit in (0, 1, 2, 3):
        assert (sharded.fetch(unit)[unit] == ARRAYS[unit]).all()
        seen.append(weights.live_elements)
        sharded.release(unit)
    for unit in (3, 2, 1, 0):
        arrays = sharded.fetch(unit)
        assert (arrays[unit] == ARRAYS[unit]).all()
        seen.append(weights.live_elements)
        sharded.ready(unit, numpy.zeros(10, "f4"))
        sharded.release(unit)
    sharded.step()
    return seen


@pytest.mark.parametrize("limits, second", [
    ({"prefetch": 10}, [20, 20, 20, 10, 20, 20, 20, 10]),
    ({"prefetch": 20}, [30, 30, 20, 20, 30, 30, 20, 10]),
    ({"prefetch": 20, "max_live": 25}, [20, 20, 20, 20, 20, 20, 20, 10]),
    ({"reuse": 1}, [10, 10, 10, 10, 10, 10, 10, 10])], ids=str)
def test_what_comes_next_is_fetched_ahead_from_the_second_step_on(limits, second):
    def work(comm):
        sharded = model(comm, **limits)
        assert train(sharded) == [10] * 8
        for _ in range(2):
            assert train(sharded) == second

    run_ranks(2, work)


def test_what_is_used_soon_again_is_not_released():
    def work(comm):
        sharded = model(comm, reuse=11)
        train(sharded)
        for unit in (0, 1, 2):
            sharded.fetch(unit)
        # Next is 3 twice, then 2: ten other elements lie between, then twenty.
        sharded.fetch(3)
        assert not sharded.release(3) and not sharded.release(2)
        assert sharded.release(1) and sharded.release(0)

    run_ranks(2, work)


def test_another_order_is_right_too_and_expected_next():
    def work(comm):
        sharded = model(comm, prefetch=10)
        train(sharded)
        for _ in range(2):
            for unit in (3, 1, 1, 0, 2):
                with sharded.fetched(unit) as arrays:
                    assert (arrays[unit] == ARRAYS[unit]).all()
            for unit in range(4):
                sharded.ready(unit, numpy.zeros(10, "f4"))
            sharded.step()
        assert sharded._weights._expected == [3, 1, 1, 0, 2]

    run_ranks(2, work)


def test_small_arrays_are_always_here_and_follow_every_step():
    def work(comm):
        sharded = Sharded(comm, [numpy.ones(3, "f4"), numpy.ones(20, "f4")], Sgd(1.0), stage=3,
                          units=[[0, 1]], fetching=Fetching(persistent=4))
        for number in range(3):
            assert sharded._weights.live_elements == 3
            with sharded.fetched(0) as arrays:
                assert all((array == 1 - number).all() for array in arrays.values())
                assert [arrays[0].size, arrays[1].size] == [3, 20]
            for index, count in enumerate((3, 20)):
                sharded.ready(index, numpy.ones(count, "f4"))
            sharded.step()

    run_ranks(3, work)


@pytest.mark.parametrize("layout", ("2x2", "2x3", "3,2", "1,1,1", "4"))
def test_a_node_gathers_from_itself_the_second_time(layout):
    """Same bits; only the forward pass crosses nodes."""
    size = sum(map(int, layout.split(","))) if "," in layout else int(
        numpy.prod(list(map(int, layout.split("x")))))

    def work(comm):
        sharded = model(comm)
        two_level = Sharded(comm, ARRAYS, Sgd(0.0), stage=3, zeropp=ZeroPlusPlus(hierarchical=True),
                            fetching=Fetching(persistent=0, prefetch=10, reuse=0))
        for _ in range(3):
            train(two_level)
        train(sharded)
        before = comm.sent_bytes
        for unit in range(4):
            with two_level.fetched(unit):
                pass
        forward = comm.sent_bytes - before
        for unit in reversed(range(4)):
            two_level.fetch(unit)
        backward = comm.sent_bytes - before - forward
        node = next(group for group in nodes if comm.rank in group)
        held = two_level._weights.nbytes - 4 * two_level._weights.live_elements
        return forward, backward, len(node), held

    groups = Topology.parse(layout)
    nodes = groups.groups() if groups.depth > 1 else [range(size)]
    found = run_ranks(size, work, layout=layout)
    assert sum(forward for forward, *_ in found) == 160 * (size - 1)
    wanted = sum(160 * (len(node) - 1) for node in nodes)
    assert sum(backward for _, backward, *_ in found) == wanted
    for *_, local, held in found:
        assert held == pytest.approx(160 / size + 160 / local, abs=4 * 8)


def test_the_hierarchical_partition_has_the_same_bits():
    def work(comm):
        found = []
        for hierarchical in (False, True):
            sharded = make(comm, 3, Sgd(), zeropp=ZeroPlusPlus(hierarchical=hierarchical))
            for number in (1, 2, 3):
                one_pass(sharded, number)
                sharded.step()
            found.append(sharded.state()["vectors"]["weights"])
            sharded.close()
        assert same(*found)

    run_ranks(4, work, layout="2x2", determinism="size")
