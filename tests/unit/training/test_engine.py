"""Who drives: tasks of a lane in order, a thread or whoever waits."""

import threading
import time

import pytest

from hpccoll.training.engine import Engine


class Request:
    """Complete after so many tests, or when told."""

    def __init__(self, tests=0):
        self.tests = tests

    def Test(self):
        self.tests -= 1
        return self.tests < 0


def task(log, name, requests):
    log.append(f"{name} begins")
    yield from requests
    log.append(f"{name} ends")


def engine_of(lanes=1, look=lambda: False, errors=None):
    return Engine(lanes, look, (errors if errors is not None else []).append)


def test_one_task_of_a_lane_runs_at_a_time():
    engine, log = engine_of(), []
    engine.submit(0, task(log, "a", [Request(2)]))
    engine.submit(0, task(log, "b", []))
    engine.wait(lambda: len(log) == 4, lambda: None)
    assert log == ["a begins", "a ends", "b begins", "b ends"] and not engine.is_busy


def test_lanes_do_not_wait_for_each_other():
    engine, log = engine_of(2), []
    engine.submit(0, task(log, "stuck", [Request(10 ** 9)]))
    engine.submit(1, task(log, "free", [Request(1)]))
    engine.wait(lambda: "free ends" in log, lambda: None)
    assert "stuck ends" not in log and engine.is_busy


def test_an_error_ends_all_tasks_and_is_told():
    errors, log = [], []
    engine = engine_of(2, errors=errors)

    def broken():
        yield Request(1)
        raise ValueError("broken")

    engine.submit(0, broken())
    engine.submit(1, task(log, "other", [Request(10 ** 9)]))
    engine.wait(lambda: bool(errors), lambda: None)
    assert str(errors[0]) == "broken" and not engine.is_busy


def test_a_thread_drives_while_nobody_waits():
    engine, log = engine_of(), []
    engine.start(True)
    engine.submit(0, task(log, "a", [Request(3)]))
    end = time.monotonic() + 10
    while "a ends" not in log and time.monotonic() < end:
        time.sleep(0.001)
    engine.stop()
    assert log == ["a begins", "a ends"]


def test_without_a_thread_nothing_moves_by_itself():
    engine, log = engine_of(), []
    engine.start(False)
    engine.submit(0, task(log, "a", []))
    assert not log
    engine.drive()
    assert log == ["a begins", "a ends"]
    engine.stop()


def test_whoever_waits_takes_over_without_a_hop():
    names, engine = [], engine_of()
    engine.start(True)

    def where():
        names.append(threading.current_thread())
        yield Request(1)
        names.append(threading.current_thread())

    engine.wait(lambda: len(names) == 2, lambda: None, where())
    engine.stop()
    assert set(names) == {threading.current_thread()}


def test_waiting_may_give_up():
    engine = engine_of()

    def idle():
        raise TimeoutError

    with pytest.raises(TimeoutError):
        engine.wait(lambda: False, idle)
    engine.wait(lambda: True, idle)


def test_a_look_is_part_of_every_drive():
    looks = []
    engine = engine_of(look=lambda: looks.append(1) or True)
    assert engine.drive() and looks
