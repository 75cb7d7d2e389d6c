"""What all tests share: ``--update-golden``, ``--bare`` for what builds environments, and a look
for threads that a test leaves.
"""

import gc

import pytest

from support.left_threads import (  # noqa: F401
    pytest_runtest_setup,
    pytest_runtest_teardown,
)


def pytest_addoption(parser):
    parser.addoption("--update-golden", action="store_true",
                     help="write tests/golden/*.txt anew; look at the difference before you commit")
    parser.addoption("--call", default="", metavar="WORDS",
                     help="of tests/mpi/test_calls.py, only calls with these words in their title")
    parser.addoption("--bare", action="store_true",
                     help="follow the README in environments of its own: minutes, and the network")


def pytest_collection_modifyitems(config, items):
    if not config.getoption("--bare"):
        for item in items:
            if item.get_closest_marker("bare"):
                item.add_marker(pytest.mark.skip(reason="asked for with --bare: make walk"))
    if "long" not in config.option.markexpr:
        for item in items:
            if item.get_closest_marker("long"):
                item.add_marker(pytest.mark.skip(reason="asked for with -m long: make long"))


@pytest.hookimpl(trylast=True)
def pytest_collection_finish():
    """Take modules and tests, which stay, out of what each collection of garbage walks through."""
    gc.collect()
    gc.freeze()
