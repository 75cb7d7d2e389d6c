"""Rules if all ranks pass device arrays: ``hpccoll.Comm(comm, device="cuda")``.

Measured with ``allreduce`` of float32 on one H100, shared by two and four ranks, with and without
MPS (docs/gpu.md). Rules for the path ``mpi``, for a GPU per rank and for other collectives are
assumptions: no GPU has run them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from hpccoll.calls.facts import CallFacts
from hpccoll.config import NATIVE, NCCL
from hpccoll.runtime.planning.choice import Choice
from hpccoll.tune.rules import MIB
from hpccoll.units import size_text


class DevicePlace(NamedTuple):
    """Data paths of a communicator with device arrays; the same on every rank.

    Attributes:
        nccl: True if NCCL can run its calls.
        takes_turns: True if ranks share a GPU without MPS, so that their kernels never overlap.
        ipc: True if it has registered device memory.
        mpi: True if the MPI library moves device memory on all ranks; ``None`` before the test.
    """

    nccl: bool = False
    takes_turns: bool = False
    ipc: bool = False
    mpi: bool | None = None

    def has(self, path: str) -> bool:
        """Return True if all ranks have a data path."""
        return path == "staged" or bool(getattr(self, path))


class DeviceRule(NamedTuple):
    """Data path with its algorithm, and the calls for which it is best.

    Attributes:
        path: the data path: ``nccl``, ``ipc``, ``mpi`` or ``staged``.
        nbytes: minimum bytes of the call, and exclusive maximum; 0 for no limit.
        collective: its name; empty for any.
        takes_turns: the required property of the place; ``None`` for any.
        segment_bytes: bytes of a block per message; 0 for the default.
    """

    path: str
    algorithm: str
    nbytes: tuple[int, int] = (0, 0)
    collective: str = ""
    takes_turns: bool | None = None
    segment_bytes: int = 0

    def fits(self, facts: CallFacts, place: DevicePlace) -> bool:
        least, end = self.nbytes
        known = facts.nbytes is not None or self.nbytes == (0, 0)
        return (place.has(self.path) and self.collective in ("", facts.collective)
                and self.takes_turns in (None, place.takes_turns)
                and known and least <= (facts.nbytes or 0) < (end or 1 << 62))

    def __str__(self) -> str:
        least, end = self.nbytes
        words = [f"device arrays by {self.path}"]
        words += [f"{self.collective}"] * bool(self.collective)
        words += [f"from {size_text(least)}"] * bool(least)
        words += [f"to {size_text(end)}"] * bool(end)
        if self.takes_turns is not None:
            words.append("ranks that share a GPU without MPS" if self.takes_turns else
                         "a GPU per rank, or MPS")
        return ", ".join(words)


#: The first rule that fits decides.
DEVICE_RULES = (
    DeviceRule("nccl", NCCL, takes_turns=False),
    # Without MPS the ranks take turns on the GPU: a call of NCCL takes 5 to 37 ms.
    DeviceRule("ipc", "allpairs", (8 * MIB, 32 * MIB), "allreduce", True, 16 * MIB),
    DeviceRule("ipc", "ring", (32 * MIB, 0), "allreduce", True, 16 * MIB),
    DeviceRule("nccl", NCCL, (128 * MIB, 0), "allreduce", True),
    # allpairs needs scratch memory for the whole vector.
    DeviceRule("ipc", "allpairs", (2 * MIB, 32 * MIB), "allreduce", False, 16 * MIB),
    DeviceRule("ipc", "ring", (32 * MIB, 0), "allreduce", False, 16 * MIB),
    DeviceRule("mpi", NATIVE),
    DeviceRule("staged", NATIVE, (0, 4 * MIB)),
    DeviceRule("staged", "ring", (4 * MIB, 0), "allreduce", None, 4 * MIB),
)


def device_bounds(place: DevicePlace | None) -> set[int]:
    """Return the message sizes, in bytes, at which the matching rule may change."""
    return {bound for rule in DEVICE_RULES for bound in rule.nbytes} if place else set()


def device_choices(facts: CallFacts, place: DevicePlace) -> Iterator[Choice]:
    """Yield the choices of the rules that match a call in a place, best first."""
    for rule in DEVICE_RULES:
        if facts.collective != "barrier" and rule.fits(facts, place):
            yield Choice(rule.algorithm, {}, rule.segment_bytes, f"rule: {rule}")
