"""What tests of the runtime share."""

import pytest
from mpi4py import MPI


@pytest.fixture
def comm():
    """A communicator of this rank alone."""
    made = MPI.Intracomm(MPI.COMM_SELF).Dup()
    yield made
    made.Free()
