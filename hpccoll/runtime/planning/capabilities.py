"""Capabilities: rejects schedules that a transport cannot run, before any message."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from hpccoll.errors import CapabilityError
from hpccoll.ir.in_network import InNetwork
from hpccoll.ir.schedule import Schedule


def check(schedule: Schedule, needs: Sequence[str], offers: Collection[str]) -> None:
    """Check that the network can run a schedule.

    Args:
        schedule: the schedule.
        needs: required capabilities of the network, of a proof or of a step.
        offers: capabilities of the network.

    Raises:
        CapabilityError: one is missing; names the first rank, round and step that needs it.
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
