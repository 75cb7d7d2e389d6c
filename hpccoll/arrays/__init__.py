"""Host arrays: reduction kernels, 16-bit floats, exact sums; no communication.

    kernels.py  ``into = left op right`` for an operator and a dtype
    half.py     the kernels of 16-bit floats
    exact.py    inputs without rounding, and the expected results
    user_operators.py  user-defined operators, also for device memory
    binned.py   sums that do not depend on the order; reproducible.py: their public class

:mod:`hpccoll.cuda` has the kernels of device memory. A new kernel is a branch of
``kernels.kernel``, its ufunc a line of ``UFUNCS``, its meaning a line of ``exact.MEANING``.
"""
