"""``hpccoll topo`` on real ranks: everybody agrees on the layout, every pair is measured."""

import json

import pytest
from mpi4py import MPI

pytest.importorskip("click")
pytest.importorskip("rich")

from click.testing import CliRunner  # noqa: E402

from hpccoll.cli import main  # noqa: E402
from hpccoll.errors import HpccollError  # noqa: E402
from hpccoll.topo import measure, survey  # noqa: E402

pytestmark = pytest.mark.mpi
WORLD = MPI.COMM_WORLD


def test_every_rank_knows_the_same_machine():
    machine = survey(WORLD)
    assert WORLD.allgather(machine) == [machine] * WORLD.size
    assert machine.layout.topology.size == WORLD.size
    assert set(machine.nodes) == {0}


def test_every_pair_is_measured():
    ranks = range(min(WORLD.size, 3))
    links = measure(WORLD, ranks)
    assert (links is None) == (WORLD.rank != 0)
    if links is not None:
        assert list(links.latency) == [(a, b) for a in ranks for b in ranks if a < b]
        assert all(0 < seconds < 1 for seconds in links.latency.values())
        assert all(rate > 0 for rate in links.bandwidth.values())


def test_a_problem_of_one_rank_is_known_to_all(tmp_path, monkeypatch):
    path = WORLD.bcast(str(tmp_path / "topology.conf"))
    if WORLD.rank == 0:
        with open(path, "w") as file:
            file.write("SwitchName=s0 Nodes=here\n")
    monkeypatch.setenv("SLURMD_NODENAME", "here" if WORLD.rank < WORLD.size - 1 else "elsewhere")
    with pytest.raises(HpccollError, match="has no node 'elsewhere'"):
        survey(WORLD, path)


def test_switches_from_a_file(tmp_path, monkeypatch):
    path = WORLD.bcast(str(tmp_path / "topology.conf"))
    if WORLD.rank == 0:
        with open(path, "w") as file:
            file.write("SwitchName=s0 Nodes=n[0-1]\nSwitchName=s1 Nodes=n[2-9]\n")
    monkeypatch.setenv("SLURMD_NODENAME", f"n{WORLD.rank}")
    assert survey(WORLD, path).layout.names == (("switch",) if WORLD.size > 2 else ())


def test_command():
    ran = CliRunner().invoke(main, ["topo", "--json", "-", "--most", "2"])
    assert ran.exit_code == 0, ran.output
    if WORLD.rank == 0:
        record = json.loads(ran.stdout)
        assert len(record["ranks"]) == WORLD.size
        assert [each["level"] for each in record["links"]] == ["node"] * (WORLD.size > 1)
    else:
        assert ran.stdout == ""
