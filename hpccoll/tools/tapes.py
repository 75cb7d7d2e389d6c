"""The tape of one rank of a schedule, for people."""

from __future__ import annotations

from hpccoll.errors import ArgumentError
from hpccoll.ir.schedule import Schedule
from hpccoll.proof.cases import BlockSizes, lower_all
from hpccoll.runtime.tape import encode
from hpccoll.runtime.tape_text import as_text
from hpccoll.transport.shm.channels import PLACES

#: Bytes of an element that is shown.
ITEMSIZE = 4


def text_of(schedule: Schedule, rank: int, nbytes: int | None) -> str:
    """The instructions of a rank for blocks of one size: of one element, or ``nbytes`` in all.

    Raises:
        ArgumentError: there is no such rank, or a tape cannot say what the rank does.
    """
    if not 0 <= rank < schedule.size:
        raise ArgumentError("--tape", f"there is no rank {rank} among {schedule.size}")
    collective = schedule.collective
    blocks = schedule.nblocks if collective.payload == "vector" else schedule.size
    count = max((nbytes or 0) // ITEMSIZE // blocks, 1)
    keys = blocks * blocks if collective.payload == "pairs" else blocks
    segment, = lower_all(schedule, collective, rank, BlockSizes(lambda key: count, keys))
    code = encode(segment.program, ITEMSIZE, PLACES)
    if code is None:
        raise ArgumentError("--tape", f"no tape can say what rank {rank} does",
                            f"only {PLACES} messages of one rank may be under way at once")
    return as_text(code)
