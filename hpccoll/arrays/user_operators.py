"""User-defined operators, also for device arrays.

    hypot = hpccoll.Op.Create(function, commute=True, device="sqrt(a * a + b * b)")

MPI calls ``function`` on host memory. ``device`` is the operator for device memory: a CUDA C
expression, which :mod:`hpccoll.cuda` compiles to a kernel, or a function of two arrays of CuPy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mpi4py import MPI

from hpccoll.errors import ArgumentTypeError

#: Operator for device arrays: an expression, or a function that returns the result.
OnDevice = str | Callable[[Any, Any], Any]
REMEDY = "pass a CUDA C expression of a and b, or a function of two CuPy arrays"


class Op(MPI.Op):
    """User-defined operator, also for arrays of GPUs.

    Attributes:
        device: the operator for these arrays.
        elementwise: element i of the result depends on elements i of the operands alone, so that
            algorithms may split vectors.
    """

    device: OnDevice | None = None
    elementwise = False

    @classmethod
    def Create(cls, function: Callable[[Any, Any, MPI.Datatype], None], commute: bool = False,
               device: OnDevice | None = None, elementwise: bool = False) -> Op:
        """Create an operator, as ``MPI.Op.Create``.

        Args:
            function: called with two buffers, ``a`` and ``b``, and their type; writes ``a op b`` to
                ``b``. ``a`` is from lower ranks.
            commute: True if the operator commutes.
            device: the operator for memory of a GPU: a CUDA C expression of the elements ``a`` and
                ``b``, such as ``"a > b ? a : b"``; or a function of two arrays of CuPy that returns
                ``a op b``, such as ``cupy.logaddexp``. By default device arrays are copied to the
                host for ``function``.
            elementwise: element i of the result depends on elements i of the operands alone;
                implied by ``device``. Otherwise ``function`` gets whole vectors, such as matrices.

        Raises:
            ArgumentTypeError: ``device`` is neither text nor a function.
        """
        if device is not None and not (device.strip() if isinstance(device, str)
                                       else callable(device)):
            raise ArgumentTypeError("device", f"expected an expression of a and b, got {device!r}",
                                    REMEDY)
        made: Op = super().Create(function, commute)
        made.device, made.elementwise = device, elementwise or device is not None
        return made
