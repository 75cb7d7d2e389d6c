"""The thread that looks: it ends a process that cannot go on, and only such a one."""

import io
import os
import subprocess
import sys
import textwrap
import threading
import time
import weakref

import pytest

from hpccoll.errors.waits import print_report
from hpccoll.guard import watchdog
from hpccoll.guard.call_sites import call_site, main_site

PROGRAM = """
import sys, time
from hpccoll.guard import watchdog
class One:
    looks, left = 0, []
    def poll(self):
        self.looks += 1
        return "hpccoll: says why" if self.looks == 2 else ""
    def is_busy(self): return True
    def has_returned(self): return {escaped}
    def leave(self, how): self.left.append(how)
one = One()
watchdog.QUICK, watchdog.FAREWELL = 0.05, 0.2
watchdog.WATCHDOG.add(one)
print("before", end="")
time.sleep({seconds})
print(" after", one.left)
"""


@pytest.mark.parametrize("escaped, status, said", [(False, watchdog.STATUS, "before"),
                                                   (True, 0, "before after []\n")])
def test_it_says_why_and_ends_the_process(escaped, status, said):
    """Unless the call ends in the meantime; what the program has printed is not lost."""
    text = textwrap.dedent(PROGRAM.format(escaped=escaped, seconds=10 if not escaped else 0.5))
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60,
                          check=False)
    assert (done.returncode, done.stdout) == (status, said), done.stderr
    assert done.stderr == "hpccoll: says why\n"


@pytest.mark.slow
@pytest.mark.parametrize("spoil", ["sys.stderr = sys.stdout = None", "sys.stderr.close()",
                                   "os.close(2)", "sys.stdout.close()"])
def test_it_ends_the_process_also_without_outputs(spoil):
    text = textwrap.dedent(PROGRAM.format(escaped=False, seconds=10)).replace(
        "time.sleep", f"import os; {spoil}; time.sleep")
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, timeout=60,
                          check=False)
    assert done.returncode == watchdog.STATUS, done.stderr


def test_reports_need_no_reader(monkeypatch):
    """A wait goes on whatever became of standard error."""
    class Pipe(io.StringIO):
        def flush(self):
            raise BrokenPipeError("its reader has ended")

    closed = io.StringIO()
    closed.close()
    for broken in (Pipe(), closed, None):
        monkeypatch.setattr(sys, "stderr", broken)
        print_report("a report")


def test_what_cannot_be_looked_at_does_not_end_the_thread(capfd, monkeypatch):
    looks, done = [], threading.Event()

    class Bad:
        def poll(self):
            looks.append("bad")
            raise ZeroDivisionError("made for a test")

    class Good:
        def poll(self):
            looks.append("good")
            if looks.count("good") == 3:
                done.set()
            return ""

        def is_busy(self):
            return True

    monkeypatch.setattr(watchdog, "QUICK", 0.001)
    monkeypatch.setattr(watchdog, "PERIOD", 0.001)
    mine, ones = watchdog.Watchdog(), (Bad(), Good())
    mine.watched.update(ones)
    mine.worker.wake()
    assert done.wait(10)
    mine.worker.stop()
    assert looks.count("bad") == 1
    assert capfd.readouterr().err == ("hpccoll: watchdog stopped for one communicator: "
                                      "ZeroDivisionError: made for a test; set a time limit "
                                      "for the job\n")


@pytest.mark.parametrize("forked", [False, True])
def test_a_communicator_may_be_made_while_the_thread_looks(monkeypatch, forked):
    """The set changes for nobody who goes through it; a child has a lock that nobody holds."""
    class Locked(weakref.WeakSet):
        def __iter__(self):
            assert mine.lock.locked()
            return super().__iter__()

        def add(self, one):
            assert mine.lock.locked()
            super().add(one)

        def discard(self, one):
            assert mine.lock.locked()
            super().discard(one)

    class Bad:
        def poll(self):
            raise ZeroDivisionError("made for a test")

    mine, one = watchdog.Watchdog(), Bad()
    mine.watched, mine.pid = Locked(), os.getpid()
    if forked:
        mine.pid = 1
        mine.lock.acquire()
        monkeypatch.setattr(mine, "_work", lambda: None)
        mine.add(one)
        assert mine.pid == os.getpid() and mine.worker.is_alive and mine._all() == [one]
        return
    mine.add(one)
    mine._work()
    assert mine._all() == []


def test_several_threads_that_are_first_start_one_thread(monkeypatch):
    class One:
        polls = 0

        def poll(self):
            self.polls += 1
            return ""

        def is_busy(self):
            return False

    made, create = [], watchdog.Worker

    def create_slowly(*args):
        time.sleep(0.02)
        made.append(create(*args))
        return made[-1]

    monkeypatch.setattr(watchdog, "Worker", create_slowly)
    monkeypatch.setattr(watchdog, "PERIOD", 0.001)
    mine, ones = watchdog.Watchdog(), [One() for _ in range(4)]
    made.clear()
    threads = [threading.Thread(target=mine.add, args=(one,)) for one in ones]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    end = time.monotonic() + 10
    while not all(one.polls for one in ones) and time.monotonic() < end:
        time.sleep(0.001)
    mine.worker.stop()
    assert len(made) == 1 and all(one.polls for one in ones)


def test_the_end_of_the_program_is_told_and_a_child_tells_nothing(monkeypatch):
    class One:
        left = []

        def leave(self, how):
            self.left.append(how)

    one, mine = One(), watchdog.Watchdog()
    mine.watched.add(one)
    mine.pid = 1  # as after a fork
    mine.stop()
    assert one.left == []
    monkeypatch.setattr(watchdog.os, "getpid", lambda: 1)
    mine.stop()
    assert one.left == [watchdog.ENDED]


def test_sites():
    assert call_site().startswith(f"{__file__}:")
    found = []
    thread = threading.Thread(target=lambda: (time.sleep(0.05), found.append(main_site())))
    thread.start()
    while not found:
        pass
    thread.join()
    assert found[0].startswith(f"{__file__}:")
