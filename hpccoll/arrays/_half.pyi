from typing import Any

import numpy

class Kernel:
    def __init__(self, ufunc: numpy.ufunc, bfloat16: bool): ...
    def __call__(self, left: numpy.ndarray[Any, Any], right: numpy.ndarray[Any, Any],
                 into: numpy.ndarray[Any, Any],
                 rounded: numpy.ndarray[Any, Any] | None = ...) -> None: ...
