"""Fixtures of the tests about choices."""

import pytest
from mpi4py import MPI


@pytest.fixture
def left_only():
    """An operator that does not commute."""
    op = MPI.Op.Create(lambda one, two, datatype: None, commute=False)
    yield op
    op.Free()
