"""Registered device memory on real ranks: what its tests share."""

import tempfile
from contextlib import contextmanager
from pathlib import Path

import numpy
import pytest
from mpi4py import MPI

import hpccoll
from hpccoll.cuda import registered
from support.gpu.device import installed
from support.gpu.streams import Devices

WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.rank, WORLD.size


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


@contextmanager
def counted(monkeypatch):
    """Names of what ran on registered memory."""
    found, made = [], registered.RegisteredCall.finish
    monkeypatch.setattr(registered.RegisteredCall, "finish",
                        lambda self: (found.append(self), made(self)))
    yield found


def given(count, dtype, turn=0, rank=RANK):
    return ((numpy.arange(count) * 3 + rank + turn) % 11 + 1).astype(dtype)
