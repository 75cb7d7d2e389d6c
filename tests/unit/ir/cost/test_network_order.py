"""Simulated times where ranks are not numbered group by group."""


import pytest

from hpccoll.algorithms import ALGORITHMS, schedule
from hpccoll.ir.topology import Topology
from hpccoll.simulator import simulate

HIERARCHICAL = [(collective, name) for collective, table in ALGORITHMS.items()
                for name, entry in table.items() if entry.hierarchical]


@pytest.mark.parametrize(("collective", "name"), HIERARCHICAL)
def test_simulated_times_are_those_of_the_plain_layout(collective, name):
    layout = Topology.parse("4x4@0-12/4,1-13/4,2-14/4,3-15/4")
    permuted = simulate(schedule(collective, name, topology=layout), 1e6)
    plain = simulate(schedule(collective, name, topology=layout.plain), 1e6)
    assert permuted.seconds == pytest.approx(plain.seconds, rel=1e-9)
    assert permuted.topology == str(layout)


def test_a_flat_schedule_pays_for_a_bad_order():
    ring = schedule("allreduce", "ring", 16)
    good = simulate(ring, 1e7, topology="4x4").seconds
    assert simulate(ring, 1e7, topology="4x4@0-12/4,1-13/4,2-14/4,3-15/4").seconds > 1.1 * good
