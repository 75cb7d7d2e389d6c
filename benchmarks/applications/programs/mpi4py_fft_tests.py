"""mpi4py-fft, parallel Fourier transforms."""

from __future__ import annotations

from applications.program import Program

PROGRAM = Program(
    name="mpi4py-fft", version="2.0.6", packages=("mpi4py-fft==2.0.6",), sdist="mpi4py-fft==2.0.6",
    words=("{here}/scripts/suite.py", "{sources}/tests"),
    right="its own tests pass", timed="its own tests", modules=("mpi4py_fft",), ranks=(2, 2))
