"""Registered device memory on real ranks, each with a double of CUDA: they share it in a folder."""

import tempfile
from pathlib import Path

import numpy
import pytest
from mpi4py import MPI

import hpccoll
from hpccoll.testing.device import installed
from hpccoll.testing.streams import Devices

pytestmark = pytest.mark.mpi(min_size=2)
WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.rank, WORLD.size
COUNTS = 1, SIZE + 1, 3001


@pytest.fixture
def machine():
    return Devices()


@pytest.fixture
def folder():
    with tempfile.TemporaryDirectory() as folder:
        yield Path(WORLD.bcast(folder))
        WORLD.Barrier()


@pytest.fixture
def cupy(machine, folder):
    """A double of CuPy that the MPI library knows nothing of, with a current stream."""
    with installed(False, machine, folder) as cupy, cupy.cuda.Stream(non_blocking=True):
        yield cupy
    WORLD.Barrier()
    assert not list(folder.glob("*.freed-while-open*"))


def community(**how):
    return hpccoll.Comm(MPI.Intracomm(WORLD.Dup()), **how)


def test_allreduce(cupy, machine):
    comm = community()
    x = comm.empty(3001, "f4", cupy)
    y = comm.empty(3001, "f4", cupy)
    for name in ("ring", "rabenseifner", "recursive_doubling"):
        with comm.using(allreduce=name, segment_bytes=4096):
            for turn in range(3):
                x[...] = cupy.asarray(numpy.arange(3001, dtype="f4") + RANK + turn)
                comm.Allreduce(x, y)
                after = y.copy()
                y[...] = x
                wanted = (numpy.arange(3001) + turn) * SIZE + SIZE * (SIZE - 1) // 2
                found = cupy.asnumpy(after)
                assert (found == wanted).all(), (name, turn, found, wanted)
    comm.Free()
