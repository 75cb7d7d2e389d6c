"""A test that leaves a thread fails; one whose thread ends in time, or lives by design, passes."""

import subprocess
import sys
import threading

import pytest

from support.left_threads import described, outliving

TESTS = """
import threading, time

def test_leaving():
    threading.Thread(target=time.sleep, args=(60,), name="the late one", daemon=True).start()

def test_after_it():
    pass

def test_ending():
    threading.Thread(target=time.sleep, args=(0.05,)).start()
"""


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


def test_a_thread_that_ends_in_time_is_waited_for():
    before, over = threading.enumerate(), threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    assert outliving(before, grace=0.01) == [thread] and "Event.wait" in described(thread)
    over.set()
    assert outliving(before) == [] and not thread.is_alive()
