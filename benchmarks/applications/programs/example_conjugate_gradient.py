"""Conjugate gradients, an example of this repository."""

from __future__ import annotations

from applications.program import Program

PROGRAM = Program(
    name="example: conjugate gradients", version="", packages=(),
    words=("{here}/scripts/checked.py", "{here}/../../examples/conjugate_gradient.py"),
    right="the known solution, to 1e-9",
    timed="387 iterations with two small sums each")
