"""The memory of an object, on the host and on a device."""

import numpy
import pytest

from hpccoll.calls.memory import is_staged, memory_of, stage_spec
from hpccoll.calls.native import NativeOnly
from hpccoll.errors import ArgumentTypeError, BufferArgumentError
from support.gpu.device import installed
from support.gpu.tensors import StubbornDeviceArray


def test_host_memory_is_used_as_it_is():
    matrix = numpy.arange(6.0).reshape(2, 3)
    for given in (matrix, matrix.T, memoryview(matrix)):
        flat, namespace, store = memory_of(given, "b", True)
        assert flat.tolist() == [0, 1, 2, 3, 4, 5] and numpy.shares_memory(flat, matrix)
        assert namespace is numpy and store is None


def test_memory_that_cannot_serve():
    frozen = numpy.zeros(2)
    frozen.flags.writeable = False
    with pytest.raises(BufferArgumentError, match="^b: .*read-only"):
        memory_of(frozen, "b", True)
    with pytest.raises(BufferArgumentError, match="^b: .*contiguous"):
        memory_of(numpy.zeros(4)[::2], "b", False)
    for other in (5, numpy.zeros(2, "O"), numpy.zeros(2, ">i4")):
        with pytest.raises(NativeOnly):
            memory_of(other, "b", False)
    assert memory_of(numpy.zeros(2, ">i4"), "b", False, typed=True)[0].size == 2


@pytest.mark.parametrize("cuda_aware", [False, True])
def test_device_memory_is_moved_or_staged(cuda_aware):
    with installed(cuda_aware) as cupy:
        array = cupy.asarray(numpy.arange(3.0))
        assert is_staged(array) is is_staged([array, 3]) is not cuda_aware
        assert not is_staged(numpy.zeros(3)) and not is_staged([])
        flat, namespace, through = memory_of(array, "b", True)
        assert namespace is (cupy if cuda_aware else numpy) and (through is None) is cuda_aware
        if not cuda_aware:
            host, bring = stage_spec([array, 2], "b")
            host[0][:] = 7
            bring()
            assert array.raw.tolist() == [7, 7, 7] and host[1] == 2


@pytest.mark.parametrize("cuda_aware", [False, True])
def test_elements_without_a_type_in_cupy(cuda_aware, monkeypatch):
    """Where the MPI library moves device memory, mpi4py may know what they are."""
    with installed(cuda_aware) as cupy:
        array = cupy.asarray(numpy.arange(3.0))

        def asarray(obj):
            raise TypeError("bfloat16 is unknown")

        monkeypatch.setattr(cupy, "asarray", asarray)
        if cuda_aware:
            with pytest.raises(NativeOnly):
                memory_of(array, "b", False)
        else:
            with pytest.raises(ArgumentTypeError, match="^b: .*CuPy.*bfloat16"):
                memory_of(array, "b", False)


def test_device_memory_that_raises_when_it_is_asked():
    with pytest.raises(ArgumentTypeError, match="^b: .*gradients"):
        memory_of(StubbornDeviceArray(), "b", False)
