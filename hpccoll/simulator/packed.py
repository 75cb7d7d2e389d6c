"""Programs of many ranks in arrays: twelve to sixteen bytes a message, where objects take hundreds.

Rounds are written down once; colours are found in the arrays, and event loops read from them.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Hashable, Sequence

from hpccoll.ir.cost.workload import Round, Workload
from hpccoll.ir.in_network import InNetwork, Peer

#: Messages of a rank from which on one is found by a dictionary; programs after which one is told.
LONG, OFTEN = 64, 64


class PackedPrograms:
    """The rounds of ranks, one rank after the other, of every kind of segment.

    Attributes:
        kinds: kinds of segments of a rank.
        first_round: where the rounds of the next rank and kind begin, kind by kind; with an end.
        reduced, copied: bytes of each round.
        first_message: where the messages of each round begin; with an end.
        codes: of each message, twice the peer, and 1 if it is sent; the peer -1 - n is the n-th
            of ``networks``.
        networks: what the network does with messages of several ranks.
        nbytes: of each message.
        waits: of each round of a program with lanes, those of the same rank and kind that it
            waits for, the first one being 0.
    """

    def __init__(self, kinds: int):
        self.kinds = kinds
        self.first_round, self.first_message = array("q", [0]), array("q", [0])
        self.reduced, self.copied, self.nbytes = array("d"), array("d"), array("d")
        self.codes = array("q")
        self.waits: dict[int, tuple[int, ...]] = {}
        self.places: dict[int, dict[int, int]] = {}
        self.networks: list[InNetwork] = []
        self.numbers: dict[InNetwork, int] = {}

    def add(self, made: Sequence[Sequence[Round]]) -> None:
        """Write down one more rank: its rounds of every kind."""
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
        """The rank, or the number that stands for what the network does."""
        if not isinstance(peer, InNetwork):
            return peer
        if peer not in self.numbers:
            self.networks.append(peer)
            self.numbers[peer] = -len(self.networks)
        return self.numbers[peer]

    def messages(self, rank: int) -> range:
        """Where the messages of a rank are, the first that was added being 0."""
        first = self.first_message[self.first_round[rank * self.kinds]]
        return range(first, self.first_message[self.first_round[(rank + 1) * self.kinds]])

    def mine(self, rank: int) -> array[int]:
        """The codes of a rank's messages."""
        held = self.messages(rank)
        return self.codes[held.start:held.stop]

    def place(self, rank: int, code: int) -> int:
        """Where among a rank's messages the first of a code stands.

        Raises:
            KeyError, ValueError: there is none.
        """
        held = self.messages(rank)
        if len(held) < LONG:
            return self.codes[held.start:held.stop].index(code)
        if rank not in self.places:
            places = self.places[rank] = {}
            for place, known in enumerate(self.mine(rank)):
                places.setdefault(known, place)
        return self.places[rank][code]

    def shape(self, rank: int) -> tuple:
        """All that a rank does itself: rounds, with their messages' bytes but not their peers."""
        shape: list[Hashable] = []
        for kind in range(self.kinds):
            place = rank * self.kinds + kind
            first, stop = self.first_round[place:place + 2]
            for number in range(first, stop):
                start, end = self.first_message[number:number + 2]
                shape += (kind, end - start, self.reduced[number], self.copied[number])
                shape += self.nbytes[start:end]
                shape += [self.waits[number]] if number in self.waits else []
        return tuple(shape)

    def chosen(self, ranks: Sequence[int]) -> PackedPrograms:
        """Those of some ranks alone."""
        part = PackedPrograms(self.kinds)
        part.networks, part.numbers = self.networks, self.numbers
        for rank in ranks:
            for place in range(rank * self.kinds, (rank + 1) * self.kinds):
                first, stop = self.first_round[place:place + 2]
                part.waits.update((len(part.reduced) + number - first, self.waits[number])
                                  for number in range(first, stop) if number in self.waits)
                part.reduced += self.reduced[first:stop]
                part.copied += self.copied[first:stop]
                shift = len(part.codes) - self.first_message[first]
                part.first_message.extend([
                    end + shift for end in self.first_message[first + 1:stop + 1]])
                held = slice(self.first_message[first], self.first_message[stop])
                part.codes += self.codes[held]
                part.nbytes += self.nbytes[held]
                part.first_round.append(len(part.reduced))
        return part

    def __len__(self) -> int:
        return (len(self.first_round) - 1) // self.kinds


def pack(work: Workload, ranks: Sequence[int],
         made: Callable[[int], Sequence[Sequence[Round]]] | None = None,
         progress: Callable[[float], None] = lambda part: None) -> PackedPrograms:
    """Make the programs of some ranks and write them down.

    Args:
        made: gives a rank's rounds of every kind of segment; progress: told the part done.
    """
    programs = PackedPrograms(len(work.kinds))
    for number, rank in enumerate(ranks):
        programs.add(made(rank) if made else [work.rounds(rank, s) for s in work.kinds])
        if number % OFTEN == OFTEN - 1:
            progress(number / len(ranks))
    return programs
