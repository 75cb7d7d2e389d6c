"""The choice where nothing was measured on the machine at hand: rules from measurements elsewhere.

docs/performance.md has those measurements. They were made on one node and on a few nodes with slow
links, with MPICH and Open MPI; what the two have in common is a rule for any library, the rest for
the one named. On another machine ``hpccoll tune`` knows better.
"""

from __future__ import annotations

from typing import NamedTuple

KIB, MIB = 1 << 10, 1 << 20
MPICH = "MPICH"


class Place(NamedTuple):
    """Where a job runs, as far as rules depend on it; the same on every rank.

    Attributes:
        one_node: all ranks share memory that hpccoll can use.
        crowded: ranks share processors.
        vendor: of the MPI library, as ``MPI.get_vendor`` has it.
    """

    one_node: bool
    crowded: bool
    vendor: str


class Rule(NamedTuple):
    """An algorithm, and the calls that it serves best.

    Attributes:
        nbytes: bytes of the call, from and up to (exclusive; 0 is without end).
        most_ranks: largest communicator; 0 for any.
        block: fewest bytes that each rank's share must have.
        one_node, crowded, vendor: what the place must be; ``None`` for any.
    """

    collective: str
    algorithm: str
    nbytes: tuple[int, int]
    most_ranks: int = 0
    block: int = 0
    one_node: bool | None = True
    crowded: bool | None = None
    vendor: str | None = None

    def fits(self, collective: str, nbytes: int, size: int) -> bool:
        """Tell whether the rule speaks of a call, wherever it runs."""
        least, end = self.nbytes
        return (collective == self.collective and least <= nbytes < (end or 1 << 62)
                and not 0 < self.most_ranks < size and nbytes >= self.block * size)

    def fits_in(self, place: Place) -> bool:
        """Tell whether the rule speaks of a place."""
        return (self.one_node in (None, place.one_node) and self.crowded in (None, place.crowded)
                and self.vendor in (None, place.vendor))

    def __str__(self) -> str:
        least, end = self.nbytes
        words = [f"{self.collective} from {least}" + (f" to {end}" if end else "") + " bytes"]
        words += [f"up to {self.most_ranks} ranks"] * (self.most_ranks > 0)
        words += [f"at least {self.block} bytes a rank"] * (self.block > 0)
        for held, true, false in ((self.one_node, "on one node", "on several nodes"),
                                  (self.crowded, "sharing processors", "a processor each")):
            words += [] if held is None else [true if held else false]
        return ", ".join(words + ([f"on {self.vendor}"] if self.vendor else []))


def _pair(collective: str, algorithm: str, least: int, end: int = 0,
          vendor: str | None = None) -> Rule:
    """Two ranks with a processor each."""
    return Rule(collective, algorithm, (least, end), most_ranks=2, crowded=False, vendor=vendor)


def _crowd(collective: str, algorithm: str, least: int, end: int = 0, most_ranks: int = 4,
           vendor: str | None = None) -> Rule:
    """Ranks that share processors."""
    return Rule(collective, algorithm, (least, end), most_ranks, crowded=True, vendor=vendor)


def _spread(collective: str, algorithm: str, least: int, block: int = 0) -> Rule:
    """Ranks on several nodes: what crosses their links only once, over all of them."""
    return Rule(collective, algorithm, (least, 0), block=block, one_node=False)


#: The first rule that fits wins.
RULES = (
    _pair("allreduce", "recursive_doubling", 256, 8 * MIB, MPICH),
    _pair("allreduce", "recursive_doubling", 8 * KIB, 8 * MIB),
    _pair("reduce_scatter", "pairwise", 64 * KIB),
    _pair("reduce", "binomial", 16 * KIB, 0, MPICH),
    _crowd("allreduce", "recursive_doubling", 2 * KIB, 64 * KIB, vendor=MPICH),
    _crowd("allreduce", "recursive_doubling", 16 * KIB, 64 * KIB),
    Rule("allreduce", "allpairs", (64 * KIB, 0), most_ranks=8, block=16 * KIB, crowded=True),
    _crowd("reduce_scatter", "linear", 64 * KIB, MIB),
    _crowd("reduce_scatter", "pairwise", MIB),
    _crowd("allgather", "recursive_doubling", 16 * KIB, 2 * MIB),
    _crowd("allgather", "linear", 2 * MIB, 16 * MIB),
    _crowd("reduce", "binomial", 4 * KIB, 0, vendor=MPICH),
    _crowd("reduce", "binomial", 4 * MIB),
    _crowd("bcast", "binomial", 4 * MIB, 16 * MIB),
    Rule("allreduce", "allpairs", (8 * MIB, 0), most_ranks=8, block=2 * MIB),
    Rule("allreduce", "ring", (4 * MIB, 0), block=2 * MIB),
    _spread("allreduce", "rails", 512 * KIB, block=128 * KIB),
    _spread("reduce_scatter", "rails", 512 * KIB, block=128 * KIB),
    _spread("allgather", "rails", MIB, block=256 * KIB),
    _spread("reduce", "leader", 512 * KIB),
)
