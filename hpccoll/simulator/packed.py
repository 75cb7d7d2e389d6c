"""Programs of many ranks in arrays: 12 to 16 bytes per message, instead of hundreds for objects.

Rounds are stored once; the event loops read the arrays.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence

from hpccoll.ir.cost.workload import Round, Workload
from hpccoll.ir.in_network import InNetwork, Peer

#: Programs between two progress reports.
OFTEN = 64


class PackedPrograms:
    """Rounds of ranks, one rank after the other, of every kind of segment.

    Attributes:
        first_round: indices of the first round of each rank and kind, kind by kind; with an end.
        reduced, copied: bytes of each round.
        first_message: indices of the first message of each round; with an end.
        codes: of each message, twice the peer, and 1 if it is sent; the peer -1 - n is the n-th
            of ``networks``.
        networks: operations of the network on messages of several ranks.
        nbytes: bytes of each message.
        waits: in a program with lanes, for each round: the rounds of the same rank and kind that
            it waits for, counted from 0.
    """

    def __init__(self, kinds: int):
        self.kinds = kinds
        self.first_round, self.first_message = array("q", [0]), array("q", [0])
        self.reduced, self.copied, self.nbytes = array("d"), array("d"), array("d")
        self.codes = array("q")
        self.waits: dict[int, tuple[int, ...]] = {}
        self.networks: list[InNetwork] = []
        self.numbers: dict[InNetwork, int] = {}

    def add(self, made: Sequence[Sequence[Round]]) -> None:
        """Append a rank: its rounds of every kind."""
        for rounds in made:
            for messages, reduced, copied, waits in rounds:
                if waits is not None:
                    self.waits[len(self.reduced)] = waits
                self.reduced.append(reduced)
                self.copied.append(copied)
                self.codes.extend([2 * self.number(peer) + sends for sends, peer, _ in messages])
                self.nbytes.extend([nbytes for *_, nbytes in messages])
                self.first_message.append(len(self.codes))
            self.first_round.append(len(self.reduced))

    def number(self, peer: Peer) -> int:
        """Return the rank, or the number of an operation of the network."""
        if not isinstance(peer, InNetwork):
            return peer
        if peer not in self.numbers:
            self.networks.append(peer)
            self.numbers[peer] = -len(self.networks)
        return self.numbers[peer]

    def messages(self, rank: int) -> range:
        first = self.first_message[self.first_round[rank * self.kinds]]
        return range(first, self.first_message[self.first_round[(rank + 1) * self.kinds]])

    def codes_of(self, rank: int) -> array[int]:
        """Return the codes of a rank's messages."""
        held = self.messages(rank)
        return self.codes[held.start:held.stop]

    def __len__(self) -> int:
        return (len(self.first_round) - 1) // self.kinds


def pack(work: Workload, ranks: Sequence[int],
         made: Callable[[int], Sequence[Sequence[Round]]] | None = None,
         progress: Callable[[float], None] = lambda part: None) -> PackedPrograms:
    """Make and store the programs of some ranks.

    Args:
        made: callback that returns a rank's rounds by kind; progress: gets the completed share.
    """
    programs = PackedPrograms(len(work.kinds))
    for number, rank in enumerate(ranks):
        programs.add(made(rank) if made else [work.rounds(rank, s) for s in work.kinds])
        if number % OFTEN == OFTEN - 1:
            progress(number / len(ranks))
    return programs
