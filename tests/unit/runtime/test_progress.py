"""Who moves an operation on: one at a time, and nobody for ever."""

import itertools
import sys
from types import SimpleNamespace

import pytest

from hpccoll.runtime.progress import Underway


class Steps(Underway):
    """An operation whose steps are a function."""

    moves, awaited = 0, SimpleNamespace()

    def __init__(self, step=lambda: True):
        super().__init__(SimpleNamespace(bounds=(1, 1)), None, False)
        self._step = step

    def _step(self):
        """Of each."""

    def _complete(self, error=None):
        self.error, self.over = error, True


def interrupted(operation, number):
    """Make a step; Ctrl-C comes when so many calls of the lock's methods have returned.

    Tells whether there were so many. A signal's exception is raised there, too: behind a call.
    """
    left = itertools.count(number, -1)

    def interrupt(frame, event, function):
        of_lock = getattr(function, "__self__", None) is operation.lock
        if event == "c_return" and of_lock and not next(left):
            raise KeyboardInterrupt
    sys.setprofile(interrupt)
    try:
        operation.progress()
    except KeyboardInterrupt:
        return True
    finally:
        sys.setprofile(None)
    return False


def test_a_signal_leaves_nothing_locked():
    for number in itertools.count():
        operation = Steps()
        came = interrupted(operation, number)
        assert not operation.lock.locked(), f"behind call {number} of the lock"
        if not came:
            break
    assert number


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
