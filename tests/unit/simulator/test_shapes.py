"""Shapes: their links, their ways, and what is refused."""

from itertools import product

import pytest

from hpccoll.errors import ArgumentError
from hpccoll.simulator.grids import MeshShape, Torus
from hpccoll.simulator.shape_files import shape_from_text
from hpccoll.simulator.switched import Dragonfly, FatTree

ALL = ["torus:5", "torus:2x2x2", "torus:4x3:wrap=truexfalse", "mesh:3x2x4", "mesh:1x1",
       "fat_tree:4", "fat_tree:4x3:up=2x3", "fat_tree:2x3x2:up=1x2x1", "dragonfly:5x4x2",
       "dragonfly:4x2x3:cables=3", "dragonfly:1x3x2"]


def between(shape, link):
    """The two ends of a link, as things that have a name."""
    if isinstance(shape, Torus):
        dimension, down, position = link
        return ("node", position), ("node", shape.neighbour(position, dimension, 1 - 2 * down))
    if isinstance(shape, Dragonfly):
        if link[0] == 0:
            return ("router", link[1], link[2]), ("router", link[1], link[3])
        return ("group", link[1]), ("group", link[2])
    level, down, group, *taken = link
    ends = (("switch", level, group, *taken[:-1]),
            ("switch", level + 1, group // shape.extents[level], *taken))
    return ends[::-1] if down else ends


def place(shape, position):
    """The thing that a way begins or ends at."""
    if isinstance(shape, Torus):
        return "node", position
    if isinstance(shape, FatTree):
        return "switch", 0, position
    router = position // shape.extents[2]
    return "router", router // shape.extents[1], router % shape.extents[1]


def meets(here, there):
    """Whether two ends are one: of a cable between groups, only the groups are known."""
    return here == there or "group" in (here[0], there[0]) and here[1] == there[1]


@pytest.mark.parametrize("text", ALL)
def test_ways_lead_from_link_to_link(text):
    shape = shape_from_text(text)
    for start, end in product(range(shape.nodes), repeat=2):
        ways = list(shape.ways(start, end))
        assert shape.routes(start, end) == (tuple((link, 1.0) for link in ways[0]),)
        for way in ways:
            here = place(shape, start)
            for link in way:
                one, other = between(shape, link)
                assert meets(here, one)
                here = other
            assert meets(here, place(shape, end))


def test_a_cable_has_one_router_at_each_end():
    """The routers that a cable leaves and enters do not depend on who uses it, and share them out
    evenly."""
    shape = Dragonfly(extents=(9, 4, 2), cables=1)
    at = {}
    for start, end in product(range(shape.nodes), repeat=2):
        way = list(next(shape.ways(start, end)))
        cable = [index for index, link in enumerate(way) if link[0]]
        if not cable:
            continue
        before, after = way[:cable[0]], way[cable[0] + 1:]
        leaves = before[0][3] if before else place(shape, start)[2]
        enters = after[0][2] if after else place(shape, end)[2]
        one, other = way[cable[0]][1:3]
        assert at.setdefault((one, other), (leaves, enters)) == (leaves, enters)
    assert all(at[a, b] == at[b, a][::-1] for a, b in at)
    held = [leaves for (one, _), (leaves, _) in at.items() if one == 0]
    assert [held.count(router) for router in range(4)] == [2, 2, 2, 2]


@pytest.mark.parametrize("text", ALL)
@pytest.mark.parametrize("duplex", ["full", "half"])
def test_every_link_is_counted(text, duplex):
    """What all pairs of nodes use is all there is, where every way counts."""
    shape = shape_from_text(f"{text}:duplex={duplex}")
    used = {link for start, end in product(range(shape.nodes), repeat=2)
            for way in shape.ways(start, end) for link in way}
    assert len(used) == shape.links


@pytest.mark.parametrize("text", ALL)
def test_spread_ways_have_all_the_message(text):
    shape = shape_from_text(f"{text}:routing=spread")
    for start, end in product(range(shape.nodes), repeat=2):
        ways = list(dict.fromkeys(shape.ways(start, end)))
        (spread,) = shape.routes(start, end)
        assert sum(part for _, part in spread) == pytest.approx(sum(map(len, ways)) / len(ways))
        assert len({link for link, _ in spread}) == len(spread)


def test_dimension_order_and_the_nearer_way_round():
    shape = Torus(extents=(5, 4))
    assert next(shape.ways(0, 4 + 5)) == ((0, 1, 0), (1, 0, 4))
    opposite = set(shape.ways(0, 10))
    assert opposite == {((1, 0, 0), (1, 0, 5)), ((1, 1, 0), (1, 1, 15))}
    assert next(MeshShape(extents=(5, 4)).ways(0, 4)) == tuple((0, 0, n) for n in range(4))
    assert len(set(shape.ways(0, 6))) == 2 and len(set(shape.ways(0, 11))) == 4


def test_d_mod_k():
    shape = FatTree(extents=(2, 2), up=(1, 2))
    assert next(shape.ways(0, 3)) == ((0, 0, 0, 0), (1, 0, 0, 0, 1), (1, 1, 1, 0, 1),
                                      (0, 1, 3, 0))
    assert next(shape.ways(0, 2))[1] == (1, 0, 0, 0, 0)


def test_rates_of_kinds_of_links():
    torus = Torus(extents=(4, 4), bytes_per_second=(1e9, 2e9))
    assert [torus.capacity(link, 5e9) for link in next(torus.ways(0, 5))] == [1e9, 2e9]
    tree = FatTree(extents=(2, 2, 2), up=(1, 2, 2), bytes_per_second=(1e9, 2e9, 4e9),
                   routing="spread")
    assert [tree.capacity(link, 5e9) for link, _ in tree.all_shortest(0, 7)[:3]] == [1e9, 4e9, 16e9]
    assert Dragonfly(extents=(2, 2, 2)).capacity((1, 0, 1, 0), 5e9) == 5e9


def test_too_many_ways_to_choose_from():
    shape = FatTree(extents=(64, 64, 64), routing="adaptive")
    with pytest.raises(ArgumentError, match="4,096|spread"):
        FatTree(extents=(65, 65, 65), routing="adaptive").routes(0, 64 * 65 * 65)
    assert len(shape.routes(0, 64)) == 64
    for routing in ("spread", "adaptive"):
        with pytest.raises(ArgumentError, match="4,096"):
            Torus(extents=(2,) * 12, routing=routing).routes(0, 4095)
