"""The memory of an object, on the host and on a device."""

from types import SimpleNamespace

import numpy
import pytest

from hpccoll.calls.memory import is_staged, memory_of, stage_spec
from hpccoll.calls.native import NativeOnly
from hpccoll.cuda import is_device
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
        array = SimpleNamespace(  # of another library
            __cuda_array_interface__=cupy.asarray(numpy.arange(3.0)).__cuda_array_interface__)

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


class Exporter:
    """Memory that only DLPack exports: of its first version, or of a later one."""

    def __init__(self, array):
        self.array = array

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def __dlpack__(self, stream=None):
        return self.array.__dlpack__()


class LaterExporter(Exporter):
    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)


def test_memory_of_the_first_dlpack_is_writable():
    """It has no flag for read-only memory; mpi4py writes to it."""
    values = numpy.zeros(6)
    for kind in (Exporter, LaterExporter):
        memory_of(kind(values), "b", True)[0][:] += 1
        assert (values == 1).all() or kind is LaterExporter and (values == 2).all()
    flat = memory_of(Exporter(numpy.arange(3.0)), "b", True)[0]  # keeps the memory
    assert flat.tolist() == [0.0, 1.0, 2.0]
    values.flags.writeable = False
    with pytest.raises(BufferArgumentError, match="read-only"):
        memory_of(LaterExporter(values), "b", True)


@pytest.mark.parametrize("kind", [3, 11])
def test_pinned_memory_is_host_memory(kind):
    """As of a tensor that ``pin_memory`` returned."""
    class Pinned:
        array = numpy.arange(4.0)

        def __dlpack_device__(self):
            return kind, 0

        def __dlpack__(self, **options):
            return self.array.__dlpack__()

    assert not is_device(Pinned())
