"""Operations of the network in the simulator: closed forms, sharing, and machines without them."""

from pathlib import Path

import pytest

from hpccoll.algorithms import schedule
from hpccoll.algorithms.outside import load
from hpccoll.errors import CapabilityError, ScheduleError
from hpccoll.ir.collectives import IN, OUT
from hpccoll.ir.in_network import in_network, multicast
from hpccoll.ir.schedule import Program, at, copy, recv, send
from hpccoll.simulator import simulate
from hpccoll.simulator.conditions import SimulatedConditions
from hpccoll.simulator.machine_model import Level, Machine, SwitchUnit

EXAMPLE = str(Path(__file__).resolve().parents[3] / "examples" / "in_network.py")
ALLREDUCE, IN_PIECES, BCAST = (load(f"{EXAMPLE}:{name}")
                               for name in ("ALLREDUCE", "IN_PIECES", "BCAST"))
A, B, N = 3e-6, 1e-9, 1e6
#: Switches twice as slow as links, in latency, and as fast.
FLAT = Machine("flat", (Level("network", 1e-6, B, in_network=SwitchUnit(A, B)),))


def nodes(unit, link=float("inf"), **more):
    return Machine("nodes", (Level("network", 1e-6, B, link, in_network=unit, **more),
                             Level("node", 1e-7, B / 10)))


@pytest.mark.parametrize("size", [2, 3, 8, 100])
def test_one_operation_takes_its_latency_and_the_bytes_once(size):
    made = schedule("allreduce", ALLREDUCE, size)
    found = simulate(made, N, FLAT)
    assert found.seconds == pytest.approx(A + N * B)
    assert (found.messages, found.level_bytes["network"]) == (size, size * N)
    (cost,), = (found.critical,)
    assert (cost.latency, cost.transfer, cost.sharing) == pytest.approx((A, N * B, 0))
    assert found.busiest[0].utilisation == pytest.approx(N * B / found.seconds)
    assert found.busiest[0].alike == 1 or size == found.busiest[0].alike
    # The rank with the most to do of a ring sends 2 (p - 1) / p of it.
    ring = simulate(schedule("allreduce", "ring", size), N, FLAT).seconds
    assert ring == pytest.approx(2 * (size - 1) * (1e-6 + N / size * B))
    root = size - 1
    bcast = simulate(schedule("bcast", BCAST, size, root=root), N, FLAT)
    assert bcast.seconds == pytest.approx(A + N * B) and bcast.messages == 1


@pytest.mark.parametrize("size", [2, 3, 8])
def test_pieces_share_the_ports_of_those_that_give_and_get(size):
    # All give the whole vector, then all get the parts of the others.
    found = simulate(schedule("allreduce", IN_PIECES, size), N, FLAT)
    assert found.seconds == pytest.approx(2 * A + N * B * (1 + (size - 1) / size))
    assert found.messages == size * size + size
    segmented = simulate(schedule("allreduce", IN_PIECES, size), 64 * N, FLAT,
                         segment_bytes=64 * N / size / 64)
    # While one segment is given, another is got: a rank gives the whole, and its part once more.
    assert segmented.seconds == pytest.approx(64 * N * B * (1 + 1 / size), rel=0.05)


def test_the_switch_may_be_slower_than_the_port_and_the_link_slower_than_both():
    made = schedule("allreduce", ALLREDUCE, 8)
    slow = nodes(SwitchUnit(A, 4 * B))
    assert simulate(made, N, slow, "4x2").seconds == pytest.approx(A + 4 * N * B)
    # Both ranks of a node have their own stream over its link.
    tight = nodes(SwitchUnit(A, B), link=1 / (3 * B))
    assert simulate(made, N, tight, "4x2").seconds == pytest.approx(A + 6 * N * B)
    half = nodes(SwitchUnit(A, B), link=1 / (3 * B), duplex="half")
    assert simulate(made, N, half, "4x2").seconds == pytest.approx(A + 12 * N * B)


def test_an_operation_belongs_to_the_level_at_which_its_ranks_part():
    def leaders(rank, size):
        """Nodes add up, then the first of them."""
        node, first = rank // 2 * 2, range(0, size, 2)
        near, far = in_network(range(node, node + 2), [node]), in_network(first, first)
        back = multicast(node, range(node, node + 2))
        rounds = [(send(near, at(OUT, 0)),), (), (recv(back, at(OUT, 0)),)]
        if rank == node:
            rounds = [(send(near, at(OUT, 0)), recv(near, at(OUT, 0))),
                      (send(far, at(OUT, 0)), recv(far, at(OUT, 0))), (send(back, at(OUT, 0)),)]
        return Program(((copy(at(OUT, 0), at(IN, 0)),), *rounds))
    made = schedule("allreduce", leaders, 6)
    machine = Machine("both", (Level("network", 1e-6, B, in_network=SwitchUnit(A, B)),
                               Level("node", 1e-7, B / 10, in_network=SwitchUnit(A / 6, B / 5))))
    found = simulate(made, N, machine, "3x2")
    assert found.seconds == pytest.approx(A + N * B + 2 * (A / 6 + N * B / 5))
    assert found.level_bytes == {"network": 3 * N, "node": 9 * N}
    with pytest.raises(CapabilityError, match="'node'"):
        simulate(made, N, nodes(SwitchUnit(A, B)), "3x2")


def test_late_ranks_and_barriers():
    def barrier(rank, size):
        everybody = in_network(range(size), range(size))
        return Program(((send(everybody), recv(everybody)),))
    made = schedule("barrier", barrier, 5)
    assert simulate(made, 0, FLAT).seconds == pytest.approx(A)
    met = SimulatedConditions(late="one:3:50us")
    found = simulate(made, 0, FLAT, conditions=met)
    assert (found.seconds, found.late_seconds) == pytest.approx((50e-6 + A, 50e-6))
    assert {hop.rank for hop in found.hops} <= set(range(5))
    assert simulate(schedule("allreduce", ALLREDUCE, 5), N, FLAT, conditions=met).seconds == (
        pytest.approx(50e-6 + A + N * B))


@pytest.mark.parametrize(("machine", "missing"), [
    ("hdr", "multicast.*'network'.*hdr"),
    (nodes(SwitchUnit(A, B, reduces=False)), "reduction.*'network'")])
def test_a_machine_without_them_is_refused(machine, missing):
    with pytest.raises(CapabilityError, match=missing):
        simulate(schedule("allreduce", ALLREDUCE, 4), N, machine, "2x2")
    if machine != "hdr":
        assert simulate(schedule("bcast", BCAST, 4), N, machine, "2x2").seconds


def test_on_a_shape_they_are_refused():
    with pytest.raises(CapabilityError, match="shape"):
        simulate(schedule("bcast", BCAST, 4), N, FLAT, shape="torus:4")


def test_ends_that_do_not_meet_are_named():
    both = in_network(range(2), range(2))

    def build(rank, size):
        return Program(((send(both, at(OUT, 0, sizes[rank])), recv(both, at(OUT, 0))),)[:turns])
    turns, sizes = 1, (1, 2)
    with pytest.raises(ScheduleError, match="peer has"):
        simulate(schedule("allreduce", build, 2, nblocks=2), N, FLAT)
    with pytest.raises(ScheduleError, match="deadlocks in round 0"):
        simulate(schedule("allreduce", lambda rank, size: Program(
            ((send(both, at(OUT, 0)),),)), 2), N, FLAT)


def test_many_ranks_take_the_memory_of_their_ends():
    found = simulate(schedule("allreduce", ALLREDUCE, 2000), 8, "dgx-h100", "250x8")
    assert found.seconds == pytest.approx(5e-6, rel=0.01)
    assert "each timed on its own" in found.folding
