"""How long is waited for a request of the MPI library's, which does not return."""

from types import SimpleNamespace

import pytest
from mpi4py import MPI

from hpccoll.errors import CollectiveTimeout
from hpccoll.guard.pending_calls import WatchedRequest
from hpccoll.guard.rank_status import IN_PROGRAM, RankActivity
from hpccoll.runtime.execution.executor import Timeouts


class Slow:
    """A request that is complete after some tests."""

    def __init__(self, tests):
        self.tests = tests

    def Test(self, status=None):
        self.tests -= 1
        return self.tests < 0

    def Get_status(self):
        return self.tests < 0


class Waiting(WatchedRequest, Slow):
    pass


def waiting(begun, timeout, tests=200_000, failures=None):
    """A request of a library that is slow, of call 7, by what another rank has begun."""
    failed = [] if failures is None else failures

    def fail(error, *args, **options):
        failed.append((error, options))
        return error

    guard = SimpleNamespace(
        ranks=SimpleNamespace(comm=MPI.COMM_SELF, limits=SimpleNamespace(spins=0)), abandoned=[],
        timeouts=Timeouts(timeout, 60.0, None, None),
        activities=lambda: [RankActivity(0, IN_PROGRAM, 7), RankActivity(1, IN_PROGRAM, begun)],
        fail=fail)
    request = Waiting(tests)
    request.watched, request.number = (guard, "native allreduce"), 7
    return request


@pytest.mark.parametrize("begun", [7, 9])
def test_where_all_have_come_it_is_waited_on(begun):
    """It is the library that takes so long."""
    assert waiting(begun, 0.01).Wait() is True


@pytest.mark.parametrize("begun", [6, 0, -1])
def test_where_one_has_not_it_is_named(begun):
    failures = []
    request = waiting(begun, 0.01, failures=failures)
    with pytest.raises(CollectiveTimeout, match="rank 1: native allreduce"):
        request.Wait()
    assert request in request.watched[0].abandoned and failures[0][1] == {"number": 7}


def test_a_number_less_call_has_a_deadline():
    request = waiting(9, 0.01)
    request.number = 0
    with pytest.raises(CollectiveTimeout):
        request.Wait()


def test_a_complete_request_is_looked_after_no_more():
    """Nobody is waited for, whatever the others do."""
    request = waiting(0, 60.0, tests=1)
    request.watched[0].doing = lambda: pytest.fail("asks for the others")
    look = request.poll_callback()
    assert look() is True
    request.tests = -1
    for _ in range(5000):
        assert look() is False
