"""What the ranks of a communicator find out about their machine, and agree on."""

import pytest
from mpi4py import MPI

import hpccoll
from hpccoll.errors import ArgumentError
from hpccoll.machine.discovery import discover
from hpccoll.machine.levels import LEVELS
from hpccoll.runtime.attributes import existing_context
from hpccoll.transport.shm.caches import share_a_cache

pytestmark = pytest.mark.mpi
WORLD = MPI.COMM_WORLD


@pytest.fixture
def near():
    comm = WORLD.Split_type(MPI.COMM_TYPE_SHARED, key=WORLD.rank)
    yield comm
    comm.Free()


@pytest.fixture
def alone():
    """Every rank as if it were alone on its node."""
    comm = WORLD.Split(WORLD.rank)
    yield comm
    comm.Free()


def slurm(monkeypatch, path):
    """What Slurm would say on a node below these switches."""
    monkeypatch.setenv("SLURM_TOPOLOGY_ADDR", ".".join([*path, f"n{WORLD.rank}"]))
    monkeypatch.setenv("SLURM_TOPOLOGY_ADDR_PATTERN", ".".join(["switch"] * len(path) + ["node"]))


def same(comm, value):
    assert comm.allgather(value) == [value] * comm.size
    return value


@pytest.mark.parametrize("levels", [("node",), ("switch", "node"), LEVELS])
def test_one_node(near, levels):
    found = same(WORLD, discover(WORLD, near, levels))
    assert found.topology.size == WORLD.size
    if levels[-1] == "node":
        assert str(found.topology) == str(WORLD.size)


def test_adapters_of_a_fabric_on_any_node(near, alone, monkeypatch, tmp_path):
    monkeypatch.setattr("hpccoll.machine.discovery.FABRICS", (str(tmp_path / "class" / "*"),))
    assert not same(WORLD, discover(WORLD, near)).fabric
    if WORLD.rank == WORLD.size - 1:
        (tmp_path / "class" / "mlx5_0").mkdir(parents=True)
    WORLD.Barrier()
    assert same(WORLD, discover(WORLD, alone)).fabric


@pytest.mark.parametrize("there", [True, False])
def test_rules_know_of_a_fabric(monkeypatch, tmp_path, there):
    monkeypatch.setattr("hpccoll.machine.discovery.FABRICS", (str(tmp_path / "*"),))
    if there:
        (tmp_path / "cxi0").touch()
    comm = hpccoll.Comm(WORLD.Dup())
    assert comm.layout.size == WORLD.size
    assert same(WORLD, existing_context(comm).place).fabric == there
    comm.Free()


@pytest.mark.parametrize("there", [True, False])
def test_rules_know_of_a_cache_that_two_ranks_share(monkeypatch, there):
    monkeypatch.setattr("hpccoll.runtime.ranks.share_a_cache", lambda pair: there)
    comm = hpccoll.Comm(WORLD.Dup())
    assert comm.layout.size == WORLD.size
    place = same(WORLD, existing_context(comm).place)
    assert place.shared_cache == (
        there and WORLD.size == 2 and place.one_node and not place.oversubscribed)
    comm.Free()


def test_whether_two_ranks_share_a_cache_is_agreed(near):
    if near.size == 2:
        same(near, share_a_cache(near))


def test_switches_that_slurm_knows(alone, monkeypatch):
    slurm(monkeypatch, ("top", f"s{WORLD.rank // 2}"))
    topology = same(WORLD, discover(WORLD, alone)).topology
    assert topology.depth == (1 if WORLD.size == 1 else 3 if WORLD.size > 2 else 2)
    if topology.depth == 3:
        assert topology.groups() == [range(n, min(n + 2, WORLD.size))
                                     for n in range(0, WORLD.size, 2)]
    assert discover(WORLD, alone, ("node",)).topology.depth == min(2, WORLD.size)


@pytest.mark.parametrize("bad", ["missing", "malformed", "without a node"])
def test_a_file_that_cannot_serve_is_an_error_on_every_rank(alone, monkeypatch, tmp_path, bad):
    path = WORLD.bcast(str(tmp_path / "network"))
    if WORLD.rank == 0 and bad != "missing":
        with open(path, "w") as file:
            file.write("nonsense" if bad == "malformed" else "SwitchName=a Nodes=n0")
    monkeypatch.setenv("SLURMD_NODENAME", "n0" if WORLD.rank != WORLD.size - 1 else "n9")
    WORLD.Barrier()
    with pytest.raises(ArgumentError, match="^HPCCOLL_NETWORK: "):
        discover(WORLD, alone, network=path)


def test_a_communicator_uses_the_levels_that_the_environment_names(monkeypatch, world):
    monkeypatch.setenv("HPCCOLL_LEVELS", ",".join(LEVELS))
    assert world.layout.size == WORLD.size
    x = WORLD.rank + 1
    with world.using(allreduce="rails"):
        assert hpccoll.Comm(world).allreduce(x) == WORLD.size * (WORLD.size + 1) // 2
