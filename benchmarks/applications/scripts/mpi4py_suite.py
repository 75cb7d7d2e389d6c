"""Run mpi4py's own tests in each rank with its own runner, and report which passed.

    python -m mpi4py mpi4py_suite.py FOLDER [OPTIONS OF ITS main.py]

``FOLDER`` is ``test`` of mpi4py's source release. The exit status is 0 also if tests fail: MPI ends
in an orderly way, and the driver compares.
"""

from __future__ import annotations

import runpy
import sys
import time
import unittest
from contextlib import suppress
from pathlib import Path
from typing import Any


class Outcomes(unittest.TextTestResult):
    """Result that keeps the outcome of each test, of a subtest under its test."""

    passes: dict[str, bool] = {}
    seconds: dict[str, float] = {}

    def startTest(self, test: Any) -> None:
        """Start the clock of a test."""
        super().startTest(test)
        self.seconds[test.id()] = -time.monotonic()

    def stopTest(self, test: Any) -> None:
        """Stop the clock."""
        super().stopTest(test)
        self.seconds[test.id()] += time.monotonic()

    def addSuccess(self, test: Any) -> None:
        """Record a pass, unless a subtest failed."""
        super().addSuccess(test)
        self.passes.setdefault(test.id(), True)

    def addFailure(self, test: Any, err: Any) -> None:
        """Record a failure."""
        super().addFailure(test, err)
        self.passes[test.id()] = False

    def addError(self, test: Any, err: Any) -> None:
        """Record an error, also of a class or module."""
        super().addError(test, err)
        self.passes[test.id()] = False

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:
        """Record the failure of a subtest."""
        super().addSubTest(test, subtest, err)
        if err is not None:
            self.passes[test.id()] = False


def main(folder: str, words: list[str]) -> None:
    """Run the tests, and write the report of this rank."""
    from applications.results import report

    unittest.TextTestRunner.resultclass = Outcomes
    sys.argv = [str(Path(folder, "main.py")), *words]
    sys.path.insert(0, folder)
    with suppress(SystemExit):
        # As the main module: processes that tests spawn find the tests beside it.
        runpy.run_path(sys.argv[0], run_name="__main__")
    slowest = sorted(Outcomes.seconds, key=Outcomes.seconds.__getitem__)[:-11:-1]
    print(*(f"{Outcomes.seconds[name]:7.2f} s {name}" for name in slowest), sep="\n", flush=True)
    report(Outcomes.passes)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
