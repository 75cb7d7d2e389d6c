"""``hpccoll topo`` on real ranks: everybody agrees on the layout, every pair is measured."""

import json
from itertools import combinations

import pytest
from mpi4py import MPI

pytest.importorskip("click")
pytest.importorskip("rich")

from click.testing import CliRunner

from hpccoll.cli import main
from hpccoll.errors import HpccollError
from hpccoll.tools.topo import (
    measure,
    survey,
)

pytestmark = pytest.mark.mpi
WORLD = MPI.COMM_WORLD


@pytest.fixture
def nodes():
    """For every rank, the smallest rank of its node: ranks may be on any nodes, in any order."""
    near = WORLD.Split_type(MPI.COMM_TYPE_SHARED, key=WORLD.rank)
    found = WORLD.allgather(near.allreduce(WORLD.rank, MPI.MIN))
    near.Free()
    return found


def test_every_rank_knows_the_same_machine(nodes):
    machine = survey(WORLD)
    assert WORLD.allgather(machine) == [machine] * WORLD.size
    assert machine.layout.topology.size == WORLD.size
    assert list(machine.nodes) == nodes
    if len(set(nodes)) > 1:  # ranks that count as one node may still be below several switches
        for a, b in combinations(range(WORLD.size), 2):
            assert (machine.meet(a, b) in ("network", "switch")) == (nodes[a] != nodes[b])


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
    with pytest.raises(HpccollError, match="'elsewhere'"):
        survey(WORLD, path)


@pytest.mark.parametrize("variable, text", [
    ("HPCCOLL_LEVELS", "bogus"), ("HPCCOLL_TOPOLOGY", "1000x2"), ("HPCCOLL_NETWORK", "/nosuch")])
def test_a_variable_of_one_rank_is_known_to_all(monkeypatch, variable, text):
    """The others would wait for it."""
    if WORLD.rank == (0 if variable == "HPCCOLL_NETWORK" else WORLD.size - 1):
        monkeypatch.setenv(variable, text)
    with pytest.raises(HpccollError, match=variable if "NET" in variable else "bogus|1000x2|2000"):
        survey(WORLD)
    ran = CliRunner().invoke(main, ["topo", "--no-measure"])
    assert ran.exit_code == 2 and ran.stderr.count("\n") == (WORLD.rank == 0)


def test_the_option_is_named_where_it_is_wrong():
    with pytest.raises(HpccollError, match="^--network: "):
        survey(WORLD, "/nosuch")


def test_switches_from_a_file(nodes, tmp_path, monkeypatch):
    """Two nodes are below one switch, the others below another; where there is only one, ranks are
    called nodes."""
    parts = sorted(set(nodes)) if len(set(nodes)) > 1 else list(range(WORLD.size))
    mine = nodes[WORLD.rank] if len(set(nodes)) > 1 else WORLD.rank
    path = WORLD.bcast(str(tmp_path / "topology.conf"))
    if WORLD.rank == 0:
        with open(path, "w") as file:
            file.write(f"SwitchName=s0 Nodes=n[0-1]\nSwitchName=s1 Nodes=n[2-{len(parts) + 1}]\n")
    monkeypatch.setenv("SLURMD_NODENAME", f"n{parts.index(mine)}")
    assert survey(WORLD, path).layout.names.count("switch") == (len(parts) > 2)


def test_command():
    machine = survey(WORLD)
    ran = CliRunner().invoke(main, ["topo", "--json", "-", "--most", "2"])
    assert ran.exit_code == 0, ran.output
    if WORLD.rank == 0:
        record = json.loads(ran.stdout)
        assert [each["node"] for each in record["ranks"]] == list(machine.nodes)
        assert len(record["links"]) == (WORLD.size > 1)
        assert all(each["level"] == machine.meet(*each["ranks"]) for each in record["links"])
    else:
        assert ran.stdout == ""
