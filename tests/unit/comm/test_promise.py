"""The promise that all ranks pass device arrays, on one rank and the double of a GPU."""

import numpy
import pytest
from mpi4py import MPI

import hpccoll
from hpccoll.comm import blocking
from hpccoll.comm.promise import check_promise
from hpccoll.errors import ArgumentError
from support.gpu.device import installed
from support.gpu.streams import Devices
from support.gpu.tensors import StubbornDeviceArray

HOST = numpy.ones(4)


@pytest.fixture
def cupy():
    with installed(False, Devices()) as cupy:
        yield cupy


def test_unknown_devices_and_a_missing_library():
    with pytest.raises(ArgumentError, match="device: 'gpu' is unknown"):
        hpccoll.Comm(MPI.COMM_SELF, device="gpu")
    with pytest.raises(ArgumentError, match="CuPy is not installed; install"):
        hpccoll.Comm(MPI.COMM_SELF, device="cuda")


@pytest.mark.parametrize("name, call", [
    ("recvbuf", lambda comm, x: comm.Allreduce(x, HOST)),
    ("sendbuf", lambda comm, x: comm.Allreduce(HOST, x)),
    ("recvbuf", lambda comm, x: comm.Allreduce(MPI.IN_PLACE, [HOST, 4])),
    ("buf", lambda comm, x: comm.Bcast(HOST)),
    ("sendbuf", lambda comm, x: comm.Gatherv(bytearray(8), [x, [8]])),
    ("recvbuf", lambda comm, x: comm.Alltoallw([x, ([1], [0]), [MPI.INT]],
                                               [HOST, ([1], [0]), [MPI.INT]])),
    ("recvbuf", lambda comm, x: comm.Iallreduce(x, HOST)),
    ("recvbuf", lambda comm, x: comm.Allreduce_init(x, HOST))])
def test_host_memory_is_an_error_that_names_it(cupy, name, call):
    comm = hpccoll.Comm(MPI.COMM_SELF.Dup(), device="cuda")
    x = cupy.asarray(numpy.arange(4.0))
    for _ in range(2):
        with pytest.raises(ArgumentError, match=f"{name}: is in host memory .*device='cuda'"):
            call(comm, x)
    y = cupy.empty(4)
    comm.Allreduce(x, y)  # nothing is broken
    assert list(cupy.asnumpy(y)) == [0, 1, 2, 3]
    comm.Barrier()
    assert comm.allreduce(3) == 3  # Python objects are host memory
    comm.Free()


def test_without_the_promise_host_memory_is_no_error(cupy):
    comm = hpccoll.Comm(MPI.COMM_SELF.Dup(), device=None)
    comm.Allreduce(HOST, numpy.empty(4))
    assert hpccoll.Comm(comm, device="cuda").Dup()._device == ""  # as the other options
    comm.Free()


def test_arguments_that_are_no_memory_are_left_to_the_resolver(cupy):
    for args in ((None, None, 0), (MPI.IN_PLACE, None), ([None, 0, MPI.INT], MPI.BOTTOM, 0),
                 (StubbornDeviceArray(), cupy.empty(2))):
        check_promise(blocking.GATHER, args, "cuda")
    check_promise(blocking.BARRIER, (), "cuda")
