"""Threads: they start with the first wake-up, miss none, and end when their owner stops them."""

import threading

from hpccoll.worker import Worker


def test_a_wake_up_while_it_works_is_not_missed():
    begun, gate, calls, done = threading.Event(), threading.Event(), [], threading.Event()

    def work():
        calls.append(threading.current_thread())
        begun.set()
        gate.wait(10)
        if len(calls) == 2:
            done.set()

    worker = Worker("test", work)
    assert not worker.is_alive
    worker.wake()
    assert begun.wait(10)
    worker.wake()
    gate.set()
    assert done.wait(10)
    worker.stop()
    assert not worker.is_alive and set(calls) == {worker.thread}


def test_work_that_came_before_the_stop_is_done():
    for _ in range(50):
        left = [1]
        worker = Worker("test", left.clear)
        worker.wake()
        left.append(2)
        worker.stop()
        assert not left
        worker.wake()
        assert not worker.is_alive


def test_its_own_thread_may_stop_it():
    worker = Worker("test", lambda: worker.stop())
    worker.wake()
    worker.thread.join(10)
    assert not worker.is_alive
