"""Tests here start jobs of their own, with the launcher of the environment they run in."""

import sys
from pathlib import Path

import launch
import pytest

BIN = Path(sys.executable).parent


@pytest.fixture
def capture(tmp_path):
    """Run ``capture(program, arguments...)``; return its status and everything it printed."""
    def run(*command, cwd=launch.ROOT, seconds=60):
        with open(tmp_path / "output", "w+b") as output:
            status = launch.run([str(word) for word in command], BIN, seconds, output, cwd)
            output.seek(0)
            return status, output.read().decode(errors="replace")

    return run


@pytest.fixture
def job(capture):
    """Run ``job(ranks, program, arguments...)`` with the launcher, likewise."""
    launcher = launch.mpiexec(BIN)
    if launcher is None:
        pytest.skip("there is no mpiexec in this environment")
    return lambda ranks, *command, **options: capture(launcher, "-n", ranks, *command, **options)
