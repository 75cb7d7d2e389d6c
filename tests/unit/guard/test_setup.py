"""What ranks know of each other in a set-up call, from made-up logs."""

import os
from types import SimpleNamespace

import numpy
import pytest

from hpccoll import config
from hpccoll.errors import CollectiveTimeout, PeerLost
from hpccoll.errors.waits import RankStates
from hpccoll.guard import job_status
from hpccoll.guard import setup as module
from hpccoll.guard.job_status import JobLogs
from hpccoll.guard.setup import SetupCall
from hpccoll.machine.processes import this_process
from hpccoll.runtime.events.call_log import INSIDE, LOG_BYTES, Log
from hpccoll.transport.shm import job_file


@pytest.fixture
def ranks(monkeypatch):
    """Two ranks of one communicator, each with the logs of both, as its own process has them."""
    logs = {rank: Log(numpy.zeros(LOG_BYTES, "u1")) for rank in range(2)}
    job = JobLogs()
    job.logs, job.processes = logs, dict.fromkeys(range(2), this_process())
    monkeypatch.setattr(module, "JOB", job)

    def make(rank, title="split", turn=1):
        group = SimpleNamespace(Get_rank=lambda: rank, Get_size=lambda: 2)
        found = SetupCall(group, title, config.load(), turn)
        found.world, found.log = (0, 1), logs[rank]
        found.begin()
        return found
    return make


def test_rank_that_waits_in_the_same_call_has_come(ranks):
    first, second = ranks(0), ranks(1)
    assert first.pending_peers()[1] == (1,)
    second.publish_status()
    assert first.pending_peers()[1] == ()
    ranks(1)  # it has gone on to another call
    assert first.pending_peers()[1] == (1,)


@pytest.mark.parametrize("title, turn", [("dup", 1), ("split", 2)])
def test_rank_in_another_call_has_not_come(ranks, title, turn):
    first, second = ranks(0), ranks(1, title, turn)
    second.publish_status()
    assert first.pending_peers()[1] == (1,)


def test_rank_that_has_met_has_come_until_it_gives_up(ranks):
    first, second = ranks(0), ranks(1)
    first.met = second.met = [1, 1]
    assert first.pending_peers()[1] == (1,)
    second.log.words[INSIDE] = 1
    assert first.pending_peers()[1] == () and not first.failures()
    second.end()
    ranks(1).fail(CollectiveTimeout("dup", 1, 0, (0,), 1.0))
    assert first.pending_peers()[1] == () and not first.failures()  # another call has failed


def test_failure_is_known_to_ranks_that_wait_and_to_late_ones(ranks):
    second = ranks(1)
    second.fail(CollectiveTimeout("split", 1, 0, (0,), 1.0))
    first = ranks(0)
    assert "rank 1 failed in split" in str(first.failures()[1])
    first.met = [1, 1]
    assert str(first.failures()[1]).startswith("hpccoll: no message from rank 0: ")
    # In a call that came later:
    ranks(1).fail(PeerLost((0,), RankStates("rank 0 was killed"), "dup"))
    assert "before this rank joined" in str(first.failures()[1])


def test_lost_ranks_are_told_as_lost(ranks):
    ranks(1).fail(PeerLost((0,), RankStates("rank 0 was killed"), "split"))
    error = ranks(0).failures()[1]
    assert isinstance(error, PeerLost) and error.ranks == (0,)
    assert "reported by rank 1" in str(error)


def test_failure_of_a_call_in_which_both_have_met_is_none_of_a_later_call(ranks):
    first, second = ranks(0), ranks(1)
    first.meet([1, 1])
    second.publish_status()
    second.fail(CollectiveTimeout("split", 1, 0, (0,), 1.0))
    assert first.failures()
    later = ranks(0)  # on another communicator of the same ranks
    assert not later.failures() and later.pending_peers()[1] == (1,)
    ranks(1).publish_status()
    assert later.pending_peers()[1] == ()


def test_a_job_does_without_the_file_of_another_user(monkeypatch, tmp_path):
    class Two:
        Get_size, Get_rank = staticmethod(lambda: 2), staticmethod(lambda: 0)

    class Library:
        COMM_WORLD, COMM_NULL = Two, None
        Comm = SimpleNamespace(Get_parent=lambda: None)

    path = tmp_path / f"{job_file.PREFIX}job-key"
    path.touch()
    path.chmod(0o666)
    for name, value in {"MPI": Library, "job_key": lambda: "key", "WATCHDOG": set()}.items():
        monkeypatch.setattr(job_status, name, value)
    monkeypatch.setattr(job_file, "DIRECTORY", str(tmp_path))
    job = JobLogs()
    with pytest.warns(RuntimeWarning, match=f"rw-rw-rw- of user {os.getuid()}.*{path}"):
        job.join()
    assert job.file is None and not job.look() and not job.failure
    job.fail()
    assert path.stat().st_size == 0
