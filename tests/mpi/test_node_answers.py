"""Tests of the MPI library in child processes: how many the ranks of a node start."""

import subprocess
import time
from types import SimpleNamespace

import numpy
import pytest
from mpi4py import MPI

import hpccoll
from hpccoll import cuda
from hpccoll.cuda import device, device_probes
from hpccoll.cuda.node_answers import NodeAnswers
from support.gpu.device import installed
from support.gpu.streams import Devices

pytestmark = pytest.mark.mpi(min_size=2)
WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.rank, WORLD.size
PROBE = device.probe_mpi


@pytest.fixture
def machine():
    return Devices()


@pytest.fixture
def started(monkeypatch, machine):
    """The processes that this rank starts to test the MPI library; each fails late."""
    found = []

    def run(command, **how):
        found.append(command)
        time.sleep(0.2)  # the others come meanwhile
        return SimpleNamespace(returncode=-11)

    answers = NodeAnswers()
    for module in device, device_probes, cuda:
        monkeypatch.setattr(module, "NODE_ANSWERS", answers)
    with installed(False, machine):
        monkeypatch.setattr(subprocess, "run", run)
        monkeypatch.setattr(device, "probe_mpi", PROBE)
        PROBE.cache_clear()
        yield found
    PROBE.cache_clear()


def use(comm):
    cupy = device.device_namespace()
    array = cupy.asarray(numpy.ones(5))
    for _ in range(3):
        array[...] = cupy.asarray(numpy.ones(5))
        comm.Allreduce(MPI.IN_PLACE, array)
        assert (cupy.asnumpy(array) == SIZE).all()


def count(started):
    return WORLD.allreduce(len(started), MPI.SUM)


def community():
    comm = hpccoll.Comm(MPI.Intracomm(WORLD.Dup()))
    assert comm.layout is not None  # sets it up
    return comm


def test_one_rank_of_a_node_starts_one(started):
    for _ in range(2):
        comm = community()
        use(comm)
        assert count(started) == 1 and "killed by signal 11" in PROBE().why
        comm.Free()


def test_ranks_of_other_devices_start_their_own(started, machine):
    machine.first = RANK
    comm = community()
    use(comm)
    assert len(started) == 1
    comm.Free()


def test_one_rank_alone_does_not_wait(started):
    comm = community()
    if RANK == SIZE - 1:
        assert not comm.moves_device_memory
    assert count(started) == 1
    use(comm)
    assert count(started) == 1
    comm.Free()


def test_where_ranks_cannot_share_a_file_each_starts_one(started, monkeypatch):
    monkeypatch.setattr("hpccoll.transport.shm.mapping.DIRECTORY", "/nowhere")
    comm = community()
    use(comm)
    assert count(started) == SIZE
    comm.Free()


def test_the_data_paths_of_ranks_are_tested_once(started):
    comm = community()
    assert "killed by signal 11" in comm.ways
    use(comm)
    assert count(started) == 1
    comm.Free()
