"""Operators of the program's own, which say how arrays of a device are combined.

    hypot = hpccoll.Op.Create(function, commute=True, device="sqrt(a * a + b * b)")

``function`` is what MPI calls, on host memory. ``device`` is the same for memory of a device: text
of CUDA C, which becomes a kernel as those of MPI's operators are (:mod:`hpccoll.arrays.cuda`), or a
function of two arrays of CuPy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
from mpi4py import MPI

from hpccoll.arrays.cuda import Combination, DeviceKernel, element
from hpccoll.errors import ArgumentTypeError
from hpccoll.errors.mpi import OperatorError

#: What combines two arrays of a device: an expression, or a function that returns the result.
OnDevice = str | Callable[[Any, Any], Any]
REMEDY = "give an expression of CUDA C in a and b, or a function of two arrays of CuPy"


class Op(MPI.Op):
    """An operator of the program's own, also for arrays of GPUs.

    Attributes:
        device: how these are combined.
        elementwise: element i of the result depends on elements i of the operands alone, so that
            vectors may be combined in pieces.
    """

    device: OnDevice | None = None
    elementwise = False

    @classmethod
    def Create(cls, function: Callable[[Any, Any, MPI.Datatype], None], commute: bool = False,
               device: OnDevice | None = None, elementwise: bool = False) -> Op:
        """Make an operator, as ``MPI.Op.Create`` does.

        Args:
            function: called with two buffers, ``a`` and ``b``, and their type; it writes
                ``a op b`` to the second one. ``a`` comes from lower ranks.
            commute: whether operands may change places.
            device: the same for memory of a GPU: an expression of CUDA C in the elements ``a`` and
                ``b``, such as ``"a > b ? a : b"``; or a function of two arrays of CuPy that returns
                ``a op b``, such as ``cupy.logaddexp``. Without it, data of device arrays is
                combined by ``function``, on the host.
            elementwise: element i of the result depends on elements i of the operands alone, as
                ``device`` implies. Algorithms that cut vectors may then serve the operator; without
                it ``function`` gets whole vectors, such as matrices.

        Raises:
            ArgumentTypeError: ``device`` is neither.
        """
        if device is not None and not (device.strip() if isinstance(device, str)
                                       else callable(device)):
            raise ArgumentTypeError("device", f"expected how to combine a and b, got {device!r}",
                                    REMEDY)
        made: Op = super().Create(function, commute)
        made.device, made.elementwise = device, elementwise or device is not None
        return made


def has_device_kernel(op: MPI.Op, dtype: numpy.dtype) -> bool:
    """Tell whether an operator of the program's can be applied to device memory."""
    return getattr(op, "device", None) is not None and element(dtype) is not None


def device_kernel(op: MPI.Op, dtype: numpy.dtype, namespace: Any) -> Callable[..., None] | None:
    """The kernel of an operator of the program's own; ``None`` where it has none for devices."""
    device: OnDevice | None = getattr(op, "device", None)
    if device is None:
        return None
    if isinstance(device, str):
        return ExpressionKernel(namespace, device, dtype)
    return _called(device, dtype)


class ExpressionKernel(DeviceKernel):
    """The kernel of an expression: one pass over up to eight operands, as any other kernel."""

    def __init__(self, namespace: Any, text: str, dtype: numpy.dtype):
        super().__init__(namespace, "user", dtype, define(text, dtype))
        self.text, self.compiled = text, False

    def fold(self, fold: Combination) -> None:
        """Queue the combination of all operands.

        Raises:
            OperatorError: the expression is none, or not for this type.
        """
        if not self.compiled:
            try:
                _ = self.raw.kernel  # compiles it, if that has not been done
            except Exception as error:
                raise _refused(f"its expression {self.text!r} cannot be compiled for {self.dtype}: "
                               f"{_first_error(error)}") from error
            self.compiled = True
        super().fold(fold)


def define(text: str, dtype: numpy.dtype) -> str:
    """The lines before the kernel's source that make an expression its operator."""
    expression = f"({' '.join(text.split())})"
    return f"#define EXPRESSION {expression}{' != 0' * (dtype.kind == 'b')}\n"


def _first_error(error: Exception) -> str:
    """What a compiler says first of what is wrong."""
    lines = str(error).splitlines() or [type(error).__name__]
    return next((line.partition("error:")[2].strip() for line in lines if "error:" in line),
                lines[0])


def _called(function: Callable[[Any, Any], Any], dtype: numpy.dtype) -> Callable[..., None]:
    """A function of arrays as a kernel."""
    def apply(left: Any, right: Any, into: Any) -> None:
        result = function(left, right)
        if getattr(result, "shape", None) != into.shape or isinstance(result, numpy.ndarray):
            got = (repr(result) if not hasattr(result, "shape") else
                   f"a {type(result).__name__} of shape {result.shape}")
            raise _refused(f"its device function returned {got} for two arrays of {into.size} "
                           f"elements of {dtype}")
        into[...] = result

    return apply


def _refused(problem: str) -> OperatorError:
    return OperatorError("op", problem, REMEDY)
