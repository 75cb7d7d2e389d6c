"""What a node knows about its network; that all ranks agree is in tests/mpi/test_discover.py."""

import pytest
from mpi4py import MPI

from hpccoll.errors import ArgumentError
from hpccoll.machine import discovery


def test_one_rank_is_a_topology_of_one(monkeypatch):
    monkeypatch.setattr(discovery, "FABRICS", ())
    where = discovery.discover(MPI.COMM_SELF, MPI.COMM_SELF)
    assert (where.topology.size, where.oversubscribed, where.fabric) == (1, False, False)


def test_a_fabric_is_an_entry_of_the_system(monkeypatch, tmp_path):
    monkeypatch.setattr(discovery, "FABRICS", (f"{tmp_path}/infiniband/*", f"{tmp_path}/cxi/*"))
    assert not discovery.has_fabric()
    (tmp_path / "cxi/cxi0").mkdir(parents=True)
    assert discovery.has_fabric()


def test_files_about_the_network(tmp_path, monkeypatch):
    path = tmp_path / "topology.conf"
    assert discovery.read_network(str(path))[1].startswith(f"cannot read '{path}': ")
    path.write_bytes(b"\xff\xfe")
    assert "cannot read" in discovery.read_network(str(path))[1]
    path.write_text("SwitchName=s0 Nodes=n0\n")
    assert discovery.read_network(str(path)) == ("SwitchName=s0 Nodes=n0\n", "")
    monkeypatch.setenv("SLURMD_NODENAME", "n0")
    assert discovery.discover(MPI.COMM_SELF, MPI.COMM_SELF, network=str(path)).topology.size == 1
    monkeypatch.setenv("SLURMD_NODENAME", "n1")
    with pytest.raises(ArgumentError, match="^HPCCOLL_NETWORK: .*'n1'"):
        discovery.discover(MPI.COMM_SELF, MPI.COMM_SELF, network=str(path))
