"""Machines of the simulator: machine_model, shapes, files, routes and wires."""

import json
import math
from itertools import product

import pytest

from hpccoll.errors import ArgumentError
from hpccoll.simulator import machine_model
from hpccoll.simulator.grids import MeshShape, Torus
from hpccoll.simulator.machine_model import (
    Level,
    Machine,
    SwitchUnit,
    machine_as_data,
    machine_from_text,
)
from hpccoll.simulator.shape_files import shape_as_data, shape_from_data, shape_from_text
from hpccoll.simulator.switched import Dragonfly, FatTree

# Shapes: their links, their ways, and what is refused
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


def test_too_many_ways_to_choose_from():
    shape = FatTree(extents=(64, 64, 64), routing="adaptive")
    with pytest.raises(ArgumentError, match="4,096|spread"):
        FatTree(extents=(65, 65, 65), routing="adaptive").routes(0, 64 * 65 * 65)
    assert len(shape.routes(0, 64)) == 64
    for routing in ("spread", "adaptive"):
        with pytest.raises(ArgumentError, match="4,096"):
            Torus(extents=(2,) * 12, routing=routing).routes(0, 4095)


# Shapes as data and as text, and what is refused
SHAPE_FILES_ALL = ["torus:5", "torus:4x3:wrap=truexfalse", "mesh:3x2x4", "fat_tree:4x3:up=2x3",
       "dragonfly:4x2x3:cables=3"]


@pytest.mark.parametrize("text", SHAPE_FILES_ALL)
def test_as_data_and_back(text):
    shape = shape_from_text(f"{text}:routing=adaptive:hop_seconds=1e-7:joules_per_byte=1e-11")
    assert shape_from_data(json.loads(json.dumps(shape_as_data(shape))), "f") == shape
    machine = {"name": "m", "reduce_bytes_per_second": 1e9, "shape": shape_as_data(shape),
               "levels": [{"name": "n", "alpha_seconds": 0, "bytes_per_second": 1e9}]}
    made = machine_from_text(json.dumps(machine), "f")
    assert made.shape == shape and machine_as_data(made)["shape"] == shape_as_data(shape)


@pytest.mark.parametrize(("data", "problem"), [
    (3, "f: shape: .*object"),
    ({}, "f: shape.kind: None .*torus, mesh, fat_tree, dragonfly"),
    ({"kind": []}, r"shape.kind: \[\]"),
    ({"kind": "torus"}, "f: .*field extents"),
    ({"kind": "torus", "extents": []}, "f: shape.extents of torus: .*nodes"),
    ({"kind": "torus", "extents": [0]}, "shape.extents of torus: .*integer.*1"),
    ({"kind": "torus", "extents": [2.5]}, "shape.extents of torus: .*integer"),
    ({"kind": "torus", "extents": [1e6, 1e6]}, "16,777,216"),
    ({"kind": "torus", "extents": [4], "cables": 2}, "f: shape .*cables"),
    ({"kind": "torus", "extents": [4], "wrap": 1}, "shape.wrap of torus: .*true"),
    ({"kind": "mesh", "extents": [4, 4, 4], "wrap": [True, False]}, "one or 3, got"),
    ({"kind": "torus", "extents": [4], "routing": "best"}, "shape.routing of torus: .*stat"),
    ({"kind": "torus", "extents": [4], "duplex": True}, "shape.duplex of torus: .*full"),
    ({"kind": "torus", "extents": [4], "hop_seconds": -1}, "shape.hop_seconds of torus: "),
    ({"kind": "torus", "extents": [4], "bytes_per_second": 0}, "shape.bytes_per_second of torus"),
    ({"kind": "torus", "extents": [4, 4, 4], "bytes_per_second": [1, 2]}, "rate.*3.*2"),
    ({"kind": "torus", "extents": [4], "joules_per_byte": "1"}, "joules"),
    ({"kind": "torus", "extents": [4], "positions": [0, 0]}, "positions of torus"),
    ({"kind": "torus", "extents": [4], "positions": [4]}, "numbers.*4"),
    ({"kind": "fat_tree", "extents": [4, 4], "up": [1]}, "shape.up of fat_tree: .*2"),
    ({"kind": "fat_tree", "extents": [4], "up": [0]}, "shape.up of fat_tree: .*integer"),
    ({"kind": "dragonfly", "extents": [4, 4]}, "shape.extents of dragonfly: .*groups"),
    ({"kind": "dragonfly", "extents": [4, 4, 1], "cables": 0}, "shape.cables of dragonfly")])
def test_bad_shapes(data, problem):
    with pytest.raises(ArgumentError, match=problem):
        shape_from_data(data, "f")


@pytest.mark.parametrize(("text", "problem"), [
    ("torus", "shape: 'torus': shape.extents of torus"), ("torus:4x", "integer"),
    ("torus:4:wrap", "'wrap'"), ("torus:4:wrap=true:wrap=true", "'wrap"),
    ("ring:4", "shape.kind")])
def test_bad_texts(text, problem):
    with pytest.raises(ArgumentError, match=problem):
        shape_from_text(text)


# Machines by name and by file
GOOD = {"name": "m", "reduce_bytes_per_second": 1e9,
        "levels": [{"name": "network", "alpha_seconds": 1e-6, "bytes_per_second": 1e9}]}


def test_machines_that_come_along():
    for name in machine_model.names():
        machine = machine_model.find(name)
        assert machine.name == name
        assert machine.description
        assert machine.sources
        again = machine_from_text(json.dumps(machine_as_data(machine)), name)
        for level, other in zip(machine.levels, again.levels):
            assert (level.name, level.alpha, level.link, level.bus, level.overhead,
                    level.header) == (other.name, other.alpha, other.link, other.bus,
                                      other.overhead, other.header)
            assert level.beta == pytest.approx(other.beta)


def test_machines_by_file_and_not_at_all(tmp_path):
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(GOOD))
    assert machine_model.find(file) == machine_model.find(str(file))
    with pytest.raises(ArgumentError, match="'nowhere'"):
        machine_model.find("nowhere")
    with pytest.raises(TypeError, match="Machine"):
        machine_model.find(7)
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(ArgumentError, match="not text"):
        machine_model.find(file)
    with pytest.raises(ArgumentError, match="infinite"):
        machine_as_data(Machine("m", (Level("a", 0, 0),)))


# Machines as text: what is refused
A, B, G, N = 1.3e-6, 1 / 7e9, 1 / 11e9, 1e6
FLAT = Machine("flat", (Level("network", A, B),), G)


def changed(*where, **fields):
    data = json.loads(json.dumps(GOOD))
    place = data["levels"][0] if where else data
    for name, value in fields.items():
        if value is None:
            del place[name]
        else:
            place[name] = value
    return json.dumps(data)


@pytest.mark.parametrize(("text", "problem"), [
    ("{", "f.json: .*JSON"),
    pytest.param("[" * 100_000, "f.json: .*nested", id="nested"),
    pytest.param(changed(0, alpha_seconds=1).replace(": 1,", f": {'1' * 400},"),
                 r"levels\[0\].*alpha_seconds.*inf", id="400 digits"),
    pytest.param(changed(0, alpha_seconds=1).replace(": 1,", f": {'1' * 5000},"),
                 r"levels\[0\].*alpha_seconds.*inf", id="5000 digits"),
    ("[]", "f.json: .*object"),
    (changed(0, in_network=3), r"levels\[0\].*in_network.*object"),
    (changed(0, in_network={"alpha_seconds": 1}), "in_network.*field bytes_per_second"),
    (changed(0, in_network={"alpha_seconds": -1, "bytes_per_second": 1}),
     r"levels\[0\].*in_network.alpha_seconds.*0.*-1"),
    (changed(0, in_network={"alpha_seconds": 1, "bytes_per_second": 1, "reduces": "yes"}),
     "in_network.reduces.*'yes'"),
    (changed(0, in_network={"alpha_seconds": 1, "bytes_per_second": 1, "colour": 1}),
     "in_network.*colour"),
    (changed(name=None), "f.json: .*field name"),
    (changed(levels=[]), "f.json: levels: .*list"),
    (changed(colour=1), "f.json: .*colour"),
    (changed(reduce_bytes_per_second=None), "field reduce_bytes_per_second"),
    (changed(reduce_bytes_per_second=-1), "reduce_bytes_per_second: .*positive.*-1"),
    (changed(sources="x"), "f.json: sources: .*strings"),
    (changed(0, bytes_per_second=None), r"levels\[0\].*field bytes_per_second"),
    (changed(0, bytes_per_second=0), r"levels\[0\].*bytes_per_second.*0"),
    (changed(0, bytes_per_second="12"), r"levels\[0\].bytes_per_second: .*number"),
    (changed(0, alpha_seconds=-1e-6), r"levels\[0\].alpha_seconds: .*0"),
    (changed(0, link_bytes_per_second=True), "link_bytes_per_second: .*number"),
    (changed(0, beta=1), r"levels\[0\] .*beta"),
    (changed(0, name=""), r"levels\[0\].name: .*string"),
    (changed(0, alpha_seconds=math.nan), "f.json: NaN"),
    (changed(0, bytes_per_second=math.inf), "f.json: Infinity"),
    (changed(0, bytes_per_second=0).replace("0,", "1e999,"), "expected|must be positive"),
    ('{"name": "a", "name": "b"}', "f.json: name.*twice"),
    (changed(levels=GOOD["levels"] * 2), "levels.*name")])
def test_bad_machine_files(text, problem):
    with pytest.raises(ArgumentError, match=problem):
        machine_from_text(text, "f.json")


@pytest.mark.parametrize("wrong", [
    dict(alpha=-1), dict(beta=math.nan), dict(beta=math.inf), dict(link=0), dict(bus=-1),
    dict(overhead="1"), dict(alpha=True), dict(header=-1)])
def test_bad_levels(wrong):
    with pytest.raises(ArgumentError, match=f"{next(iter(wrong))} of level 'x'"):
        Level(**{"name": "x", "alpha": 1e-6, "beta": 1e-9, **wrong})


def test_bad_machines():
    with pytest.raises(ArgumentError, match="no levels"):
        Machine("m", ())
    with pytest.raises(ArgumentError, match="gamma.*'m'"):
        Machine("m", FLAT.levels, -1)


def test_what_switches_do_is_written_and_read_back():
    level = Level("network", A, B, in_network=SwitchUnit(2e-6, 1e-9, reduces=False))
    machine = Machine("m", (level, Level("node", A, B)), G)
    data = machine_as_data(machine)
    assert data["levels"][0]["in_network"] == {
        "alpha_seconds": 2e-6, "bytes_per_second": pytest.approx(1e9), "reduces": False}
    assert "in_network" not in data["levels"][1]
    again = machine_from_text(json.dumps(data), "f.json")
    assert again.levels[0].in_network == level.in_network and again.levels[1].in_network is None
    with pytest.raises(ArgumentError, match="in_network alpha"):
        SwitchUnit(-1, B)
    with pytest.raises(ArgumentError, match="in_network beta.*'network'"):
        machine_as_data(Machine("m", (Level("network", A, B, in_network=SwitchUnit(A, 0)),), G))


def used(wiring, channel):
    """What a channel uses, by kind."""
    held = range(*wiring.first_use[channel:channel + 2])
    return {wiring.resources[wiring.uses[use]].kind: (wiring.weights[use], wiring.holds[use])
            for use in held}
