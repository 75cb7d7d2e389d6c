"""A process is found alive, stopped, dead, or to be another one of the same number."""

import ctypes
import os
import signal
import subprocess
import sys
import time

import pytest

from hpccoll.machine import processes
from hpccoll.machine.processes import (
    ALIVE,
    DEAD,
    STOPPED,
    TRACED,
    Process,
    state_of,
    this_process,
)


@pytest.fixture
def child():
    """A process that does nothing, and what it is."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as running:
        yield running, this_process()._replace(
            pid=running.pid, began=processes._stat(running.pid)[1])
        running.kill()


def becomes(process, state):
    for _ in range(500):
        if state_of(process) == state:
            return True
        time.sleep(0.01)
    return False


def test_this_process_is_alive():
    mine = this_process()
    assert mine.pid == os.getpid() and mine.host and mine.began
    assert state_of(mine) == ALIVE


def test_a_stopped_process_and_one_that_goes_on(child):
    running, process = child
    running.send_signal(signal.SIGSTOP)
    assert becomes(process, STOPPED)
    running.send_signal(signal.SIGCONT)
    assert becomes(process, ALIVE)


def test_a_process_that_a_debugger_holds_is_not_stopped(child):
    running, process = child
    ptrace = ctypes.CDLL(None).ptrace
    if ptrace(16, running.pid, None, None):  # PTRACE_ATTACH
        pytest.skip("processes may not be traced here")
    assert becomes(process, TRACED)
    ptrace(17, running.pid, None, None)  # PTRACE_DETACH
    assert becomes(process, ALIVE)


def test_a_killed_process_is_dead_before_and_after_its_parent_asks(child):
    running, process = child
    running.kill()
    assert becomes(process, DEAD)  # a zombie
    running.wait()
    assert state_of(process) == DEAD


def test_a_number_that_came_to_mean_another_process(child):
    _, process = child
    assert state_of(process) == ALIVE
    assert state_of(process._replace(began=process.began - 1)) == DEAD


def test_one_that_may_not_be_looked_at_is_there(monkeypatch):
    def forbidden(pid):
        raise PermissionError
    monkeypatch.setattr(processes, "_stat", forbidden)
    assert state_of(Process("here", 1, 1)) == ALIVE
    assert this_process() == Process("", os.getpid(), 0, os.uname().nodename)
