"""A test that leaves a thread fails; one whose thread ends in time, or lives by design, passes."""

import re
import subprocess
import sys
import threading
from contextlib import contextmanager

import pytest

from support.left_threads import LIVING, described, outliving

TESTS = """
import threading, time

def test_leaving():
    threading.Thread(target=time.sleep, args=(60,), name="the late one", daemon=True).start()

def test_after_it():
    pass

def test_ending():
    threading.Thread(target=time.sleep, args=(0.05,)).start()
"""


OF_A_MODULE = """
import threading, pytest

over = threading.Event()

@pytest.fixture(scope="module")
def service():
    yield lambda: threading.Thread(target=over.wait, name="service 1", daemon=True).start()
    {end}

pytestmark = pytest.mark.threads("service")

def test_one(service):
    service()

def test_two(service):
    pass
"""


@contextmanager
def running(name):
    """A thread of a name that runs meanwhile."""
    over = threading.Event()
    thread = threading.Thread(target=over.wait, name=name, daemon=True)
    thread.start()
    try:
        yield thread
    finally:
        over.set()
        thread.join()


def pytest_on(tmp_path, text):
    """What pytest prints of a file of tests, with the plugin."""
    file = tmp_path / "test_threads.py"
    file.write_text(text)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "support.left_threads", "-p",
         "no:cacheprovider", "--rootdir", str(tmp_path), str(file)],
        env={"PYTHONPATH": ":".join(filter(None, sys.path))}, capture_output=True, text=True).stdout


@pytest.mark.slow
def test_only_the_test_that_leaves_a_thread_fails(tmp_path):
    printed = pytest_on(tmp_path, TESTS)
    assert "3 passed, 1 error" in printed
    assert "ERROR at teardown of test_leaving" in printed
    assert "'the late one' of sleep, in" in printed


@pytest.mark.slow
@pytest.mark.parametrize("end, errors", [("over.set()", ""), ("pass", "test_two")])
def test_a_thread_of_a_modules_fixture_may_live_until_its_last_test(tmp_path, end, errors):
    printed = pytest_on(tmp_path, OF_A_MODULE.format(end=end))
    assert "2 passed" in printed
    assert re.findall("ERROR at teardown of (.*?) ", printed) == errors.split()


def test_a_thread_that_ends_in_time_is_waited_for():
    before, over = threading.enumerate(), threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    assert outliving(before, grace=0.01) == [thread] and "Event.wait" in described(thread)
    over.set()
    assert outliving(before) == [] and not thread.is_alive()


@pytest.mark.parametrize("name", sorted(name for name, (_, most) in LIVING.items() if most == 1))
def test_a_thread_of_the_process_may_live_once(name):
    before = [thread for thread in threading.enumerate() if not thread.name.startswith(name)]
    with running(name):
        assert outliving(before, grace=0.01) in ([], [each for each in threading.enumerate()
                                                if each.name.startswith(name)][1:])
        between = threading.enumerate()
        with running(name) as second:
            assert outliving(between, grace=0.01) == [second]
