"""Times of collectives: closed forms, what is remembered, lines between sizes, what is compared."""

import pytest
from step_simulator import collective_times
from step_simulator.collective_times import CollectiveTimes

import hpccoll
from hpccoll.errors import ArgumentError
from hpccoll.simulator.machine_model import Level, Machine

#: A second for a message, 1/4 for a byte on its way, 1/8 for one reduced.
PLAIN = Machine("plain", (Level("network", 1.0, 0.25),), 0.125)
WHOLE = 1 << 30


@pytest.fixture
def simulated(monkeypatch):
    """Sizes that were simulated."""
    sizes = []

    def counting(schedule, nbytes, *args, **more):
        sizes.append(nbytes)
        return hpccoll.simulate(schedule, nbytes, *args, **more)

    monkeypatch.setattr(collective_times, "simulate", counting)
    return sizes


@pytest.mark.parametrize("size", [2, 3, 5, 8])
def test_a_ring_takes_what_its_closed_form_says(size):
    times = CollectiveTimes(PLAIN, str(size), "allreduce=ring", segment_bytes=WHOLE)
    part = 240 / size
    expected = (size - 1) * (2 * (1 + part * 0.25) + part * 0.125)
    assert times.taken("allreduce", 240) == (pytest.approx(expected), "ring")


def test_the_fastest_counts(simulated):
    best = CollectiveTimes("hdr", "4x4")
    found = best.taken("allreduce", 1 << 20)
    others = [CollectiveTimes("hdr", "4x4", f"allreduce={name}").taken("allreduce", 1 << 20)
              for name in collective_times.CANDIDATES["allreduce"]]
    assert found == min(others) and len({other.seconds for other in others}) > 1
    before = len(simulated)
    assert best.taken("allreduce", 1 << 20) == found and len(simulated) == before


@pytest.mark.slow(every=10)
@pytest.mark.parametrize("topology", ["2", "3", "5", "7x3", "1x8", "2x(1,3)", "129"])
@pytest.mark.parametrize("collective", collective_times.CANDIDATES)
def test_every_layout_has_a_candidate(collective, topology):
    if "(" in topology:
        topology = "2,3"
    taken = CollectiveTimes("hdr", topology).taken(collective, 1 << 16)
    assert taken.seconds > 0 and taken.algorithm in collective_times.CANDIDATES[collective]


@pytest.mark.parametrize("machine, algorithm, problem", [
    ("hdrr", "", "hdrr"), ("hdr", "allreduce=native", "MPI"),
    ("hdr", "allreduce=rign", "'rign'"), ("hdr", "ring", "'ring'.*unknown")])
def test_what_cannot_be_used(machine, algorithm, problem):
    with pytest.raises(ArgumentError, match=problem):
        CollectiveTimes(machine, "2", algorithm)
