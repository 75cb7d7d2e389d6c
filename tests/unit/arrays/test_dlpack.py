"""Arrays over the memory of DLPack exporters."""

import ctypes
import sys

import numpy
import pytest

from hpccoll.arrays.dlpack import from_dlpack
from support.gpu.tensors import Tensor

FLOATS = numpy.arange(6.0)


class Exporter:
    """Exports an array, and spoils its memory when the capsule ends, consumed or not.

    mpi4py's own tests have such exporters.
    """

    def __init__(self, values):
        self.array = numpy.array(values)
        self.ended = 0
        # The destructor must outlive the capsule.
        self.destructor = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(self._end)

    def _end(self, capsule):
        self.ended += 1
        self.array[:] = -1

    def __dlpack_device__(self):
        return 1, 0

    def __dlpack__(self, stream=None):
        managed = self.array.__dlpack__()
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p,
                                                       type(self.destructor)]
        self.managed = managed
        return new(pointer(managed, b"dltensor"), b"dltensor", self.destructor)


def test_an_array_keeps_the_capsule_and_nothing_else():
    exporter = Exporter([1.0, 2.0, 3.0])
    array = from_dlpack(exporter)
    part = array[1:]
    del array
    assert part.tolist() == [2.0, 3.0] and not exporter.ended
    part[0] = 7.0
    assert exporter.array[1] == 7.0
    del part
    assert exporter.ended == 1


def test_references_are_released():
    values = numpy.arange(4.0)
    before = sys.getrefcount(values)
    for _ in range(5):
        from_dlpack(values)
    assert sys.getrefcount(values) == before


@pytest.mark.parametrize("dtype", "? i1 i2 i4 i8 u1 u2 u4 u8 f2 f4 f8 c8 c16".split())
def test_types(dtype):
    array = numpy.arange(6).astype(dtype)
    found = from_dlpack(array)
    assert found.dtype == array.dtype and (found == array).all()
    assert numpy.shares_memory(found, array)


def test_types_of_ml_dtypes_and_of_nobody():
    found = from_dlpack(Tensor(dtype="u2", code=4, values=[0x3f80]))
    assert found.dtype.name == "bfloat16" and float(found[0]) == 1.0
    assert from_dlpack(Tensor(dtype="u1", code=10)).dtype.name == "float8_e4m3fn"
    for dtype, code in ("u2", 3), ("u4", 4), ("u1", 99):
        with pytest.raises(TypeError, match=f"type {code} with"):
            from_dlpack(Tensor(dtype=dtype, code=code))


@pytest.mark.parametrize("shape, order", [((6,), "C"), ((2, 3), "C"), ((2, 3), "F"), ((1, 6), "C"),
                                          ((), "C"), ((0, 3), "C"), ((3, 1, 2), "F")])
def test_shapes(shape, order):
    array = numpy.array(numpy.arange(numpy.prod(shape, dtype=int)).reshape(shape), order=order)
    assert from_dlpack(array).tolist() == array.ravel(order="K").tolist()


@pytest.mark.parametrize("array", [FLOATS[::2], FLOATS.reshape(2, 3)[:, :2], FLOATS[::-1]],
                         ids=["stride", "columns", "reversed"])
def test_gaps_are_an_error(array):
    with pytest.raises(BufferError, match="contiguous"):
        from_dlpack(array)


def test_an_offset_and_read_only_memory():
    assert from_dlpack(FLOATS[2:]).tolist() == [2.0, 3.0, 4.0, 5.0]
    frozen = FLOATS.copy()
    frozen.flags.writeable = False
    assert not from_dlpack(frozen).flags.writeable
