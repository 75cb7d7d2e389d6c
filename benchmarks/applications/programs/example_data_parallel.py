"""Data-parallel training, an example of this repository."""

from __future__ import annotations

from applications.program import Program

PROGRAM = Program(
    name="example: data-parallel training", version="", packages=(),
    words=("{here}/scripts/checked.py", "{here}/../../examples/data_parallel.py"),
    right="a small loss, and equal parameters on all ranks",
    timed="600 steps with one sum of gradients each")
