"""What to expect of calls that were not measured."""

import pytest
from unit.tune.choosing import SIZE, describe

from hpccoll.ir.topology import Topology
from hpccoll.tune.cost_model import MOST_RANKS, Model, calibrate, closed_form, fit, terms
from hpccoll.tune.loading import JobTimes
from hpccoll.tune.table import Candidate


def test_constants_are_fitted_to_measured_times():
    names = ("ring", "recursive_doubling", "rabenseifner", "linear")
    truth = Model((1e-6, 2e-6, 2e-9, 1e-9))
    curve = tuple((nbytes, {Candidate(name): truth.seconds(
        terms("allreduce", Candidate(name), SIZE, nbytes)) for name in names})
        for nbytes in (8, 1 << 10, 1 << 20))
    times = JobTimes({("allreduce", True): curve}, "t.json")
    for collective in ("allreduce", "bcast"):  # the second was not measured
        found = calibrate(times.curves, collective, SIZE)
        assert found.costs == pytest.approx(truth.costs, rel=1e-4)
        assert found.miss == pytest.approx(1, rel=1e-4)
    text = describe("allreduce", 1 << 20, SIZE, None, False, None, times, detail=True)
    row = next(line.split() for line in text.splitlines() if line.startswith("  ring "))
    assert row[4:8] == [row[4], "ms"] * 2 and float(row[4]) == pytest.approx(3.95, rel=1e-2)
    assert ("predicted times: 1 us a message, 2 us a round, 2 ns a byte, 1 ns a reduced byte; up "
            "to 1.0") in text


def test_constants_are_not_negative():
    samples = [((1, 1000), 9.0), ((2, 1000), 5.0), ((3, 1000), 4.0), ((4, 2000), 7.0)]
    for mirrored in (samples, [((b, a), t) for (a, b), t in samples]):
        found = fit(mirrored)
        assert min(found.costs) >= 0 and max(found.costs) > 0 and found.miss > 1
        assert found.miss == pytest.approx(max(t / found.seconds(x) for x, t in mirrored), rel=1e-3)
    assert fit(samples[:3]) is None  # too few
    assert fit([((2, 4), 1.0)] * 9) is None  # all alike
    assert fit([(known, 1e-300) for known, _ in samples]) is None  # absurd


@pytest.mark.parametrize("collective, name, layout, expected", [
    ("allreduce", "ring", "4", (6, 6, 600, 300)),
    ("allreduce", "allpairs", "4", (6, 2, 600, 300)),
    ("allreduce", "recursive_doubling", "4", (2, 2, 800, 800)),
    ("gather", "linear", "4", (3, 1, 300, 0)),  # what the root receives
    ("barrier", "linear", "4", (3, 2, 0, 0)),
    ("bcast", "binary", "4", None), ("bcast", "native", "4", None),
    ("allreduce", "ring", "2x2", (6, 6, 600, 300, 6, 600)),
    ("allreduce", "ring", "2x2@0,2,1,3", (6, 6, 600, 300, 6, 1200)),
    ("allreduce", "recursive_doubling", "2x4", (3, 3, 2400, 2400, 1, 3200)),
    ("allreduce", "leader", "2x4", (3, 5, 2400, 2400, 1, 800)),
    ("allreduce", "rails", "2x4", (6, 6, 1400, 700, 2, 800)),
    ("allreduce", "rails", "2x2x2", (6, 6, 1400, 700, 2, 800, 4, 1200)),
    ("allreduce", "ring", "2x40", (158, 158, 15800, 7900, 158, 15800))])
def test_terms_count_what_a_schedule_does(collective, name, layout, expected):
    """Messages, rounds, bytes and reduced bytes; rounds and bytes out of groups."""
    topology = Topology.parse(layout)
    found = terms(collective, Candidate(name), topology.size, 100 * topology.size, topology)
    assert found == (expected and pytest.approx(expected))


def test_terms_of_ranks_that_are_not_looked_at():
    """Those between the first and the last of a group send alike, and all of them count."""
    topology = Topology.parse("2x32")
    found = terms("allreduce", Candidate("recursive_doubling"), 64, 100, topology)
    assert found == pytest.approx((6, 6, 600, 600, 1, 3200))
    many = terms("allreduce", Candidate("ring"), MOST_RANKS + 1, 8)
    assert many is None and closed_form("allreduce", Candidate("ring"), MOST_RANKS + 1, 8)
