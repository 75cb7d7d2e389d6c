"""Operations of the network run where a transport has them, and are refused by name elsewhere."""

from pathlib import Path

import numpy
import pytest

from hpccoll.algorithms import schedule
from hpccoll.algorithms.outside import load
from hpccoll.errors import CapabilityError, MessageSizeError, ScheduleError
from hpccoll.ir.collectives import COLLECTIVES
from hpccoll.ir.in_network import ABILITIES, MULTICAST, REDUCTION
from hpccoll.runtime.planning.capabilities import check
from hpccoll.testing.model_check import Network, Run
from hpccoll.testing.world import Problem, run
from hpccoll.transport import NETWORK, MessageSpec, NetworkOperation
from hpccoll.transport.loopback import Loopback
from support.extra_schedules import extra_schedules

EXAMPLE = str(Path(__file__).resolve().parents[4] / "examples" / "in_network.py")
ALLREDUCE, IN_PIECES, BCAST = (load(f"{EXAMPLE}:{name}")
                               for name in ("ALLREDUCE", "IN_PIECES", "BCAST"))


def test_both_rooms_call_them_the_same():
    assert frozenset(ABILITIES) == NETWORK


@pytest.mark.parametrize("how", [
    {}, dict(in_place=True, seed=1), dict(segment=1, seed=2, eager=True),
    dict(repeats=3, seed=3, in_place=True), dict(direct=True, eager=True, seed=4),
    dict(direct=True, in_place=True, segment=2, repeats=2)])
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_results_are_exact(size, how):
    for count in (0, 1, 2 * size - 1, 4 * size + 3):
        for algorithm in (ALLREDUCE, IN_PIECES):
            posed = Problem(COLLECTIVES["allreduce"], size, [count], 0, "sum", "i8")
            assert not run(schedule("allreduce", algorithm, size), posed, **how)
    made = schedule("bcast", BCAST, size, root=size - 1)
    assert not run(made, Problem(made.collective, size, [7], size - 1), **how)


@pytest.mark.parametrize("size", [2, 3, 5])
def test_every_kind_runs(size):
    for made in extra_schedules(size, range(1)):
        payload = made.collective.payload
        sizes = {"vector": [5], "none": [], "pairs": [2] * size**2}.get(
            payload, [rank % 3 for rank in range(size)])
        for in_place in (False, True):
            assert not run(made, Problem(made.collective, size, sizes), in_place=in_place,
                           seed=size), made.title


def test_a_transport_without_them_says_which_step():
    made = schedule("allreduce", IN_PIECES, 3)
    with pytest.raises(CapabilityError) as caught:
        check(made, (MULTICAST,), ())
    error = caught.value
    assert (error.missing, error.rank, error.round) == (MULTICAST, 0, 2)
    assert error.step == "send [0 > 1-2] out[0]"
    assert isinstance(error, ScheduleError) and isinstance(error, NotImplementedError)
    assert "in_pieces size=3" in str(error) and "requires multicast" in str(error)
    with pytest.raises(CapabilityError, match="round 1"):
        check(made, ABILITIES[::-1], {MULTICAST})
    check(made, ABILITIES, {MULTICAST, REDUCTION})
    check(schedule("allreduce", "ring", 3), (), ())


def test_an_execution_on_such_a_transport_is_refused_before_its_messages():
    made = schedule("allreduce", ALLREDUCE, 2)
    with pytest.raises(CapabilityError, match="rank 0, round 1"):
        Run(made, Problem(made.collective, 2, [4]), Network(2))


def test_sizes_that_differ_are_an_error_at_every_end():
    world = Loopback(2)
    pair = NetworkOperation((0, 1), (0, 1), numpy.add)
    batches = []
    for rank, count in ((0, 2), (1, 3)):
        array = numpy.ones(count)
        batches.append(world.endpoint(rank).batch(
            [MessageSpec(True, pair, array), MessageSpec(False, pair, array)], 0, False))
        batches[-1].start()
    for batch in batches:
        with pytest.raises(MessageSizeError, match="16, 24 bytes"):
            batch.test()


def test_an_operation_waits_for_its_last_end_and_reduces_in_no_ranks_order():
    world, seen = Loopback(3), []

    def combine(left, right, into):
        seen.append((left.tolist(), right.tolist()))
        into[...] = left * 10 + right
    network = NetworkOperation((0, 1, 2), (1,), combine)
    into = numpy.zeros(1)
    batches = [world.endpoint(rank).batch(
        [MessageSpec(True, network, numpy.array([rank + 1.]))] +
        [MessageSpec(False, network, into)] * (rank == 1), 0, False) for rank in range(3)]
    for started, batch in enumerate(batches):
        assert not any(each.test() for each in batches[:started])
        batch.start()
    assert all(batch.test() for batch in batches) and into == [321.]
    assert seen == [([3.], [2.]), ([32.], [1.])]
