"""The types that each operator has a kernel for on devices."""

from __future__ import annotations

import numpy

from hpccoll.cuda import kernels
from hpccoll.ir.operators import OPERATORS


def types_of(operator: str) -> list[numpy.dtype]:
    """The dtypes; bfloat16 where its package is installed."""
    known = OPERATORS[operator]
    if known.pairs:
        return [numpy.dtype([("value", value), ("index", "i4")]) for value in kernels.PAIRS]
    found = [numpy.dtype(f"{kind}{size}") for kind, size in kernels.ELEMENTS
             if known.defined_on(kind)]
    try:
        import ml_dtypes
    except ImportError:
        return found
    return found + [numpy.dtype(ml_dtypes.bfloat16)] * known.defined_on("f")
