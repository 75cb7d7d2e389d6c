"""TOAST, analysis of telescopes' time-ordered data: some of its own tests."""

from __future__ import annotations

from applications.program import Program

PROGRAM = Program(
    name="TOAST", version="2.3.14", packages=("toast-cmb==2.3.14",),
    words=("{here}/scripts/suite.py", "--pyargs", "toast.tests.dist", "toast.tests.observation",
           "toast.tests.ops_mapmaker", "-k", "not offset and not pattern"),
    right="its own tests pass", timed="its tests of distribution, observations and map-making",
    modules=("toast",))
