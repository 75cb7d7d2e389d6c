"""Work: ends once, tells everybody, keeps the order; lanes and who runs what stands in them."""

import re
import threading
import traceback
from datetime import timedelta

import pytest

from hpccoll.errors import GroupTimeout, PeerLost, ProcessGroupError
from hpccoll.errors.waits import RankStates, raisable

torch = pytest.importorskip("torch")
work = pytest.importorskip("hpccoll.torch.process_group.work")


def pending(run=lambda: None, tensors=(), seconds=5.0):
    return work.GroupWork("call", run, list(tensors), seconds)


def test_the_finished_one():
    assert work.FINISHED.wait() and work.FINISHED.is_completed() and work.FINISHED.is_success()
    assert work.FINISHED.get_future().done() and work.FINISHED.result() == []


def test_an_error_reaches_everybody():
    def fail():
        raise ValueError("no")

    one = pending(fail)
    early = one.get_future()
    one.do()()
    assert one.is_completed() and not one.is_success()
    with pytest.raises(ValueError, match="no"):
        one.wait()
    for future in early, one.get_future():
        with pytest.raises(RuntimeError, match="ValueError: no"):  # C++ has the text alone
            future.wait()


def frames_of(error):
    return len(list(traceback.walk_tb(error.__traceback__)))


@pytest.mark.parametrize("stored", [ValueError("no"), GroupTimeout("call", 1.0),
                                    ProcessGroupError("broken"),
                                    PeerLost((1,), RankStates("lost"), "call")], ids=repr)
def test_an_error_that_is_raised_often_does_not_grow(stored):
    """Its frames would keep tensors alive; those of groups, lines and requests are raised so."""
    one, seen = pending(), []
    one.end(stored)
    for _ in range(5):
        with pytest.raises(type(stored), match=re.escape(str(stored))) as caught:
            one.wait()
        seen.append(frames_of(caught.value))
    assert len(set(seen)) == 1 and frames_of(stored) == 0


def test_an_error_that_cannot_be_copied_does_not_grow():
    class Odd(Exception):
        def __init__(self, one, two):
            super().__init__(f"{one} {two}")

    stored, seen = Odd(1, 2), []
    for _ in range(5):
        with pytest.raises(Odd) as caught:
            raise raisable(stored)
        seen.append(frames_of(caught.value))
    assert len(set(seen)) == 1


def test_futures_before_and_after_the_end():
    tensor = torch.ones(2)
    one = pending(tensors=[tensor])
    early = one.get_future()
    assert not early.done() and one.get_future() is early
    thread = threading.Thread(target=lambda: one.do()())
    thread.start()
    assert early.wait()[0] is tensor
    thread.join()
    late = pending(tensors=[tensor])
    late.do()()
    assert late.get_future().wait()[0] is tensor


def test_time_is_up_once():
    one, told = pending(), []
    one.give_up = told.append
    with pytest.raises(GroupTimeout, match="0.01"):
        one.wait(timedelta(seconds=0.01))
    assert told == [one]
    one.end()  # too late
    with pytest.raises(RuntimeError):
        one.wait()
    assert len(told) == 1


def test_together():
    several = [pending(tensors=[torch.ones(n)]) for n in (1, 2)]
    both = work.CoalescedWork(several)
    assert not both.is_completed()
    future = both.get_future()
    for one in several:
        one.do()()
    assert both.wait() and [len(tensor) for tensor in future.wait()] == [1, 2]
