"""What errors mean where ranks have died."""

import pytest
from mpi4py import MPI

from hpccoll.errors import BrokenCommunicatorError, PeerLost
from hpccoll.errors.mpi import RevokedError
from hpccoll.guard import losses


class Communicator:
    """Its library says that it was revoked."""

    def Is_revoked(self):
        return True


@pytest.fixture
def make(monkeypatch):
    def made(dead, known=True):
        monkeypatch.setattr(losses, "failed_ranks", lambda comm: dead)
        found = losses.Losses(Communicator())
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
