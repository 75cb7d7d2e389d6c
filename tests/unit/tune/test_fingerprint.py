"""Names of MPI libraries."""

import pytest

from hpccoll.tune import fingerprint


@pytest.mark.parametrize("text, expected", [
    ("Open MPI v5.0.11, package: Open MPI user@host", "Open MPI 5.0.11"),
    ("MPICH Version: 5.0.2 MPICH Release date: Fri", "MPICH 5.0.2"),
    ("Intel(R) MPI Library 2021.18 for Linux* OS", "Intel MPI 2021.18"),
    ("MVAPICH Version : 4.0 MVAPICH", "MVAPICH 4.0"), ("Something else", "Something else")])
def test_library_names(text, expected):
    assert fingerprint.library(text) == expected
