"""The event loop: processors, headers, messages that do not meet."""

from dataclasses import replace

import pytest

from hpccoll.algorithms import schedule
from hpccoll.errors import ScheduleError
from hpccoll.ir.collectives import COLLECTIVES, IN, OUT
from hpccoll.ir.schedule import Program, Schedule, at, copy, recv, send
from hpccoll.simulator import simulate
from hpccoll.simulator.machine_model import Level, Machine

A, B, G, N = 1.3e-6, 1 / 7e9, 1 / 11e9, 1e6
FLAT = Machine("flat", (Level("network", A, B),), G)


def test_overhead_keeps_the_processor():
    machine = Machine("m", (Level("network", A, B, overhead=1e-6),))
    found = simulate(schedule("gather", "linear", 5), 0 + 5e3, machine)
    # The root posts four receives, one after the other; the last message starts after them.
    assert found.seconds == pytest.approx(4e-6 + A + 1e3 * B, rel=0.2)
    assert sum(cost.posting for cost in found.critical) > 0


def test_headers_are_on_the_way_but_no_bytes_of_a_message():
    machine = Machine("m", (Level("network", A, B, link=1 / B, header=500), Level("node", A, B)))
    pairs = schedule("allgather", "rails", topology="2x4")  # first across, all four ranks of a node
    across, inside = 4 * (1e3 + 500) * B, 2 * A + 6 * 1e3 * B
    found = simulate(pairs, 8e3, machine)
    assert found.seconds == pytest.approx(A + across + inside)
    assert found.level_bytes == simulate(pairs, 8e3, replace(machine, levels=tuple(
        replace(level, header=0) for level in machine.levels))).level_bytes
    # A message of nothing else takes its time, too.
    barrier = simulate(schedule("barrier", "dissemination", 2), 0, machine, "2x1")
    assert barrier.seconds == pytest.approx(A + 500 * B)


def test_nothing_to_do():
    assert simulate(schedule("allreduce", "ring", 1), 1e6, FLAT).seconds == 0
    assert simulate(schedule("allreduce", "ring", 4), 0, FLAT).seconds == 0
    assert "time           0 s" in simulate(schedule("barrier", "tree", 1), 0, FLAT).as_text()
    assert "GB/s" not in simulate(schedule("barrier", "tree", 4), 1e6, FLAT).as_text()


def test_a_deadlock_is_named():
    def stuck(rank, size):
        return Program(((recv((rank + 1) % size, at(OUT, 0)),),))

    with pytest.raises(ScheduleError, match="rank 0.*round 0.*1 message"):
        simulate(schedule("allgather", stuck, 3), 8, FLAT)


def test_messages_of_unequal_size_are_named():
    def wrong(rank, size):
        return Program(((copy(at(OUT, 0), at(IN, 0)),),
                        (send(1, at(OUT, 0)),) if rank == 0 else (recv(0, at(OUT, 0, 2)),)))

    with pytest.raises(ScheduleError, match="rank 1.*8 bytes.*round 0.*4"):
        simulate(schedule("allgather", wrong, 2), 8, FLAT)


def test_rounds_that_cut_messages_differently():
    """One round sends two messages to a peer that receives them in two rounds."""
    def cut(rank, size):
        if rank == 0:
            return Program(((send(1, at(OUT, 0)), send(1, at(OUT, 1))),))
        return Program(((recv(0, at(OUT, 0)),), (recv(0, at(OUT, 1)),)))

    made = Schedule(COLLECTIVES["bcast"], "cut", 2, lambda rank: cut(rank, 2), nblocks=2)
    assert simulate(made, 2e6, FLAT).seconds == pytest.approx(2 * A + 2e6 * B)
