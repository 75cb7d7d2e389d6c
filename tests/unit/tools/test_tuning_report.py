"""What a tuning says to people: lines of sizes, a verdict, and what a busy machine spoilt."""

import pytest

from hpccoll.measure.recording import Doubt
from hpccoll.tools import tuning_report
from hpccoll.tune.loading import JobTimes
from hpccoll.tune.table import Candidate, Disagreement, Fingerprint

MACHINE = Fingerprint("MPICH 5.0.2", "AMD EPYC x 2", 4, "4", False)
NATIVE, RING, LONG = (Candidate("native"), Candidate("ring"),
                      Candidate("recursive_multiplying", (("k", 4),)))
CURVES = {("allreduce", True): tuple(
    (8 << n, {NATIVE: 4e-6, RING: 2e-6 if n < 3 else 5e-6, LONG: 9e-6}) for n in range(6)),
    ("allreduce", False): ((8, {NATIVE: 1e-6, LONG: 5e-7}),),
    ("barrier", True): ((0, {NATIVE: 1e-6}),)}


def shown(width=100, full=False, doubtful=(), curves=CURVES):
    return tuning_report.lines(MACHINE, tuning_report.fastest_candidates(curves, JobTimes(curves)),
                               doubtful,
                               width, full)


@pytest.mark.parametrize("width", [80, 100, 140])
def test_it_fits(width):
    lines = shown(width, doubtful=[Doubt("bcast", 1 << 20, 93.0)])
    assert max(map(len, lines)) <= width
    assert any("recursive_multiplying" in line for line in lines)


def test_sizes_with_one_winner_share_a_line():
    rows = [line for line in shown() if not line.startswith("#")]
    assert len(rows) == 1 + 4
    assert rows[1].split() == ["*", "allreduce", "8", "B", "-", "32", "B", "ring", "2", "us", "4",
                               "us", "2.00"]
    assert "allreduce, ordered" in "\n".join(rows) and "barrier" in rows[4]
    assert len([line for line in shown(full=True) if not line.startswith("#")]) == 1 + 8


def test_the_verdict_and_what_was_spoilt():
    text = "\n".join(shown(200, doubtful=[Doubt("bcast", 1 << 20, 93.4)] * 8))
    assert "fastest at 4 of 8 points, 2.0x as fast as MPICH there; MPICH at the others" in text
    assert "not saved: 8 points" in text and "bcast 1 MiB (93x as fast)" in text
    assert "and 2 more" in text
    assert "repeat it when the machine is idle" in text
    text = "\n".join(shown(200, doubtful=[Doubt("alltoall", 64, late=4.05), Doubt(
        "scan", 8, late=9.6, label="ring")]))
    assert "1 point disturbed" in text and "alltoall 64 B (4x as long as a larger size)" in text
    assert "1 time of one candidate, scan 8 B ring (10x as long as a larger size)" in text
    only = {("barrier", True): CURVES["barrier", True]}
    assert "MPICH is fastest at all 1 points" in "\n".join(shown(curves=only))
    ours = {("allreduce", False): CURVES["allreduce", False]}
    assert "fastest at all 1 points, 2.0x" in "\n".join(shown(curves=ours))
    assert "not saved" not in "\n".join(shown())


def test_times_that_stayed_are_named():
    stayed = [Disagreement("allreduce", 8 << n, RING, 9.63e-6, 3.28e-3) for n in range(8)]
    text = " ".join(tuning_report.lines(
        MACHINE, tuning_report.fastest_candidates(CURVES,
                                                  JobTimes(CURVES)), (), 1000, stayed=stayed))
    assert "not changed: 8 times of the table that differ from the new ones by more" in text
    assert "allreduce 8 B ring 9.63 us (now 3.28 ms)" in text and "and 2 more; --replace" in text
