"""Random topologies, algorithms and calls of them."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import strategies as st

from hpccoll.algorithms import ALGORITHMS, Algorithm, schedule
from hpccoll.ir.collectives import COLLECTIVES, block_counts
from hpccoll.ir.schedule import Schedule
from hpccoll.ir.topology import Topology
from hpccoll.proof.cases import BlockSizes
from hpccoll.testing.world import Problem

#: Most ranks of a random call.
MOST = 8
#: Values that parameters of algorithms are tried with.
PARAMS = {"k": st.integers(2, 5), "n": st.integers(1, 6), "batch": st.integers(1, 4),
          "leaders": st.integers(1, 4)}


def trees(most: int) -> st.SearchStrategy:
    """Nested groups, ragged ones and groups of one included."""
    return st.recursive(st.integers(1, most), lambda inner: st.lists(
        inner, min_size=1, max_size=4).map(tuple), max_leaves=6)


def topologies(most: int = MOST) -> st.SearchStrategy[Topology]:
    """Layouts of at most so many ranks, numbered group by group or in any order."""
    plain = trees(3).map(Topology).filter(lambda topology: topology.size <= most)
    return plain | plain.flatmap(lambda topology: st.permutations(range(topology.size)).map(
        lambda order: Topology(topology.tree, tuple(order))))


class Call(NamedTuple):
    """One algorithm, called with some sizes in some way."""

    schedule: Schedule
    entry: Algorithm
    sizes: list[int]
    in_place: bool
    segment: int

    @property
    def rank_order(self) -> bool:
        """Whether the algorithm keeps rank order here."""
        layout = self.schedule.topology
        return self.entry.rank_order and not (layout and layout.order)

    def problem(self, **how) -> Problem:
        """The call as :func:`hpccoll.testing.world.run` takes it."""
        made = self.schedule
        return Problem(made.collective, made.size, self.sizes, made.root, **how)

    def case(self) -> BlockSizes:
        """The call as a proof takes it."""
        sizes = self.sizes
        if self.schedule.collective.payload == "vector":
            sizes = block_counts(sizes[0], self.schedule.nblocks)
        return BlockSizes(sizes.__getitem__, len(sizes), self.in_place, self.segment)


@st.composite
def schedules(draw, collective: str) -> tuple[Schedule, Algorithm]:
    """Any algorithm of a collective, on any ranks."""
    name = draw(st.sampled_from(list(ALGORITHMS[collective])))
    entry = ALGORITHMS[collective][name]
    params = {key: draw(PARAMS[key]) for key in entry.params}
    topology = draw(topologies()) if entry.hierarchical else None
    size = topology.size if topology else draw(st.integers(1, MOST))
    root = draw(st.integers(0, size - 1)) if COLLECTIVES[collective].rooted else 0
    return schedule(collective, name, size, root=root, topology=topology, **params), entry


@st.composite
def calls(draw, collective: str) -> Call:
    """Any call of any algorithm of a collective: sizes even, uneven and zero."""
    made, entry = draw(schedules(collective))
    payload, size = made.collective.payload, made.size
    if payload == "none":
        sizes = []
    elif payload == "vector":
        sizes = [draw(st.integers(0, 3 * made.nblocks + 1))]
    else:
        number = size if payload == "blocks" else size * size
        sizes = ([draw(st.integers(0, 4))] * number if made.uniform else
                 draw(st.lists(st.integers(0, 4), min_size=number, max_size=number)))
    in_place = bool(made.collective.in_place) and draw(st.booleans())
    # An uneven result in place reaches into other blocks: the library does not cut those calls.
    whole = in_place and collective == "reduce_scatter" and len(set(sizes)) > 1
    return Call(made, entry, sizes, in_place, 0 if whole else draw(st.integers(0, 3)))
