"""Messages that plans find elsewhere: they are made once for memory, and are new in every run."""

import contextlib
import gc
import weakref
from types import SimpleNamespace

import numpy
import pytest

from hpccoll.runtime.execution import slow_path
from hpccoll.runtime.execution.slow_path import KEPT, PlanWaits
from hpccoll.transport import MessageSpec
from hpccoll.transport.shm.endpoint import Receive


@pytest.fixture
def made(monkeypatch):
    """PlanWaits whose messages are counted when they are made; and the list of them."""
    found = []

    def receives(self, run):
        found.append({run.at: Receive(SimpleNamespace(), MessageSpec(False, 1, numpy.zeros(4)),
                                      None)})
        return found[-1]

    monkeypatch.setattr(slow_path.PlanWaits, "_receives", receives)

    def make(tag):
        call = SimpleNamespace(op=None, datatype=None, source=None, sink=None)
        context = SimpleNamespace(endpoint=None, timeouts=(1, 1), phases=None)
        code = SimpleNamespace(phase=lambda at: at // 4)
        return PlanWaits(context, call, SimpleNamespace(call_hash=0), code, [], (None, None), tag)

    return make, found


class Run(SimpleNamespace):
    """Like that of a compiled plan, whose arrays must not outlive a call."""


@pytest.mark.parametrize("fails", [False, True])
def test_a_run_is_let_go_of_without_garbage_collection(made, monkeypatch, fails):
    def finish(self):
        if fails:
            raise ValueError("in vain")

    monkeypatch.setattr(slow_path.SlowPath, "finish", finish)
    one = Run(at=0)
    gone = weakref.ref(one)
    gc.disable()
    try:
        with contextlib.suppress(ValueError):
            made[0](0).wait(one)
        del one
        assert gone() is None
    finally:
        gc.enable()


def run(at=0, start=64):
    return SimpleNamespace(at=at, input=start, output=128)


def test_a_message_that_was_put_aside_is_a_new_one_in_the_next_run(made):
    make, found = made
    of = make(0)
    message, = of.receives(run()).values()
    message.number, message.aside, message.request = 7, True, object()
    again, = of.receives(run()).values()
    assert again is message and len(found) == 1
    assert not again.aside and again.number == 0 and again.request is None


def test_other_memory_and_other_phases_have_messages_of_their_own(made):
    make, found = made
    of = make(0)
    for at, start in ((0, 64), (4, 64), (0, 72), (0, 64), (4, 64)):
        of.receives(run(at, start))
    assert len(found) == 3
    for start in range(2 * KEPT):
        of.receives(run(0, 1000 + 8 * start))
        assert len(of.kept) <= KEPT


def test_runs_that_overlap_share_no_messages(made):
    make, found = made
    of = make(6)
    assert of.receives(run()) is not of.receives(run())
    assert len(found) == 2 and not of.kept
