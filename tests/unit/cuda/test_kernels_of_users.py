"""Operators of the program's own on device memory: in order, in one pass, as the host has them."""


import numpy
import pytest
from mpi4py import MPI

import hpccoll
from hpccoll.calls import resolve
from hpccoll.calls.call import on_host
from hpccoll.calls.datatypes import datatype_of
from hpccoll.cuda import kernels
from hpccoll.cuda.kernels import ExpressionKernel, has_kernel, kernel_for
from hpccoll.errors import ArgumentTypeError
from hpccoll.errors.mpi import OperatorError
from hpccoll.ir.operators import OPERATORS
from support.gpu import cuda_on_host
from support.gpu.device import installed
from support.gpu.kernel_types import types_of

pytestmark = pytest.mark.skipif(cuda_on_host.compiler() is None, reason="no compiler of C++")


def hypot(left, right, datatype):
    """An operator of float32 on the host."""
    a, b = numpy.frombuffer(left, "f4"), numpy.frombuffer(right, "f4")
    b[...] = numpy.sqrt(a * a + b * b)


def test_a_communicator_takes_them():
    comm = hpccoll.Comm(MPI.COMM_SELF)
    op = hpccoll.Op.Create(hypot, commute=True, device="sqrtf(a * a + b * b)")
    assert isinstance(op, MPI.Op) and op.Is_commutative()
    for algorithm in ("ring", "native"):
        for cuda_aware in (True, False):
            with installed(cuda_aware) as cupy, comm.using(allreduce=algorithm):
                x, y = cupy.asarray(numpy.arange(5, dtype="f4")), cupy.empty(5, "f4")
                comm.Allreduce(x, y, op)
                if algorithm != "native":  # which brings no device memory to the host there
                    comm.Iallreduce(MPI.IN_PLACE, y, op).Wait()
                assert list(cupy.asnumpy(y)) == [0, 1, 2, 3, 4]
    op.Free()


@pytest.mark.slow(every=10)
@pytest.mark.parametrize("dtype", {str(dtype): dtype for name in OPERATORS
                                   for dtype in types_of(name)}.values(), ids=str)
def test_every_type_that_kernels_have(dtype):
    """The second of two operands, told in a way that is none of MPI's operators."""
    with installed(True) as cupy:
        for text, picked in ("b", 1), ("a", 0):
            made = ExpressionKernel(cupy, text, dtype)
            pair = [numpy.random.default_rng(seed).integers(
                0, 2 if dtype.kind == "b" else 100, 37 * dtype.itemsize, "u1")[
                    :37 * dtype.itemsize].view(dtype) for seed in (1, 2)]
            arrays, into = [cupy.asarray(one) for one in pair], cupy.empty(37, dtype)
            made(*arrays, into)
            assert cupy.asnumpy(into).tobytes() == pair[picked].tobytes()


@pytest.mark.slow
def test_what_is_computed_is_an_element_after_each_step():
    """A chain of 16-bit floats is rounded, of booleans 0 or 1, of small integers wrapped around."""
    cases = [("f2", "a + b", [2048, 1, 1], 2048), ("?", "a + b", [True, True, True], True),
             ("i1", "a + b", [100, 100, 100], 44), ("i4", "a > b\n ? a : b", [3, 7, 5], 7)]
    with installed(True) as cupy:
        for dtype, text, terms, wanted in cases:
            made = ExpressionKernel(cupy, text, numpy.dtype(dtype))
            arrays, into = [cupy.asarray(numpy.full(5, one, dtype)) for one in terms], cupy.empty(
                5, dtype)
            made.fold(kernels.Combination(tuple(arrays), 0, (into,)))
            assert cupy.asnumpy(into).tobytes() == numpy.full(5, wanted, dtype).tobytes()


def test_where_they_can_be_applied():
    f4, both = numpy.dtype("f4"), hpccoll.Op.Create(hypot, device="a")
    neither = hpccoll.Op.Create(hypot)
    with installed(True) as cupy:
        assert has_kernel(both, f4, cupy) and has_kernel(both, f4, numpy)
        assert not has_kernel(neither, f4, cupy) and has_kernel(neither, f4, numpy)
        assert not has_kernel(both, numpy.dtype("g"), cupy)
    for op in (both, neither):
        op.Free()


@pytest.mark.parametrize("device", ["", "  ", 3, ["a"]])
def test_what_is_no_operator_for_devices(device):
    with pytest.raises(ArgumentTypeError, match="device: .*CUDA"):
        hpccoll.Op.Create(hypot, device=device)


@pytest.mark.parametrize(("device", "said"), [
    ("a +*", r"'a \+\*'.*float32: \S"),
    ("a + c", r"'a \+ c'.*float32.*c"),
    (lambda a, b: None, "None.*arrays"),
    (lambda a, b: a[:2], r"DeviceArray.*\(2,\).*5 elements"),
    (lambda a, b: numpy.zeros(5), r"ndarray.*\(5,\)")])
def test_what_is_wrong_is_said_in_plain_words(device, said):
    f4, op = numpy.dtype("f4"), hpccoll.Op.Create(hypot, device=device)
    with installed(True) as cupy:
        apply, array = kernel_for(op, f4, datatype_of(f4), cupy), cupy.asarray(numpy.ones(5, "f4"))
        with pytest.raises(OperatorError, match=f"op: .*{said}.*CUDA"):
            apply(array, array, array)
    op.Free()


def test_staged_calls_use_the_function_of_the_host():
    op = hpccoll.Op.Create(hypot, device="neither here nor there")
    with installed(False) as cupy:
        source, sink = (cupy.asarray(numpy.ones(5, "f4")) for _ in range(2))
        call = on_host(resolve.allreduce(2, 0, source, sink, op))
        assert call.sink is not None and call.sink.namespace is numpy and call.op is op
    op.Free()
