"""Ranks that are late, but not as late as the deadline, are no failure: no false alarms.

The whole of it takes minutes: ``TESTS_LATE_CALLS=100000 mpiexec -n 2 python -m mpi4py -m pytest
--with-mpi -s tests/mpi/test_late.py``. To see it fail, let delays be longer than the deadline.
"""

import os
import random
import time

import numpy
import pytest
from mpi4py import MPI

import hpccoll

pytestmark = [pytest.mark.mpi(min_size=2), pytest.mark.timeout(900)]
CALLS = int(os.environ.get("TESTS_LATE_CALLS", "1500"))
#: Seconds until a wait fails; the longest delay; calls of which one waits so long, or a moment.
DEADLINE, LONGEST, SELDOM, OFTEN, MOMENT = 2.0, 1.4, 2000, 20, 2e-3
OURS = {"allreduce": "recursive_doubling", "bcast": "binomial", "barrier": "dissemination",
        "iallreduce": "recursive_doubling"}


def delay(chance):
    """Seconds that a call comes late."""
    if not chance.randrange(SELDOM):
        return chance.uniform(0.5, 1) * LONGEST
    return chance.uniform(0, MOMENT) if not chance.randrange(OFTEN) else 0.0


def test_a_late_rank_at_sizes_that_were_not_seen_before():
    """Messages of the others, of more bytes than those of the first call, lie there for long."""
    comm = hpccoll.Comm(MPI.Intracomm(MPI.COMM_WORLD).Dup())
    with comm.using(allreduce="linear"):
        for count in (1, 1, 1, 1, 8, 64, 128, 100, 90):
            source, sink = numpy.ones(count), numpy.zeros(count)
            if comm.rank == 1:
                time.sleep(5e-3)
            comm.Allreduce(source, sink)
            assert (sink == comm.size).all()


@pytest.mark.slow
@pytest.mark.skipif(MPI.COMM_WORLD.size > 3, reason="few ranks are late as often")
def test_late_calls_raise_no_alarm(monkeypatch, capfd):
    monkeypatch.setenv("HPCCOLL_TIMEOUT", str(DEADLINE))
    comms = [hpccoll.Comm(MPI.Intracomm(MPI.COMM_WORLD).Dup()) for _ in range(3)]
    chance, rank, size = random.Random(16), comms[0].rank, comms[0].size  # the same on all ranks
    small, large = numpy.ones(8), numpy.ones(30_000)
    waited, longest, start = 0, 0.0, time.monotonic()
    for number in range(CALLS):
        comm, preference = chance.choice(comms), chance.choice(("ours", "native", "auto"))
        late, seconds, kind = chance.randrange(size), delay(chance), chance.randrange(6)
        if seconds:
            waited, longest = waited + 1, max(longest, seconds)
            if rank == late:
                time.sleep(seconds)
        with comm.using(**(OURS if preference == "ours" else dict.fromkeys(OURS, preference))):
            source = small if kind else large
            sink = numpy.zeros_like(source)
            if kind < 3:
                comm.Allreduce(source, sink)
            elif kind == 3:
                comm.Iallreduce(source, sink).Wait()
            elif kind == 4:
                sink[:] = size if rank == late else 0
                comm.Bcast(sink, late)
            else:
                comm.Barrier()
                assert comm.allreduce(number) == number * size
                continue
            assert (sink == size).all()
    for comm in comms:
        comm.Free()
    assert waited > CALLS / OFTEN / 2
    told = capfd.readouterr()
    assert "hpccoll" not in told.err, told.err
    if rank == 0:
        with capfd.disabled():
            print(f"\n{CALLS} calls, {waited} of them late, by up to {longest:.2f} s of "
                  f"{DEADLINE:g} s, in {time.monotonic() - start:.0f} s: no alarm")
