"""Who moves an operation on: one at a time, and nobody for ever."""

import itertools
import sys
from types import SimpleNamespace

import pytest
from mpi4py import MPI

from hpccoll.comm import waitall
from hpccoll.runtime.progress.engine import PROGRESS, PendingOperation


class Steps(PendingOperation):
    """An operation whose steps are a function."""

    moves, pending_run = 0, SimpleNamespace()

    def __init__(self, step=lambda: True):
        super().__init__(SimpleNamespace(timeouts=(1, 1)), None, False)
        self._step = step

    def _step(self):
        """Of each."""

    def _complete(self, error=None):
        self.error, self.over = error, True


def interrupted(call, number, counts):
    """Call something; Ctrl-C comes at the call or return of that number, of those that count."""
    left = itertools.count(number, -1)

    def interrupt(frame, event, function):
        if counts(event, function) and not next(left):
            raise KeyboardInterrupt
    sys.setprofile(interrupt)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.setprofile(None)
    return False


def test_a_signal_leaves_nothing_locked():
    for number in itertools.count():
        operation = Steps()
        came = interrupted(operation.progress, number, lambda event, function: (
            event == "c_return" and getattr(function, "__self__", None) is operation.lock))
        assert not operation.lock.locked(), f"behind call {number} of the lock"
        if not came:
            break
    assert number


def waits(operation):
    operation.wait()


class LookedAfter(MPI.Request):
    """A request with a collective behind it."""


def waits_for_several(operation):
    token = MPI.Grequest.Start()
    one = MPI.Request.__new__(LookedAfter, token)
    one.poll_callback = lambda: lambda: not operation.over
    try:
        waitall._wait_until([one], lambda requests, told: True,
                             lambda requests, told: operation.over, bool, None)
    finally:
        token.Complete()
        token.Wait()


@pytest.mark.parametrize("wait", [waits, waits_for_several])
def test_a_signal_in_a_wait_leaves_the_thread_to_work(wait):
    for number in itertools.count():
        operation = Steps()
        operation._step = lambda: operation._complete() or True
        PROGRESS.operations.append(operation)
        try:
            came = interrupted(lambda: wait(operation), number, lambda event, function: (
                event in ("call", "c_return")))
        finally:
            PROGRESS.remove(operation)
        assert not PROGRESS.waiters, f"at call {number}"
        if not came:
            break
    assert number > 5


def test_a_signal_in_a_step_ends_the_operation():
    def step():
        raise KeyboardInterrupt
    operation = Steps(step)
    with pytest.raises(KeyboardInterrupt):
        operation.progress()
    assert operation.over and not operation.lock.locked()


def test_a_step_makes_no_step_of_its_own_operation():
    """As where an operator waits, which moves everything on."""
    found = []
    operation = Steps(lambda: found.append(operation.progress()) or True)
    assert operation.progress() and found == [False]
