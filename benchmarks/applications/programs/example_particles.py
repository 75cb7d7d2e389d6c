"""Particles between slabs of a box, an example of this repository."""

from __future__ import annotations

from applications.program import Program

PROGRAM = Program(
    name="example: particles", version="", packages=(),
    words=("{here}/scripts/checked.py", "{here}/../../examples/particles.py"),
    right="no particle is lost, the energy stays the same",
    timed="200 steps, with counts that change in each")
