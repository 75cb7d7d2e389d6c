"""Tests here start jobs of their own and let something go wrong in them."""

import math
import sys
from pathlib import Path

import pytest

from hpccoll.tools.doctor.shm_cleanup import leftovers, remove

sys.path.append(str(Path(__file__).resolve().parent))  # jobs.py is used by a program too

import jobs


def pytest_configure(config):
    jobs.SHORTEST = 5.0 if config.getoption("--patient") else 0.0


@pytest.fixture(scope="module", autouse=True)
def tidied():
    """Remove what the MPI library has left of the ranks that were killed."""
    yield
    remove(leftovers(now=math.inf))
