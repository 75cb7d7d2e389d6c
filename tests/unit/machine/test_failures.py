"""Whether ranks can go on without one that died, and if not, why."""

import pytest
from mpi4py import MPI

from hpccoll.machine import failures


@pytest.mark.parametrize("environ, library, known, reason", [
    ({}, "MPICH 5.0.2", False, "MPICH 5.0.2 has no ULFM"),
    ({}, "Open MPI 5.0.11", True, "mpirun --with-ft ulfm"),
    ({failures.SWITCH: "0"}, "Open MPI 5.0.11", True, "started without"),
    ({failures.SWITCH: "1"}, "Open MPI 5.0.11", True, ""),
    ({failures.SWITCH: "true"}, "Open MPI 5.0.11", True, ""),
    ({failures.SWITCH: "1"}, "Open MPI 4.1.0", False, "has no ULFM"),
    ({}, "Another MPI 1.0", True, "")])
def test_the_reason(environ, library, known, reason):
    found = failures.ulfm_missing(environ, library, known)
    assert reason in found and bool(reason) == bool(found)


class Communicator:
    """Its library says that some ranks have died."""

    def __init__(self, dead):
        self.dead = dead

    def Get_group(self):
        return MPI.COMM_SELF.Get_group()

    def Get_size(self):
        return 1

    def Get_failed(self):
        return MPI.COMM_SELF.Get_group() if self.dead else MPI.GROUP_EMPTY


def test_the_dead_as_ranks_of_the_communicator():
    assert failures.failed_ranks(Communicator(True)) == (0,)
    assert failures.failed_ranks(Communicator(False)) == ()


def test_errors_that_may_be_about_the_dead():
    assert failures.may_be_rank_failure(MPI.Exception(MPI.ERR_IN_STATUS))
    assert not failures.may_be_rank_failure(MPI.Exception(MPI.ERR_TRUNCATE))
    assert not failures.may_be_rank_failure(ValueError())
