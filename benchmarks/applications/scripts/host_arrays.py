"""Plugin of pytest: hides two kinds of arrays from mpi4py's own tests.

Numba's need a GPU. The DLPack capsules that the tests make by hand free their memory too early for
consumers that keep it, such as NumPy.
"""

import sys

sys.modules["numba"] = sys.modules["dlpackimpl"] = None  # type: ignore[assignment]
