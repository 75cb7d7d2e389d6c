"""Levels of a machine: the position of a rank, and how ranks nest."""

import pytest

from hpccoll.cuda.gpus import GpuLinks, choose_gpu
from hpccoll.errors import ArgumentError
from hpccoll.ir.topology import Topology
from hpccoll.machine.levels import GroupLevels, Position, inside, layout, position


def machine(tmp_path, cpus, sockets, numas, caches):
    """A machine's /sys: every processor's socket, NUMA group, and first processor on its L3."""
    for cpu in range(cpus):
        folder = tmp_path / f"cpu/cpu{cpu}"
        (folder / "topology").mkdir(parents=True)
        (folder / "topology/physical_package_id").write_text(f"{sockets[cpu]}\n")
        (folder / "cache/index3").mkdir(parents=True)
        (folder / "cache/index3/shared_cpu_list").write_text(f"{caches[cpu]}-{caches[cpu] + 1}\n")
        (folder / f"node{numas[cpu]}").mkdir()
    return tmp_path


def test_inside_a_node(tmp_path):
    system = machine(tmp_path, 8, [0] * 4 + [1] * 4, [0, 0, 1, 1, 2, 2, 3, 3],
                     [0, 0, 2, 2, 4, 4, 6, 6])
    assert inside((5,), system) == (1, 2, 4)
    assert inside((4, 5, 6), system) == (1, -1, -1)
    assert inside(tuple(range(8)), system) == (-1, -1, -1)
    assert inside((99,), system) == (-1, -1, -1)


def test_this_machine_is_understood():
    assert len(inside((0,))) == 3
    assert position([0], {}).host


def test_the_switches_above_a_node():
    """From a file where there is one, from Slurm's variables otherwise."""
    network = {"n02": ("top", "s1")}
    slurm = {"SLURMD_NODENAME": "n02", "SLURM_TOPOLOGY_ADDR": "s7.n02",
             "SLURM_TOPOLOGY_ADDR_PATTERN": "switch.node"}
    assert position([0], slurm, network).switches == ("top", "s1")
    assert position([0], slurm).switches == ("s7",)
    with pytest.raises(ArgumentError, match="HPCCOLL_NETWORK: .*'n9'"):
        position([0], {"SLURMD_NODENAME": "n9"}, network)


def test_islands_of_gpus_are_a_level():
    links = GpuLinks(tuple("abcd"), (), {("a", "b"): "NV4", ("c", "d"): "NV4", ("b", "c"): "SYS"})

    def placed(environ):
        return position((), environ, gpu=links.islands().get(choose_gpu(links, environ), -1))

    places = [placed({"CUDA_VISIBLE_DEVICES": str(n)}) for n in range(4)]
    assert layout([0] * 4, places, ("node", "gpu")) == GroupLevels(Topology.parse("2x2"), ("gpu",))
    assert layout([0] * 4, places, ("node",)).names == ()
    unknown = placed({})
    assert unknown.gpu == -1
    assert layout([0] * 4, [*places[:3], unknown], ("node", "gpu")).names == ()


def ranks(count, **by_rank):
    """Positions of ranks; every value is a function of the rank."""
    return [Position("x", **{name: value(n) for name, value in by_rank.items()})
            for n in range(count)]


@pytest.mark.parametrize("nodes, positions, text, names", [
    ([0] * 4, ranks(4), "4", ()),
    ([0, 0, 2, 2], ranks(4), "2x2", ("node",)),
    ([0, 1, 2, 3], ranks(4), "4x1", ("node",)),
    ([0, 0, 0, 3], ranks(4), "3,1", ("node",)),
    # Ranks dealt out over nodes, over sockets of nodes, over switches, in runs of two.
    ([0, 1, 0, 1], ranks(4, socket=lambda n: n // 2), "2x2@0,2,1,3", ("node",)),
    ([0, 1] * 4, ranks(8, socket=lambda n: n // 2 % 2), "2x2x2@0,4,2,6,1,5,3,7",
     ("node", "socket")),
    ([0, 0, 0, 0, 4, 4, 4, 4], ranks(8, socket=lambda n: n % 2),
     "2x2x2@0,2,1,3,4,6,5,7", ("node", "socket")),
    ([0, 0, 2, 2, 4, 4], ranks(6, switches=lambda n: (f"s{n // 2 % 2}",)),
     "(2x2),(1x2)@0,1,4,5,2,3", ("switch", "node")),
    ([0, 0, 2, 2, 0, 0, 2, 2], ranks(8), "2x4@0,1,4,5,2,3,6,7", ("node",)),
    # Uneven nodes; a node's first rank decides where it stands.
    ([0, 1, 2, 0, 0, 2], ranks(6), "3,1,2@0,3,4,1,2,5", ("node",)),
    ([0] * 4, ranks(4, socket=lambda n: n // 2), "2x2", ("socket",)),
    # A level that says no more than the one above, or names single ranks, is left out.
    ([0] * 4, ranks(4, socket=lambda n: n // 2, numa=lambda n: n // 2, l3=lambda n: n),
     "2x2", ("socket",)),
    # Ranks dealt out over sockets, or free to run on several.
    ([0] * 4, ranks(4, socket=lambda n: n % 2), "2x2@0,2,1,3", ("socket",)),
    ([0] * 4, ranks(4, socket=lambda n: n // 2 if n else -1), "4", ()),
    ([0] * 4, ranks(4, socket=lambda n: n % 2, numa=lambda n: n // 2), "2x2@0,2,1,3",
     ("socket",)),
    ([0, 0, 0, 0, 4, 4, 4, 4], ranks(8, socket=lambda n: n // 2 % 2, l3=lambda n: n),
     "2x2x2", ("node", "socket")),
    ([0, 0, 0, 0, 4, 4], ranks(6, numa=lambda n: n // 3), "(3,1),(1x2)", ("node", "numa")),
    ([0, 0, 2, 2, 4, 4], ranks(6, switches=lambda n: ("top", "s0" if n < 4 else "s1")),
     "(2x2),(1x2)", ("switch", "node")),
    # A switch for every node, and one for all, say nothing.
    ([0, 0, 2, 2], ranks(4, switches=lambda n: ("top", f"s{n // 2}")), "2x2", ("node",)),
    ([0, 1, 2, 3], ranks(4, switches=lambda n: (f"s{n % 2}",)), "2x2x1@0,2,1,3",
     ("switch", "node")),
    # A node below two switches at a time says nothing about switches, unless it is all there is.
    ([0] * 4, ranks(4, switches=lambda n: (f"s{n % 2}",)), "2x2@0,2,1,3", ("switch",)),
    ([0, 1, 0, 1], ranks(4, switches=lambda n: (f"s{n // 2}",)), "2x2@0,2,1,3", ("node",)),
    ([0, 1, 2, 3], ranks(4, switches=lambda n: ("s",) * (1 + n % 2)), "4x1", ("node",)),
    (list(range(8)), ranks(8, switches=lambda n: (f"t{n // 4}", f"s{n // 2}")), "2x2x2x1",
     ("switch", "switch", "node")),
    ([0], ranks(1), "1", ())])
def test_layouts(nodes, positions, text, names):
    found = layout(nodes, positions)
    assert found == GroupLevels(Topology.parse(text), names)
    assert found.topology.depth == len(names) + 1


def test_only_the_levels_that_are_wanted():
    nodes = [0, 0, 0, 0, 4, 4, 4, 4]
    positions = ranks(8, socket=lambda n: n // 2 % 2, switches=lambda n: (f"s{n // 4}",))
    assert layout(nodes, positions, ("switch", "node")).names == ("node",)
    assert layout(nodes, positions, ("node", "socket")).names == ("node", "socket")


def test_large_layouts_are_quick():
    nodes = [n - n % 8 for n in range(100_000)]
    found = layout(nodes, [Position("x", (f"s{n // 800}",), n // 4 % 2) for n in range(100_000)])
    assert str(found.topology) == "125x100x2x4"


def test_large_layouts_of_ranks_dealt_out_are_quick():
    found = layout([n % 1000 for n in range(100_000)], [Position("x")] * 100_000)
    assert str(found.topology).startswith("1000x100@0-99000/1000,1-99001/1000,")
    assert found.topology.positions[1001] == 101


def test_levels_that_are_not_wanted_do_not_order_ranks():
    positions = ranks(4, socket=lambda n: n % 2)
    assert str(layout([0] * 4, positions, ("switch", "node")).topology) == "4"
    assert str(layout([0, 1, 0, 1], positions, ("socket",)).topology) == "2x2@0,2,1,3"
