"""Injection of faults into messages: ``python -m hpccoll.testing.fault_injection``.

    Harm --> Havoc, a network with that fault --> a run --> its outcome

    A fault is *named* if the run raises an error or stalls with the two ranks in the message. It is
    *harmless* if all results are right, and *wrong* if a result is wrong without an error. With
    checksums no fault may be wrong.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from hpccoll.errors.checks import CorruptMessage
from hpccoll.ir.schedule import Schedule
from hpccoll.testing import every
from hpccoll.testing.model_check import Edge, MisfitMessage, Network, Run
from hpccoll.testing.world import Problem

__all__ = ["Harm", "Havoc", "describe_run", "harms_of"]

#: Kinds of faults.
FLIP, LOSE, DOUBLE, SWAP = "flip", "lose", "double", "swap"
#: Outcomes of a run.
NAMED, HARMLESS, WRONG, UNNAMED = "named", "harmless", "wrong", "unnamed"
#: Number of ranks of the command's runs.
RANKS = 4


class Harm(NamedTuple):
    """Fault of one message.

    Attributes:
        kind: ``FLIP``, ``LOSE``, ``DOUBLE`` or ``SWAP``.
        edge: edge of the message.
        number: index of the message on its edge, from 1; companions count.
        bit: index of the flipped bit.
    """

    kind: str
    edge: Edge
    number: int
    bit: int = 0


class Havoc(Network):
    """Network with a fault in one message.

    Attributes:
        harm: the fault; may be changed before a restart of the run.
        sizes: bytes of the delivered messages, by edge.
    """

    def __init__(self, size: int, buffered: bool = False, harm: Harm | None = None):
        super().__init__(size, buffered)
        self.harm = harm
        self.sizes: dict[Edge, list[int]] = {}

    def clear(self) -> None:
        """Discard all messages."""
        super().clear()
        self.sizes.clear()

    def deliver(self, edge: Edge) -> None:
        """Deliver the next message of an edge, or apply the fault to it."""
        sent, sizes = self.sent[edge], self.sizes.setdefault(edge, [])
        sizes.append(sent[0].array.nbytes)
        harm = self.harm
        if harm is None or (edge, len(sizes)) != (harm.edge, harm.number):
            super().deliver(edge)
        elif harm.kind == LOSE:
            sent.popleft().done = True
        elif harm.kind == DOUBLE:
            again = self.copy_message(sent[0])
            super().deliver(edge)
            sent.appendleft(again)
        else:
            if harm.kind == FLIP:
                damaged = sent[0].array = sent[0].array.copy()
                damaged.view("u1")[harm.bit // 8] ^= 1 << harm.bit % 8
            elif len(sent) > 1:
                sent[0], sent[1] = sent[1], sent[0]
            super().deliver(edge)


def describe_run(run: Run, harm: Harm) -> str:
    """Run with a fault to the end; return the outcome."""
    network = run.network
    if not isinstance(network, Havoc):
        raise TypeError("the network of this run injects no faults")
    network.harm = harm
    run.begin()
    source, sink, _ = harm.edge
    try:
        while choices := run.choices():
            run.deliver(choices[0])
    except CorruptMessage as error:
        return NAMED if (error.sender, error.receiver) == (source, sink) else UNNAMED
    except MisfitMessage as error:
        return NAMED if error.edge == harm.edge else UNNAMED
    if not run.is_done:
        return NAMED if source in run.stall_error().waiting.get(sink, (0, ()))[1] else UNNAMED
    if any(True for seat in run.seats for _ in seat.faults()):
        return WRONG
    return NAMED if harm.edge in network.unreceived_edges() else HARMLESS


def harms_of(run: Run) -> Iterator[Harm]:
    """Yield all faults of the messages of a run."""
    network = run.network
    if not isinstance(network, Havoc):
        raise TypeError("the network of this run injects no faults")
    network.harm = None
    run.begin()
    while choices := run.choices():
        run.deliver(choices[0])
    for edge, sizes in {edge: list(sizes) for edge, sizes in network.sizes.items()}.items():
        for number, nbytes in enumerate(sizes, 1):
            for kind in (LOSE, DOUBLE, SWAP):
                yield Harm(kind, edge, number)
            for bit in range(8 * nbytes):
                yield Harm(FLIP, edge, number, bit)


def small(schedule: Schedule, rank_order: bool) -> Problem:
    """Return a problem with one element, or two if blocks may be uneven."""
    size, payload = schedule.size, schedule.collective.payload
    number = {"none": 0, "vector": 1, "blocks": size, "pairs": size * size}[payload]
    sizes = [1 if schedule.uniform else 1 + key % 2 for key in range(number)]
    operator, dtype = ("affine", "c16") if rank_order else ("sum", "i2")
    return Problem(schedule.collective, size, [schedule.nblocks] * number if number == 1 else sizes,
                   schedule.root, operator, dtype)


def main() -> int:
    """Inject every fault into every message of every algorithm, and count the outcomes."""
    began, found, bad = time.monotonic(), Counter[tuple[str, str]](), []
    for entry, schedule in every(RANKS, range(1, 2)):
        for buffered in (False, True):
            run = Run(schedule, small(schedule, entry.rank_order), Havoc(RANKS, buffered),
                      checked=True)
            for harm in list(harms_of(run)):
                became = describe_run(run, harm)
                found[harm.kind, became] += 1
                if became in (WRONG, UNNAMED) or (harm.kind, became) == (FLIP, HARMLESS):
                    bad.append(f"{schedule.title}: {harm} is {became}")
    for (kind, became), count in sorted(found.items()):
        print(f"{kind:8}{became:10}{count:>10}")
    print(f"{time.monotonic() - began:.0f} s")
    print("\n".join(bad) or "no fault")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
