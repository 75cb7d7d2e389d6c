"""Slow proofs are skipped here unless they are asked for: ``pytest -m slow tests/scale``"""

import pytest


def pytest_runtest_setup(item):
    if item.get_closest_marker("slow") and "slow" not in item.config.option.markexpr:
        pytest.skip("takes a minute; ask for it with -m slow")

#: Runs under the system's Python, which has SimGrid; this one need not.
collect_ignore = ["simgrid_platform.py"]
