"""Lanes: the order of issue, whoever runs the calls."""

import threading

import pytest

torch = pytest.importorskip("torch")
lane = pytest.importorskip("hpccoll.torch.process_group.work_queue")
work = pytest.importorskip("hpccoll.torch.process_group.work")


class Alone:
    """Arrivals of a rank that waits for nobody."""

    def __init__(self):
        self.mine = [0]

    def wait(self, number, needless):
        """Nobody else is there."""


@pytest.fixture
def one():
    made = lane.WorkQueue("test", Alone())
    yield made
    made.close()


def put(made, run, number=1):
    call = work.GroupWork("call", run, [], 5.0)
    call.number = number
    made.put(call)
    return call


def test_calls_run_in_the_order_of_issue(one):
    seen = []
    calls = [put(one, lambda n=n: seen.append(n), n) for n in range(20)]
    calls[-1].wait()
    assert seen == list(range(20)) and one.arrivals.mine == [19]
    one.drain()
    assert not one.is_busy


def test_whoever_waits_runs_what_is_left(one):
    gate, started, threads = threading.Event(), threading.Event(), []
    first = put(one, lambda: (started.set(), gate.wait(5)))
    started.wait(5)  # the lane's thread is at it
    second = put(one, lambda: threads.append(threading.current_thread()))
    gate.set()
    second.wait()
    assert first.is_completed() and len(threads) == 1


def test_an_error_is_that_calls_alone(one):
    bad, good = put(one, lambda: 1 / 0), put(one, lambda: None)
    good.wait()
    with pytest.raises(ZeroDivisionError):
        bad.wait()


def test_cleared_calls_are_over_and_never_run(one):
    gate, started, seen = threading.Event(), threading.Event(), []
    put(one, lambda: (started.set(), gate.wait(5)))
    started.wait(5)
    call = put(one, lambda: seen.append(1))
    one.clear(RuntimeError("aborted"))
    gate.set()
    with pytest.raises(RuntimeError, match="aborted"):
        call.wait()
    one.drain()
    assert not seen


@pytest.mark.parametrize("through", ["work", "future"])
def test_callbacks_may_call_the_group_and_wait(one, through):
    """As PowerSGD's hook does; they run on the lane's own thread, or on that of a waiter."""
    seen, gate = [], threading.Event()

    def again(future):
        call = put(one, lambda: seen.append(1))
        return call.wait() if through == "work" else call.get_future().wait()

    first = put(one, lambda: gate.wait(5))
    done = first.get_future().then(again)
    gate.set()
    done.wait()
    assert seen == [1]


def test_a_callback_may_wait_for_a_call_that_was_issued_before_it_ran(one):
    gate = threading.Event()
    first = put(one, lambda: gate.wait(5))
    second = put(one, lambda: None)
    late = second.get_future()
    done = first.get_future().then(lambda future: late.wait())
    gate.set()
    assert done.wait() == []
