"""How several requests are waited for: looks, the library's wait, and what is found with errors."""

from types import SimpleNamespace

import pytest
from mpi4py import MPI

import hpccoll
from hpccoll.comm.requests import DrivenRequest
from hpccoll.comm.waitall import _wait_until


class Collective(DrivenRequest, MPI.Request):
    """A request whose looks say when it is over."""


def collective(looks, error=None, over=False):
    token = MPI.Grequest.Start(lambda status: None)
    made = Collective.__new__(Collective, token)
    made.token, counted = token, iter(looks)
    made.poll_callback = lambda: lambda: next(counted)
    made._operation = SimpleNamespace(error=error, over=over, quiet=False)
    return made


def end(*requests):
    for one in requests:
        one.token.Complete()
        MPI.Request.Wait(one)


def test_the_library_waits_once_no_collective_is_left():
    """Each is looked after until it is over; nobody spins for the messages beside them."""
    requests, tests = [collective([True, False]), collective([True] * 3 + [False])], []

    def test(given, told):
        tests.append(given)

    def wait(given, told):
        return given, told
    assert _wait_until(requests, wait, test, bool, "told") == (requests, "told")
    assert len(tests) >= 4
    end(*requests)


@pytest.mark.parametrize("form", ["Waitany", "Waitsome"])
def test_what_is_found_beside_an_error_is_not_lost(form):
    """It is known but once: the error is raised when its own request is found."""
    good, failed = collective([]), collective([True] * 9, ZeroDivisionError("made for a test"))
    wait = getattr(hpccoll.Request, form)
    good.token.Complete()
    assert wait([good, failed]) in (0, [0])
    assert not MPI.Request.__bool__(good)
    failed.token.Complete()
    with pytest.raises(ZeroDivisionError, match="made for a test"):
        wait([good, failed])


def test_an_error_is_raised_where_nothing_is_found():
    failed = collective([True], ZeroDivisionError("made for a test"))
    waited = collective([True])
    with pytest.raises(ZeroDivisionError, match="made for a test"):
        hpccoll.Request.Waitall([waited, failed])
    end(waited, failed)


@pytest.mark.parametrize("error, again", [(None, False), (ZeroDivisionError(), True)])
@pytest.mark.parametrize("over", [True, False])
def test_a_collective_is_looked_after_until_it_has_ended_well(error, again, over):
    """One that has failed is tested once more, which raises its error."""
    request = DrivenRequest()
    operation = request._operation = SimpleNamespace(over=over, error=error if over else None)

    def look():
        operation.over, operation.error = True, error
    operation.poll_callback, operation.fail = (lambda rare: look), None
    assert request.poll_callback()() is again


def test_a_collective_that_is_under_way_is_looked_after():
    request, failed = DrivenRequest(), []
    operation = request._operation = SimpleNamespace(over=False, error=None, fail=failed.append)
    operation.poll_callback = lambda rare: lambda: 1 / 0
    assert request.poll_callback()() is True
    assert [type(error) for error in failed] == [ZeroDivisionError]
