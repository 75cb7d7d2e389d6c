"""Whether a transport can run a schedule: said before any message, on every rank alike."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from hpccoll.errors import CapabilityError
from hpccoll.ir.in_network import InNetwork
from hpccoll.ir.schedule import Schedule


def check(schedule: Schedule, needs: Sequence[str], offers: Collection[str]) -> None:
    """Refuse what the network underneath cannot do.

    Args:
        schedule: what is to run.
        needs: of a proof, or of a step: what the network must be able to do.
        offers: what it can.

    Raises:
        CapabilityError: it cannot; names the first rank, round and step that takes it.
    """
    missing = [need for need in needs if need not in offers]
    if not missing:
        return
    for rank in range(schedule.size):
        for number, steps in enumerate(schedule.program(rank).rounds):
            for step in steps:
                lacks = [need for need in missing
                         if isinstance(step.peer, InNetwork) and need in step.peer.needs]
                if lacks:
                    raise CapabilityError(
                        " and ".join(lacks), "the transport of this communicator",
                        "choose a point-to-point algorithm; hpccoll.simulate and "
                        "hpccoll.testing.world support this one",
                        schedule=schedule.title, rank=rank, round=number, step=str(step))
