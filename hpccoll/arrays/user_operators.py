"""Operators of the program's own, which say how arrays of a device are combined.

    hypot = hpccoll.Op.Create(function, commute=True, device="sqrt(a * a + b * b)")

``function`` is what MPI calls, on host memory. ``device`` is the same for memory of a device: text
of CUDA C, which becomes a kernel as those of MPI's operators are (:mod:`hpccoll.cuda`), or a
function of two arrays of CuPy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mpi4py import MPI

from hpccoll.errors import ArgumentTypeError

#: What combines two arrays of a device: an expression, or a function that returns the result.
OnDevice = str | Callable[[Any, Any], Any]
REMEDY = "pass a CUDA C expression of a and b, or a function of two CuPy arrays"


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
            raise ArgumentTypeError("device", f"expected an expression of a and b, got {device!r}",
                                    REMEDY)
        made: Op = super().Create(function, commute)
        made.device, made.elementwise = device, elementwise or device is not None
        return made
