"""A pytest plugin: a test that leaves a thread behind fails, and names the thread.

A thread that outlives its test runs beside the next ones, where its failure and its delays count.
``tests/conftest.py`` takes the two hooks over.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterable

import pytest

#: Seconds that threads have to end after their test.
GRACE = 1.0
#: Threads that live as long as the process by the beginning of their names: why, and how many.
LIVING = {
    "hpccoll watchdog": ("from the first communicator that is watched", 1),
    "hpccoll progress": ("from the first request that needs one", 1),
    "hpccoll flight recorder": ("from the first communicator that is recorded", 1),
    "double of device events": ("ends with its folder, which a module's ranks may share", 1000),
    "Dummy-": ("a native thread that called Python: its entry stays when it has ended", 1000),
}
BEFORE: pytest.StashKey[list[threading.Thread]] = pytest.StashKey()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    item.stash[BEFORE] = threading.enumerate()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    # Most tests start no thread.
    if len(now := threading.enumerate()) > 1:
        # These belong to a fixture of the module: they may live until its last test.
        names = tuple(name for mark in item.iter_markers("threads") for name in mark.args)
        last = nextitem is None or nextitem.path != item.path
        if any(mark.kwargs.get("until") == "exit" for mark in item.iter_markers("threads")):
            last = False  # the library under test has no call that ends them
        before = [thread for thread in item.stash[BEFORE]
                  if not (last and names and thread.name.startswith(names))]
        if now != before and (left := outliving(before, () if last else names)):
            pytest.fail("the test leaves threads that still run: " + ", ".join(
                map(described, left)), pytrace=False)


def outliving(before: Iterable[threading.Thread], names: tuple[str, ...] = (),
              grace: float = GRACE) -> list[threading.Thread]:
    """Wait for the threads that were not there before; return those that do not end."""
    known, end = set(before), time.monotonic() + grace
    new = [thread for thread in threading.enumerate()
           if thread not in known and not thread.name.startswith(names)]
    for name, (_, most) in LIVING.items():
        may = most - sum(thread.name.startswith(name) for thread in known)
        named = [thread for thread in new if thread.name.startswith(name)]
        new = [thread for thread in new if thread not in named[:max(may, 0)]]
    for thread in new:
        thread.join(max(end - time.monotonic(), 0))
    return [thread for thread in new if thread.is_alive()]


def described(thread: threading.Thread) -> str:
    """Name a thread, its function, and the line in which it is."""
    target = getattr(thread, "_target", None)
    function = getattr(target, "__qualname__", None) or type(thread).__qualname__
    frame = sys._current_frames().get(thread.ident or 0)
    where = f", in {frame.f_code.co_filename}:{frame.f_lineno}" if frame else ""
    return f"{thread.name!r} of {function}{where}"
