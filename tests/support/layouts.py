"""Layouts of ranks that are not numbered group by group."""

from hpccoll.ir.topology import Topology


def dealt(shape):
    """The layout of ranks dealt out to the outermost groups in turn, as long as they have room."""
    plain = Topology.parse(shape)
    room, held = list(map(len, plain.groups())), [[] for _ in plain.groups()]
    rank = 0
    while rank < plain.size:
        for places, group in zip(room, held):
            if len(group) < places:
                group.append(rank)
                rank += 1
    return Topology(plain.tree, tuple(rank for group in held for rank in group))
