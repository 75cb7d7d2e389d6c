"""How long collectives take on a machine that is not there: their own schedules, simulated.

A step sends buckets of many sizes, and simulating 32,768 ranks takes seconds. So sizes are timed
together: where the first, the last and the middle one lie on a line to :data:`EXACT`, those between
are read from it; elsewhere both halves are looked at alone. That is exact as long as the same
messages wait for each other at all sizes, which the middle one checks. Sizes whose blocks are cut
into segments lie on no line, however many of them seem to: these are all simulated.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from hpccoll import Topology, schedule, simulate
from hpccoll.config import AUTO, NATIVE, parse_algorithms
from hpccoll.errors import ArgumentError

#: What is compared where the algorithm is to be chosen; the fastest in simulation counts.
CANDIDATES = {
    "allreduce": ("rails", "rabenseifner", "circulant", "recursive_doubling", "ring"),
    "reduce_scatter": ("rails", "circulant", "ring"), "allgather": ("rails", "circulant", "ring"),
    "alltoall": ("two_phase", "pairwise")}
#: Algorithms compared on so many ranks at most: their rounds are as many as the ranks, ...
MANY_ROUNDS = {"ring": 128, "pairwise": 128}
#: ... or ranks do not fold (are timed one by one) unless their number is a power of two.
UNFOLDED = {"rabenseifner": 256, "recursive_doubling": 256}
#: Relative distance from the line through two sizes that counts as on it: rounding.
EXACT = 1e-9
#: On more ranks two sizes make the line unchecked: one simulation takes a quarter of a minute, and
#: blocks are so small that nothing bends it.
UNCHECKED = {"alltoall": 8192}
#: Bytes of a block that travel as one message, and above how many bytes blocks are large: those
#: of a rank with a processor of its own (HPCCOLL_SEGMENT_BYTES).
SEGMENT, LARGE_SEGMENT, LARGE_BLOCK = 256 << 10, 1 << 20, 2 << 20


class Taken(NamedTuple):
    """Time of one collective, and the algorithm that it is of."""

    seconds: float
    algorithm: str


class CollectiveTimes:
    """Times of collectives on one layout of one machine; remembers what it simulated.

    Args:
        machine: name, file or description, as :func:`hpccoll.simulate` takes it.
        topology: layout of the ranks, nodes outermost.
        algorithm: choice per collective, written as for ``HPCCOLL_ALGORITHM``; for all others
            the fastest of :data:`CANDIDATES` counts.
        segment_bytes: bytes of a block that travel as one message; 0 as in a real run.

    Raises:
        ArgumentError: the machine or an algorithm cannot be used.
    """

    def __init__(self, machine: Any, topology: str | Topology, algorithm: str = "",
                 segment_bytes: int = 0):
        self.topology = Topology.parse(topology)
        self.algorithm, self.segment_bytes = algorithm, segment_bytes
        #: The machine itself, whatever it was named by.
        self.machine = simulate(schedule("barrier", "dissemination", 1), 0, machine).machine
        self._chosen = parse_algorithms(algorithm)
        if any(name == NATIVE for name, _ in self._chosen.values()):
            raise ArgumentError("algorithm", "the MPI library's own cannot be simulated",
                                "name an algorithm of hpccoll's")
        self._known: dict[tuple[str, str], dict[float, float]] = {}
        self._schedules: dict[tuple[str, str], tuple[Any, int]] = {}

    @property
    def size(self) -> int:
        """Ranks."""
        return self.topology.size

    def on(self, machine: Any) -> CollectiveTimes:
        """The same collectives on another machine."""
        return CollectiveTimes(machine, self.topology, self.algorithm, self.segment_bytes)

    def learn(self, wanted: Iterable[tuple[str, float]]) -> None:
        """Time collectives of so many bytes together, so that few sizes are simulated."""
        sizes: dict[str, set[float]] = {}
        for collective, nbytes in wanted:
            sizes.setdefault(collective, set()).add(nbytes)
        for collective, each in sizes.items():
            for name in self._names(collective):
                self._fill(collective, name, sorted(each))

    def taken(self, collective: str, nbytes: float) -> Taken:
        """Time of a collective of so many bytes of a rank's vector, or of all its blocks."""
        if self.size == 1 or not nbytes:
            return Taken(0.0, "")
        return min(Taken(self._seconds(collective, name, nbytes), name)
                   for name in self._names(collective))

    def _names(self, collective: str) -> list[str]:
        """The algorithms that are compared."""
        chosen, _ = self._chosen.get(collective, (AUTO, {}))
        if chosen != AUTO:
            return [chosen]
        size = self.size
        power = size & (size - 1) == 0
        return [name for name in CANDIDATES[collective] if size <= MANY_ROUNDS.get(name, size)
                and (power or size <= UNFOLDED.get(name, size))]

    def _fill(self, collective: str, name: str, sizes: list[float]) -> None:
        whole = [n for n in sizes if n / self._schedule(collective, name)[1] <= self._segment(0)]
        for nbytes in sizes[len(whole):]:
            self._seconds(collective, name, nbytes)
        if whole:
            self._between(collective, name, whole)

    def _between(self, collective: str, name: str, sizes: list[float]) -> None:
        first, middle, last = sizes[0], sizes[len(sizes) // 2], sizes[-1]
        low, high = (self._seconds(collective, name, n) for n in (first, last))
        if len(sizes) < 3:
            return
        slope = (high - low) / (last - first)
        between = low + slope * (middle - first)
        if self.size <= UNCHECKED.get(collective, self.size):
            between = self._seconds(collective, name, middle)
        if abs(low + slope * (middle - first) - between) <= EXACT * between:
            for nbytes in sizes:
                self._known[collective, name].setdefault(nbytes, low + slope * (nbytes - first))
        else:
            half = len(sizes) // 2
            self._between(collective, name, sizes[:half + 1])
            self._between(collective, name, sizes[half:])

    def _seconds(self, collective: str, name: str, nbytes: float) -> float:
        known = self._known.setdefault((collective, name), {})
        if nbytes not in known:
            built, blocks = self._schedule(collective, name)
            known[nbytes] = simulate(built, nbytes, self.machine, self.topology,
                                     segment_bytes=self._segment(nbytes / blocks)).seconds
        return known[nbytes]

    def _segment(self, block: float) -> int:
        """Bytes of a segment of blocks of so many bytes."""
        return self.segment_bytes or (LARGE_SEGMENT if block > LARGE_BLOCK else SEGMENT)

    def _schedule(self, collective: str, name: str) -> tuple[Any, int]:
        """The schedule, and the blocks that it cuts a call into."""
        if (collective, name) not in self._schedules:
            _, params = self._chosen.get(collective, ("", {}))
            built = schedule(collective, name, topology=self.topology, **params)
            self._schedules[collective, name] = built, (
                built.nblocks if built.collective.payload == "vector" else self.size)
        return self._schedules[collective, name]
