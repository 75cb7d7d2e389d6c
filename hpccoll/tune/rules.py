"""Rules from measurements on other systems, for machines without measurements.

docs/performance.md has those measurements: one node, and a few nodes with slow links, with MPICH
and Open MPI. A common result is a rule for both, another result for the named library only. A few
rules are for Intel MPI, or for any library. On other machines ``hpccoll tune`` is better.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from mpi4py import MPI

from hpccoll.calls.facts import USER, CallFacts
from hpccoll.config import NATIVE
from hpccoll.ir.methods import BLOCKING, FORMS, NONBLOCKING, PERSISTENT
from hpccoll.machine.discovery import Place
from hpccoll.tune.one_node_rules import ROWS
from hpccoll.units import size_text

KIB, MIB = 1 << 10, 1 << 20
MPICH, OPEN_MPI, INTEL = "MPICH", "Open MPI", "Intel MPI"
#: Libraries of most measurements.
MEASURED = (MPICH, OPEN_MPI)
#: Forms of calls, in the text of a rule.
FORM_NAMES = {BLOCKING: "blocking", NONBLOCKING: "nonblocking", PERSISTENT: "persistent"}


@cache
def vendor() -> str:
    """Return the name of the MPI library in use."""
    return MPI.get_vendor()[0]


class Rule(NamedTuple):
    """Algorithm, and the calls for which it is best.

    Attributes:
        nbytes: bytes of the call, from and up to (exclusive; 0 for no limit).
        most_ranks, least_ranks: largest and smallest communicator; 0 for any.
        block: minimum bytes of each rank's share.
        one_node, oversubscribed, in_order, fabric, compiled, shared_cache: required properties of
            the place; ``None`` for any. A rule for the compiled executor holds for calls that it
            runs.
        vendors: MPI libraries, as ``MPI.get_vendor`` has them; empty for any.
        segment_bytes: bytes of a block per message; 0 for the default.
        forms: the forms of the call, as in ``FORMS``.
    """

    collective: str
    algorithm: str
    nbytes: tuple[int, int]
    most_ranks: int = 0
    block: int = 0
    one_node: bool | None = True
    oversubscribed: bool | None = None
    vendors: tuple[str, ...] = MEASURED
    segment_bytes: int = 0
    in_order: bool | None = None
    fabric: bool | None = None
    least_ranks: int = 0
    compiled: bool | None = None
    forms: tuple[str, ...] = FORMS
    shared_cache: bool | None = None

    def fits(self, collective: str, nbytes: int, size: int, library: str) -> bool:
        """Return True if the rule matches a call and an MPI library, in any place."""
        least, end = self.nbytes
        return (collective == self.collective and least <= nbytes < (end or 1 << 62)
                and self.least_ranks <= size and not 0 < self.most_ranks < size
                and nbytes >= self.block * size
                and (not self.vendors or library in self.vendors))

    def fits_in(self, place: Place) -> bool:
        """Return True if the rule matches a place.

        On one node the interpreter is slower than the library; it runs what the user names.
        """
        if place.one_node and not place.compiled:
            return False
        return all(asked in (None, found) for asked, found in (
            (self.one_node, place.one_node), (self.oversubscribed, place.oversubscribed),
            (self.in_order, place.in_order), (self.fabric, place.fabric),
            (self.compiled, place.compiled), (self.shared_cache, place.shared_cache)))

    def __str__(self) -> str:
        least, end = map(int, self.nbytes)
        words = [f"{self.collective} from {size_text(least)}"
                 + (f" to {size_text(end)}" if end else "")]
        if self.least_ranks == self.most_ranks > 0:
            words += [f"{self.most_ranks} ranks"]
        else:
            words += [f"from {self.least_ranks} ranks"] * (self.least_ranks > 0)
            words += [f"up to {self.most_ranks} ranks"] * (self.most_ranks > 0)
        words += [f"at least {size_text(self.block)} per rank"] * (self.block > 0)
        for held, true, false in ((self.one_node, "on one node",
                                   "on several nodes or without shared memory"),
                                  (self.oversubscribed, "sharing processors", "own processors"),
                                  (self.in_order, "numbered node by node", "dealt out"),
                                  (self.fabric, "with a fabric", "without a fabric"),
                                  (self.compiled, "compiled", "not compiled"),
                                  (self.shared_cache, "sharing a cache", "sharing no cache")):
            words += [] if held is None else [true if held else false]
        if self.forms != FORMS:
            words.append(" or ".join(FORM_NAMES[form] for form in self.forms) + " calls")
        return ", ".join(words + ([f"with {' or '.join(self.vendors)}"] if self.vendors else []))


def _pair(collective: str, algorithm: str, least: int, end: int = 0,
          vendors: tuple[str, ...] = MEASURED, segment_bytes: int = 0) -> Rule:
    """Return a rule for two ranks with a core each."""
    return Rule(collective, algorithm, (least, end), most_ranks=2, oversubscribed=False,
                vendors=vendors, segment_bytes=segment_bytes)


def _swift_pair(collective: str, algorithm: str, end: int,
                vendors: tuple[str, ...] = MEASURED) -> Rule:
    """Return a rule for two ranks with a core each, and the compiled executor."""
    return _pair(collective, algorithm, collective != "barrier", end, vendors)._replace(
        compiled=True, forms=(BLOCKING,))


def _near_pair(collective: str, algorithm: str, end: int) -> Rule:
    """Return the same for Intel MPI and two cores that share a cache."""
    return _swift_pair(collective, algorithm, end, (INTEL,))._replace(shared_cache=True)


def _swift_crowd(collective: str, algorithm: str, least: int = 1, end: int = 64 * KIB + 1,
                 vendors: tuple[str, ...] = MEASURED, least_ranks: int = 0) -> Rule:
    """Return a rule for up to four ranks on shared cores, and the compiled executor."""
    return _crowd(collective, algorithm, least, end, vendors, least_ranks)._replace(
        compiled=True, forms=(BLOCKING,))


def _rule_of_row(collective: str, algorithm: str, nbytes: tuple[int, int], fewest: int, most: int,
              vendors: tuple[str, ...]) -> Rule:
    pair = most == 2
    return Rule(collective, algorithm, nbytes, most, oversubscribed=not pair, vendors=vendors,
                least_ranks=fewest, compiled=True, forms=(BLOCKING,),
                shared_cache=True if pair else None)


def _begun_pair(collective: str, algorithm: str) -> Rule:
    """Return the same for requests of two ranks, which use cells of 64 KiB in turn."""
    return _swift_pair(collective, algorithm, 64 * KIB + 1 if collective != "barrier" else 0
                       )._replace(forms=(NONBLOCKING, PERSISTENT))


def _begun_crowd(collective: str, algorithm: str, least: int = 1,
                 vendors: tuple[str, ...] = MEASURED,
                 forms: tuple[str, ...] = (NONBLOCKING, PERSISTENT)) -> Rule:
    """Return the same for requests of up to four ranks on shared cores."""
    return _swift_crowd(collective, algorithm, least, 64 * KIB + 1 if least else 0, vendors
                        )._replace(forms=forms)


def _crowd(collective: str, algorithm: str, least: int, end: int = 0,
           vendors: tuple[str, ...] = MEASURED, least_ranks: int = 0) -> Rule:
    """Return a rule for up to four ranks on shared cores."""
    return Rule(collective, algorithm, (least, end), most_ranks=4, oversubscribed=True,
                vendors=vendors, least_ranks=least_ranks)


def _rails(collective: str, least: int, block: int) -> tuple[Rule, ...]:
    """Return rules for several nodes whose ranks all send between nodes.

    Over TCP short messages were fastest (decision 0107). Each costs some microseconds of Python,
    which is too slow for a fabric.
    """
    common = Rule(collective, "rails", (least, 0), block=block, one_node=False)
    return (common._replace(fabric=False, segment_bytes=48 * KIB),
            common._replace(nbytes=(8 * MIB, 0), segment_bytes=256 * KIB), common)


def _leader(collective: str, least: int, vendors: tuple[str, ...]) -> Rule:
    """Return a rule for a few ranks on several nodes: reduce in nodes, then across."""
    return Rule(collective, "leader", (least, 64 * KIB), most_ranks=8, one_node=False,
                in_order=True, fabric=False, compiled=True, vendors=vendors, forms=(BLOCKING,))


def _chain(collective: str, block: int, most_ranks: int = 8,
           vendors: tuple[str, ...] = MEASURED) -> Rule:
    """Return a rule for a chain of a few ranks on several nodes.

    A chain uses every link once in each direction. Longer chains, which need more segments to fill,
    were not measured.
    """
    return Rule(collective, "chain", (128 * KIB, 0), most_ranks, block, one_node=False,
                in_order=True, vendors=vendors, segment_bytes=256 * KIB)


#: Minimum bytes of rules for pairs (MAXLOC, MINLOC), by library; the measurements used sums. Pairs
#: are reduced by native calls.
PAIRS, PAIRS_ELSEWHERE = {MPICH: 16 * KIB}, 512 * KIB


#: Largest number of ranks on one node, sharing cores, that was measured.
MOST_MEASURED = 48


def is_measured(size: int, place: Place) -> bool:
    """Return True if the rules were measured in a place, so that what has no rule is native's."""
    return (vendor() in MEASURED and place.one_node and place.compiled
            and (size == 2 or place.oversubscribed and size <= MOST_MEASURED))


def is_ruled(facts: CallFacts) -> bool:
    """Return True if rules apply to the operator and the elements of a call.

    A user operator is slower, and the library calls it as fast as hpccoll does: the library was
    faster in all measurements.
    """
    if not facts.reduces_by_calls:
        return True
    return facts.operator != USER and (facts.nbytes or 0) >= PAIRS.get(vendor(), PAIRS_ELSEWHERE)


#: The number of turns matters: every rank waits for a core before it can send or receive. So
#: algorithms that send all messages together are best for short messages, and algorithms that
#: balance the work for long ones.
SWIFT_CROWD = (
    _swift_crowd("allreduce", "recursive_multiplying", 1, KIB + 1, (INTEL,), least_ranks=4),
    *(_swift_crowd(collective, algorithm, least, end, (INTEL,))
      for collective, algorithm, least, end in (
        ("allreduce", "recursive_doubling", 1, 16 * KIB + 1),
        ("reduce_scatter", "linear", 1, 16 * KIB + 1),
        ("reduce_scatter", "circulant", 16 * KIB + 1, 64 * KIB + 1),
        ("reduce_scatter", "pairwise", 64 * KIB + 1, 3 * MIB),
        ("allgather", "linear", 1, 16 * KIB + 1),
        ("allgather", "recursive_doubling", 16 * KIB + 1, 64 * KIB + 1),
        ("reduce", "linear", 1, 64 * KIB + 1), ("reduce", "linear", 256 * KIB, 768 * KIB),
        ("reduce", "circulant", 3 * MIB // 2, 0), ("bcast", "knomial", 1, 16 * KIB + 1),
        ("alltoall", "linear", 1, 16 * KIB + 1), ("gather", "linear", 1, 16 * KIB + 1),
        ("scatter", "linear", 1, 16 * KIB + 1),
        ("scan", "census", 1, MIB), ("scan", "linear", MIB, 0),
        ("exscan", "census", 1, MIB), ("exscan", "linear", MIB, 0))),
    _swift_crowd("scatter", "linear", 16 * KIB + 1, 768 * KIB, (INTEL,), least_ranks=4),
)
#: Measured by ``make rules``: two ranks with a core each that share a cache, and more on shared
#: cores. What they leave out is the library's, and no rule behind them matches.
ONE_NODE = (
    *(_rule_of_row(collective, algorithm, (least, end), fewest, most, libraries)
      for collective, algorithm, least, end, fewest, most, libraries in ROWS),
    *(_rule_of_row(collective, NATIVE, (0, 0), fewest, most, MEASURED)
      for collective in sorted({row[0] for row in ROWS}) for fewest, most in ((2, 2), (3, 4))),
)
#: Requests of ranks on shared cores; Open MPI itself is faster for the smallest sizes.
CROWDED_REQUESTS = (
    _begun_crowd("barrier", "recursive_doubling", 0),
    _begun_crowd("allreduce", "recursive_doubling"),
    _begun_crowd("reduce", "binomial"),
    *(_begun_crowd(collective, algorithm, 1, (MPICH,)) for collective, algorithm in (
        ("reduce_scatter", "circulant"), ("allgather", "recursive_doubling"),
        ("alltoall", "linear"), ("bcast", "binomial"), ("gather", "linear"),
        ("scatter", "linear"), ("scan", "linear"), ("exscan", "linear"))),
    *(_begun_crowd(collective, algorithm, least, (OPEN_MPI,), (NONBLOCKING,))
      for collective, algorithm, least in (
        ("reduce_scatter", "circulant", 1), ("allgather", "recursive_doubling", 1),
        ("alltoall", "linear", 1), ("bcast", "binomial", 512), ("gather", "linear", 1),
        ("scatter", "linear", 512), ("scan", "linear", 512), ("exscan", "linear", 512))),
    *(_begun_crowd(collective, algorithm, least, (OPEN_MPI,), (PERSISTENT,))
      for collective, algorithm, least in (
        ("reduce_scatter", "circulant", 4 * KIB),
        ("allgather", "recursive_doubling", 16 * KIB), ("alltoall", "linear", 4 * KIB),
        ("bcast", "binomial", 512), ("gather", "linear", 4 * KIB),
        ("scatter", "linear", 4 * KIB), ("scan", "linear", 512), ("exscan", "linear", 512))),
)
#: Reading a message in place, as MPI libraries do, has the same speed from memory and from a shared
#: cache. A copy through a cell is several times faster in a shared cache, and slower elsewhere.
NEAR_PAIRS = tuple(_near_pair(collective, algorithm, end) for collective, algorithm, end in (
    ("bcast", "binomial", 32 * KIB), ("bcast", "circulant", 512 * KIB + 1),
    ("reduce", "binomial", 128 * KIB), ("reduce", "circulant", 0),
    ("allgather", "recursive_doubling", 64 * KIB + 1), ("alltoall", "pairwise", 64 * KIB + 1),
    ("gather", "linear", 64 * KIB + 1), ("scatter", "linear", 512 * KIB + 1),
    ("scan", "linear", 0), ("exscan", "recursive_doubling", 0),
    ("allreduce", "recursive_doubling", 32 * KIB), ("allreduce", "allpairs", 512 * KIB + 1),
    ("reduce_scatter", "pairwise", 0)))
#: The first matching rule wins.
RULES = (
    *ONE_NODE,
    *NEAR_PAIRS,
    _swift_pair("barrier", "recursive_doubling", 0),
    _swift_pair("allreduce", "recursive_doubling", 16 * KIB + 1),
    _swift_pair("allreduce", "allpairs", 512 * KIB + 1),
    _swift_pair("reduce_scatter", "pairwise", 512 * KIB + 1),
    _swift_pair("scan", "linear", 256 * KIB + 1, (MPICH,)),
    *(_swift_pair(collective, algorithm, end + 1, (MPICH,)) for collective, algorithm, end in (
        ("reduce", "binomial", 128 * KIB), ("reduce", "circulant", 512 * KIB),
        ("bcast", "binomial", 8 * KIB), ("allgather", "recursive_doubling", 512 * KIB),
        ("alltoall", "pairwise", 32 * KIB), ("gather", "linear", 16 * KIB),
        ("scatter", "linear", 16 * KIB), ("exscan", "recursive_doubling", 64 * KIB))),
    *(_swift_pair(collective, algorithm, end + 1, (OPEN_MPI,)) for collective, algorithm, end in (
        ("reduce", "binomial", 8 * KIB), ("bcast", "binomial", 4 * KIB),
        ("allgather", "recursive_doubling", 8 * KIB), ("alltoall", "pairwise", 8 * KIB),
        ("gather", "linear", 8 * KIB), ("scatter", "linear", 8 * KIB),
        ("scan", "linear", 64 * KIB), ("exscan", "recursive_doubling", 8 * KIB))),
    *(_swift_pair(collective, algorithm, end + 1, (INTEL,)) for collective, algorithm, end in (
        ("allreduce", "recursive_doubling", 4 * KIB), ("reduce_scatter", "pairwise", 8 * KIB),
        ("reduce", "binomial", 4 * KIB), ("bcast", "binomial", 4 * KIB),
        ("allgather", "recursive_doubling", 4 * KIB), ("alltoall", "pairwise", 8 * KIB),
        ("gather", "linear", 8 * KIB), ("scatter", "linear", 8 * KIB),
        ("scan", "recursive_doubling", 4 * KIB), ("exscan", "recursive_doubling", 4 * KIB))),
    *SWIFT_CROWD,
    *(_begun_pair(collective, algorithm) for collective, algorithm in (
        ("barrier", "recursive_doubling"), ("allreduce", "recursive_doubling"),
        ("reduce_scatter", "pairwise"), ("reduce", "binomial"), ("bcast", "binomial"),
        ("allgather", "recursive_doubling"), ("alltoall", "pairwise"), ("gather", "linear"),
        ("scatter", "linear"), ("scan", "recursive_doubling"), ("exscan", "recursive_doubling"))),
    *CROWDED_REQUESTS,
    _pair("allreduce", "recursive_doubling", 32, 512 * KIB, (MPICH,)),
    _pair("allreduce", "recursive_doubling", 8 * KIB, 512 * KIB),
    _pair("allreduce", "allpairs", 512 * KIB, 0, (MPICH,)),
    _pair("allreduce", "allpairs", 512 * KIB, 6 * MIB, (OPEN_MPI,)),
    _pair("reduce_scatter", "pairwise", 1, 3 * MIB // 2, (MPICH,)),
    _pair("reduce_scatter", "pairwise", 24 * MIB, 0, (MPICH,)),
    _pair("reduce_scatter", "pairwise", 8 * KIB, 0, (OPEN_MPI,)),
    _pair("reduce", "binomial", 1, 0, (MPICH,), segment_bytes=256 * KIB),
    _pair("allgather", "recursive_doubling", 1, 3 * MIB // 2, (MPICH,)),
    _pair("scan", "recursive_doubling", 1, 0, (MPICH,)),
    _pair("scan", "recursive_doubling", 4 * KIB, 4 * MIB),
    _pair("exscan", "recursive_doubling", 1, 0, (MPICH,)),
    _crowd("allreduce", "linear", 32, 8 * KIB, (MPICH,)),
    _crowd("allreduce", "linear", 8 * KIB, 512 * KIB),
    Rule("allreduce", "allpairs", (64 * KIB, 0), most_ranks=4, block=16 * KIB, oversubscribed=True),
    _crowd("reduce_scatter", "circulant", 32 * KIB, 512 * KIB, (MPICH,)),
    _crowd("reduce_scatter", "circulant", 128 * KIB, MIB, (OPEN_MPI,)),
    _crowd("reduce_scatter", "pairwise", MIB),
    _crowd("allgather", "neighbor_exchange", 16 * KIB, MIB, (MPICH,)),
    _crowd("reduce", "linear", 4 * KIB, 2 * MIB, (MPICH,)),
    _crowd("reduce", "circulant", 2 * MIB, 0, (MPICH,)),
    _crowd("reduce", "linear", 4 * KIB, 64 * KIB),
    _crowd("reduce", "double_tree", MIB),
    _crowd("bcast", "linear", 1, 128 * KIB, (MPICH,)),
    _crowd("bcast", "binomial", 128 * KIB, 2 * MIB, (MPICH,)),
    _crowd("bcast", "linear", 2 * MIB, 0, (MPICH,)),
    _crowd("bcast", "linear", 512, 16 * KIB),
    _crowd("bcast", "double_tree", 4 * MIB),
    _crowd("alltoall", "linear", 32 * KIB, 192 * KIB, (MPICH,)),
    _crowd("alltoall", "linear", 8 * MIB, 0, (MPICH,)),
    _crowd("gather", "linear", 1, 0, (MPICH,), least_ranks=4),
    _crowd("scatter", "linear", 1, 0, (MPICH,)),
    _crowd("scan", "census", 1, MIB, (MPICH,)),
    _crowd("scan", "linear", MIB, 0, (MPICH,)),
    _crowd("scan", "linear", 128 * KIB, MIB),
    _crowd("exscan", "census", 1, MIB, (MPICH,)),
    _crowd("exscan", "linear", MIB, 0, (MPICH,)),
    _crowd("exscan", "linear", 128 * KIB, MIB),
    _pair("allreduce", "recursive_doubling", 3 * MIB, 8 * MIB, (INTEL,)),
    _pair("reduce", "binomial", 192 * KIB, 768 * KIB, (INTEL,)),
    _pair("reduce", "binomial", 24 * MIB, 0, (INTEL,)),
    _pair("bcast", "linear", 2 * MIB, 8 * MIB, (INTEL,))._replace(shared_cache=False),
    _pair("reduce_scatter", "pairwise", 2 * MIB, 0, (INTEL,)),
    _crowd("allreduce", "allpairs", 3 * MIB // 2, 6 * MIB, (INTEL,)),
    _crowd("reduce", "linear", 192 * KIB, 2 * MIB, (INTEL,)),
    _crowd("reduce", "double_tree", 8 * MIB, 0, (INTEL,)),
    _crowd("bcast", "linear", 24 * MIB, 0, (INTEL,)),
    _crowd("reduce_scatter", "pairwise", 3 * MIB, 8 * MIB, (INTEL,)),
    _pair("allreduce", "allpairs", 8 * MIB, 24 * MIB, (INTEL,)),
    Rule("allreduce", "allpairs", (8 * MIB, 0), most_ranks=8, block=2 * MIB, oversubscribed=False,
         vendors=(), least_ranks=3),
    Rule("allreduce", "allpairs", (24 * MIB, 0), most_ranks=2, oversubscribed=False, vendors=()),
    Rule("allreduce", "ring", (4 * MIB, 0), block=2 * MIB, least_ranks=3),
    _leader("allreduce", 64, (MPICH,)),
    _leader("allreduce", 4 * KIB, (OPEN_MPI,)),
    _leader("reduce", 4 * KIB, (MPICH,)),
    *_rails("allreduce", 512 * KIB, block=128 * KIB),
    *_rails("reduce_scatter", 512 * KIB, block=64 * KIB),
    *_rails("allgather", 512 * KIB, block=64 * KIB),
    _chain("bcast", 32 * KIB),
    Rule("bcast", "leader", (128 * KIB, 0), most_ranks=8, one_node=False, vendors=(OPEN_MPI,)),
    _chain("reduce", 64 * KIB, vendors=(MPICH,)),
    _chain("reduce", 64 * KIB, most_ranks=4),
    _chain("reduce", 256 * KIB),
    Rule("reduce", "leader", (2 * MIB, 0), one_node=False, in_order=False),
)
