"""Run a program's own tests with pytest in each rank, and report which passed.

    python -m mpi4py suite.py [PYTEST OPTIONS] FILE...

The exit status is 0 also if tests fail: MPI ends in an orderly way, and the driver compares.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path


class Outcomes:
    """Plugin of pytest: the outcome of each test."""

    def __init__(self) -> None:
        self.passes: dict[str, bool] = {}

    def pytest_runtest_logreport(self, report) -> None:
        """Record a test that ran, and one whose set-up or clean-up failed."""
        if report.when == "call" and not report.skipped or report.failed:
            name = f"{Path(report.location[0]).name}::{report.nodeid.partition('::')[2]}"
            self.passes[name] = self.passes.get(name, True) and report.passed


def main(words: list[str]) -> None:
    """Run the tests, and write the report of this rank."""
    import pytest

    from applications.results import report

    outcomes = Outcomes()
    status = pytest.main(["-q", "-p", "no:cacheprovider", "-c", os.devnull,
                          "--rootdir", os.getcwd(), "--import-mode=importlib", *words],
                         plugins=[outcomes])
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        outcomes.passes["the suite"] = False
    report(outcomes.passes)


if __name__ == "__main__":
    main(sys.argv[1:])
