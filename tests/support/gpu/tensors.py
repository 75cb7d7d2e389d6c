"""Doubles of other frameworks' arrays, which are no NumPy arrays and have no buffer protocol."""

import ctypes
from types import ModuleType, SimpleNamespace

import numpy

from support.gpu.streams import Stream

#: The place of an array's type code behind the start of a DLPack capsule's structure.
TYPE_CODE = 52
#: DLPack's codes of bfloat16 and of a type of 8 bits.
BFLOAT, FLOAT8_E4M3FN = 4, 10


class Tensor:
    """Host memory that says so by DLPack only, as PyTorch's tensors do."""

    def __init__(self, values=(0,) * 6, dtype="u2", code=None):
        self.array, self.code = numpy.array(values, dtype), code

    def __dlpack_device__(self):
        return 1, 0

    def __dlpack__(self, **how):
        capsule = self.array.__dlpack__(max_version=(1, 0))
        if self.code is not None:
            pointer = ctypes.pythonapi.PyCapsule_GetPointer
            pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
            start = pointer(capsule, b"dltensor_versioned")
            ctypes.c_uint8.from_address(start + TYPE_CODE).value = self.code
        return capsule


class StubbornTensor(Tensor):
    """A tensor that raises an error of its own when it is asked for its memory."""

    def __dlpack__(self, **how):
        raise RuntimeError("gradients are needed")


class StubbornDeviceArray:
    """Device memory that raises an error when it is asked whether it is any."""

    @property
    def __cuda_array_interface__(self):
        raise RuntimeError("gradients are needed")


class TorchType:
    """A type of elements by PyTorch's name; ``raw`` is the one by which NumPy holds them."""

    def __init__(self, name, raw=None):
        self.name, self.raw = name, numpy.dtype(raw or name)
        self.itemsize = self.raw.itemsize

    def __str__(self):
        return f"torch.{self.name}"


class DeviceTensor:
    """Device memory as PyTorch's tensors show it."""

    device = "cuda:0"

    def __init__(self, array, dtype=None):
        self.array, self.dtype = array, dtype
        self.__cuda_array_interface__ = array.__cuda_array_interface__

    def view(self, dtype):
        """The same memory as another type."""
        return DeviceTensor(self.array.view(dtype.raw), dtype)

    def reshape(self, shape):
        """The same memory in another shape."""
        return DeviceTensor(self.array.reshape(shape), self.dtype)

    def __setitem__(self, where, value):
        raw = self.array.dtype.kind == "V"  # NumPy has no such elements, but zeros of them
        (self.array.reshape(-1).view("u1") if raw else self.array)[where] = value


class TorchStream:
    """A stream by PyTorch's names."""

    def __init__(self, stream):
        self.stream = stream

    @property
    def cuda_stream(self):
        return self.stream.ptr

    def record_event(self):
        return self.stream.record()

    def __eq__(self, other):
        return self.cuda_stream == other.cuda_stream

    def wait_event(self, event):
        self.stream.wait_event(event)

    def wait_stream(self, other):
        self.wait_event(other.record_event())

    def synchronize(self):
        self.stream.synchronize()


def torch_cuda(machine):
    """What stands for ``torch.cuda``: every thread has a current stream of its own."""
    return SimpleNamespace(
        Stream=lambda device: TorchStream(Stream(machine, 0, non_blocking=True)),
        stream=lambda stream: stream.stream,
        current_stream=lambda device: TorchStream(machine.current()),
        is_current_stream_capturing=lambda: machine.current().is_capturing())


def torch_with(cupy, machine, available=True):
    """What stands for the module ``torch`` beside a double of CuPy."""
    module = ModuleType("torch")
    vars(module).update({name: TorchType(name) for name in ("float32", "float64", "int64")})
    module.bfloat16 = TorchType("bfloat16", "V2")
    module.Tensor, module.dtype, module.cuda = DeviceTensor, TorchType, torch_cuda(machine)
    module.cuda.is_available = lambda: available
    module.cuda.current_device = lambda: machine.device
    module.as_tensor = lambda data, device: DeviceTensor(cupy.asarray(data))
    module.empty = lambda shape, dtype, device: DeviceTensor(cupy.empty(shape, dtype.raw), dtype)
    return module


def torch_on(stream):
    """What stands for the module ``torch`` while that stream is its current one."""
    current = SimpleNamespace(cuda_stream=stream.ptr)
    return SimpleNamespace(Tensor=DeviceTensor, cuda=SimpleNamespace(
        current_stream=lambda device: current))
