"""What Slurm says about the network: variables, topology.conf, lists of hosts."""

import pytest

from hpccoll.errors import ArgumentError
from hpccoll.machine.slurm import expand_hosts, parse_network, slurm_switches


def test_slurm_says_nothing():
    assert slurm_switches({}) == ()
    assert slurm_switches({"SLURM_TOPOLOGY_ADDR": "n0", "SLURM_TOPOLOGY_ADDR_PATTERN": "node"}
                          ) == ()
    assert slurm_switches({"SLURM_TOPOLOGY_ADDR": "n0"}) == ()


CONF = """
# two racks
SwitchName=s0 Nodes=n[00-01] LinkSpeed=100
switchname=s1 nodes=n[02-03],login
SwitchName=top Switches=s[0-1]
"""


def test_network_files():
    assert parse_network(CONF) == {"n00": ("top", "s0"), "n01": ("top", "s0"), "n02": ("top", "s1"),
                                   "n03": ("top", "s1"), "login": ("top", "s1")}


@pytest.mark.parametrize("text, problem", [
    ("Nodes=n0", "line 1"), ("SwitchName=s0", "line 1"), ("nonsense", "line 1"),
    ("SwitchName=a Nodes=n0\nSwitchName=b Nodes=n0", "line 2: n0"),
    ("SwitchName=a Nodes=n0\nSwitchName=b Switches=a\nSwitchName=a Switches=b", "itself"),
    ("SwitchName=a Nodes=n[x-3]", "'x-3'")])
def test_bad_network_files(text, problem):
    with pytest.raises(ArgumentError, match=problem):
        parse_network(text)


def test_lists_of_hosts():
    assert expand_hosts("") == []
    assert expand_hosts("a,b") == ["a", "b"]
    assert expand_hosts("n[1-2]x,y[0]") == ["n1x", "n2x", "y0"]
    assert expand_hosts("n[098-101]") == ["n098", "n099", "n100", "n101"]
