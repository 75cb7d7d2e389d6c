"""What all tests share: ``--update-golden``, ``--bare`` for what builds environments, and a look
for threads that a test leaves.
"""

import gc
from collections import Counter

import pytest

from support.left_threads import (  # noqa: F401
    pytest_runtest_setup,
    pytest_runtest_teardown,
)


def pytest_addoption(parser):
    parser.addoption("--update-golden", action="store_true",
                     help="write tests/golden/*.txt anew; look at the difference before you commit")
    parser.addoption("--patient", action="store_true",
                     help="no deadline below 5 s, since other work may share the machine")
    parser.addoption("--call", default="", metavar="WORDS",
                     help="of tests/mpi/test_calls.py, only calls with these words in their title")
    parser.addoption("--bare", action="store_true",
                     help="follow the README in environments of its own: minutes, and the network")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    sample(items)
    if not config.getoption("--bare"):
        for item in items:
            if item.get_closest_marker("bare"):
                item.add_marker(pytest.mark.skip(reason="asked for with --bare: make walk"))
    if "long" not in config.option.markexpr:
        for item in items:
            if item.get_closest_marker("long"):
                item.add_marker(pytest.mark.skip(reason="asked for with -m long: make long"))


def sample(items):
    """Of a function marked ``slow(every=10)``, take the mark from its cases 1, 11, 21 and so on.

    Of the other nine in ten every fourth stays in ``make check``; the rest is ``long``, too.
    """
    cases, others = Counter(), Counter()
    for item in items:
        name = item.nodeid.partition("[")[0]
        marks = [mark for mark in item.iter_markers() if mark.kwargs == {"every": 10}]
        if [mark.name for mark in marks] == ["slow"] and cases[name] % 10:
            if others[name] % 4:
                item.add_marker(pytest.mark.long)
            others[name] += 1
        item.own_markers = [mark for mark in item.own_markers
                            if mark.name not in ("slow", "long") or "every" not in mark.kwargs
                            or cases[name] % mark.kwargs["every"]]
        cases[name] += 1


@pytest.hookimpl(trylast=True)
def pytest_collection_finish():
    """Take modules and tests, which stay, out of what each collection of garbage walks through."""
    gc.collect()
    gc.freeze()
