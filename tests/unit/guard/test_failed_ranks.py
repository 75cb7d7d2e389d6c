"""What errors mean where ranks have died."""

import time
from types import SimpleNamespace

import pytest
from mpi4py import MPI

from hpccoll.errors import BrokenCommunicatorError, PeerLost
from hpccoll.errors.mpi import RevokedError
from hpccoll.errors.waits import RankStates
from hpccoll.guard import failed_ranks
from hpccoll.guard.guard import Guard
from hpccoll.guard.rank_status import GONE, KILLED


class Communicator:
    """Its library says that it was revoked."""

    def Is_revoked(self):
        return True


@pytest.fixture
def make(monkeypatch):
    def made(dead, known=True):
        monkeypatch.setattr(failed_ranks, "failed_ranks", lambda comm: dead)
        found = failed_ranks.Losses(Communicator())
        found.known = known
        return found
    return made


FAILED = MPI.Exception(MPI.ERR_IN_STATUS)


@pytest.mark.parametrize("error", [FAILED, BrokenCommunicatorError("another rank has given up")])
def test_the_dead_are_named(make, error):
    found = make((1, 3)).explain(error, "call 4, allreduce,")
    assert type(found) is PeerLost and found.ranks == (1, 3)
    assert "ranks 1, 3 died" in str(found) and "call 4, allreduce, cannot complete" in str(found)


def test_a_revoke_is_told(make):
    found = make(()).explain(FAILED, "allreduce")
    assert type(found) is RevokedError and found.Get_error_class() == MPI.ERR_REVOKED
    heard = BrokenCommunicatorError("another rank has given up")
    assert make(()).explain(heard, "allreduce") is heard


def test_other_errors_stay_what_they_are(make):
    for error in (ValueError("x"), KeyboardInterrupt(), MPI.Exception(MPI.ERR_TRUNCATE)):
        assert make((1,)).explain(error, "allreduce") is error
    assert make((1,), known=False).explain(FAILED, "allreduce") is FAILED
    make((1,), known=False).check("allreduce")
    with pytest.raises(PeerLost):
        make((1,)).check("allreduce")


@pytest.mark.parametrize("states, ago, peers, lost", [
    ({1: KILLED, 2: GONE}, 0, (2,), (1,)),    # it may have ended because rank 1 was killed
    ({1: KILLED, 2: GONE}, 60, (2,), (1, 2)),  # its last message would have come
    ({1: KILLED, 2: GONE}, 60, (3,), (1,)),
    ({1: GONE, 2: GONE}, 0, (3,), (1, 2))])
def test_the_ranks_that_a_wait_for_messages_names(states, ago, peers, lost):
    def peer_lost_error(ranks, title, numbered):
        return PeerLost(ranks, RankStates("they are gone"), title)

    when = dict.fromkeys(states, time.monotonic() - ago)
    guard = SimpleNamespace(
        on_alarm=lambda: None, peer_lost_error=peer_lost_error, rank_status=SimpleNamespace(
            look=lambda: when, activity=lambda rank: SimpleNamespace(state=states[rank])))
    with pytest.raises(PeerLost) as raised:
        Guard.check_ranks(guard, peers)
    assert raised.value.ranks == lost
