"""The same schedules on the same platform in SimGrid, a simulator by other people.

Skipped where SimGrid's Python module is absent; on Debian: ``apt-get install python3-simgrid``.
SimGrid knows no port that serves levels of different rates, so all levels here have one rate. Its
tori, fat trees and dragonflies choose routes on their own; ports are out of the way there. Hops
take no time, because SimGrid gives messages of longer latency a smaller share of a link.
"""

import json
import math
import shutil
import subprocess
from pathlib import Path

import pytest

from hpccoll.algorithms import ALGORITHMS, schedule
from hpccoll.ir.cost.workload import Workload
from hpccoll.ir.topology import Topology
from hpccoll.simulator import simulate
from hpccoll.simulator.machine_model import Level, Machine
from hpccoll.simulator.shape_files import shape_from_text

PLATFORM = Path(__file__).with_name("simgrid_platform.py")
ALPHA, BETA, GAMMA = 2e-6, 1 / 10e9, 1 / 8e9
FREE = Machine("free", (Level("network", ALPHA, BETA), Level("node", ALPHA / 4, BETA)), GAMMA)
#: A node's link is as fast as one and a half of its four ranks.
NARROW = Machine("narrow", (Level("network", ALPHA, BETA, link=15e9),
                            Level("node", ALPHA / 4, BETA)), GAMMA)
#: Agreement asked for: what the project promises, and what the same rules of sharing should give.
CASES = [("allreduce", name, layout) for name, layout in (
    ("ring", "2x4"), ("recursive_doubling", "2x4"), ("recursive_doubling", "3x4"),
    ("rabenseifner", "4x4"), ("circulant", "3x4"), ("rails", "3x4"), ("leader", "3x4"),
    ("double_tree", "3x4"))]
CASES += [("allgather", "bruck", "3x4"), ("alltoall", "pairwise", "4x4"),
          ("alltoall", "linear", "3x4"), ("bcast", "binomial", "4x4"),
          ("bcast", "scatter_allgather", "3x4"), ("barrier", "dissemination", "3x4")]


#: Extents of a torus are odd, as SimGrid goes round another way to a node that lies opposite. Its
#: dragonfly has a cable from node to router, which here is the node's link.
SHAPES = ["torus:5x3x3", "torus:3x5:duplex=half", "fat_tree:4x3x2:up=1x2x2",
          "fat_tree:4x4:up=2x2", "fat_tree:4x3:up=1x2:duplex=half", "dragonfly:4x4x2"]
SHAPED = [("allreduce", "rabenseifner"), ("alltoall", "linear"), ("bcast", "binomial")]


def python():
    """A Python that has SimGrid."""
    for name in ("/usr/bin/python3", shutil.which("python3")):
        if name and Path(name).exists() and not subprocess.run(
                [name, "-c", "import simgrid"], capture_output=True, check=False,
                timeout=60).returncode:
            return name
    return None


def shape_of(machine):
    """What SimGrid needs to know to make such a shape of its own."""
    shape = machine.shape
    return shape and {"kind": shape.kind, "extents": shape.extents,
                      "up": getattr(shape, "up", ()), "rate": shape.bytes_per_second[0],
                      "hop": shape.hop_seconds, "duplex": shape.duplex}


@pytest.fixture(scope="module")
def simgrid():
    found = python()
    if found is None:
        pytest.skip("no Python here has SimGrid (on Debian: apt-get install python3-simgrid)")

    def run(made, nbytes, machine, layout):
        topology = Topology.parse(layout)
        work = Workload(made, nbytes)
        nodes = [node for node, group in enumerate(topology.groups()) for _ in group]
        case = {"nodes": nodes, "levels": [
            {"alpha": level.alpha, "beta": level.beta,
             "link": level.link if level.link < float("inf") else 0} for level in machine.levels],
            "rounds": [[(r.messages, r.reduced * machine.gamma) for r in work.rounds(rank)]
                       for rank in range(made.size)], "shape": shape_of(machine)}
        done = subprocess.run([found, str(PLATFORM)], input=json.dumps(case), text=True,
                              capture_output=True, timeout=100, check=False)
        assert done.returncode == 0, done.stderr
        answer = json.loads(done.stdout.splitlines()[-1])
        assert answer["done"] == made.size
        return answer["seconds"]

    return run


@pytest.mark.slow(every=10)
@pytest.mark.parametrize(("machine", "limit"), [(FREE, 0.05), (NARROW, 0.15)],
                         ids=["contention-free", "shared links"])
@pytest.mark.parametrize(("collective", "name", "layout"), CASES)
def test_agreement(simgrid, collective, name, layout, machine, limit):
    made = (schedule(collective, name, topology=layout)
            if ALGORITHMS[collective][name].hierarchical
            else schedule(collective, name, Topology.parse(layout).size))
    nbytes = 0 if collective == "barrier" else 4_800_000
    ours = simulate(made, nbytes, machine, layout).seconds
    theirs = simgrid(made, nbytes, machine, layout)
    print(f"{machine.name} {made.title} on {layout}: {ours:.6g} s, SimGrid {theirs:.6g} s, "
          f"{100 * (ours / theirs - 1):+.3f} %")
    assert ours == pytest.approx(theirs, rel=limit)


@pytest.mark.slow(every=10)
@pytest.mark.parametrize("text", SHAPES)
@pytest.mark.parametrize(("collective", "name"), SHAPED)
def test_shapes(simgrid, collective, name, text):
    """SimGrid's own routes over its own links."""
    shape = shape_from_text(f"{text}:bytes_per_second=2e9")
    link = 2e9 if shape.kind == "dragonfly" else math.inf
    machine = Machine("m", (Level("network", 0.0, 1e-14, link=link),), 0.0, shape=shape)
    made = schedule(collective, name, shape.nodes)
    ours = simulate(made, 480_000 * shape.nodes, machine).seconds
    theirs = simgrid(made, 480_000 * shape.nodes, machine, str(shape.nodes))
    print(f"{shape.describe()} {made.title}: {ours:.6g} s, SimGrid {theirs:.6g} s")
    assert ours == pytest.approx(theirs, rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("text", ["torus:5x3x3", "fat_tree:4x3x2:up=1x2x2"])
def test_hops_take_time(simgrid, text):
    shape = shape_from_text(f"{text}:bytes_per_second=2e9:hop_seconds=1e-6")
    machine = Machine("m", (Level("network", 0.0, 1e-14),), 0.0, shape=shape)
    made = schedule("allreduce", "ring", shape.nodes)
    assert simulate(made, 480_000, machine).seconds == pytest.approx(
        simgrid(made, 480_000, machine, str(shape.nodes)), rel=1e-4)
