"""What is written as text reads back as what it was."""

from hypothesis import given
from hypothesis import strategies as st
from law.strategies import topologies, trees

from hpccoll.algorithms import ALGORITHMS
from hpccoll.config import AUTO, NATIVE, parse_algorithms
from hpccoll.ir.topology import Topology


@given(trees(12).map(Topology) | topologies(30))
def test_topologies(topology):
    assert Topology.parse(str(topology)) == topology
    assert Topology.parse(str(topology), topology.size) == topology
    spaced = str(topology).replace(",", " , ").replace("(", "( ")
    assert Topology.parse(spaced) == topology


@given(topologies(30))
def test_groups_are_the_ranks_in_order(topology):
    assert [rank for group in topology.groups() for rank in group] == list(topology.ranks)
    assert [topology.ranks[position] for position in topology.positions] == list(
        range(topology.size))
    assert [child.size for child in topology.children] == (
        list(map(len, topology.groups())) if topology.children else [])


@st.composite
def choices(draw):
    """A choice for some of the collectives, with parameters."""
    chosen = {}
    for collective in draw(st.lists(st.sampled_from(list(ALGORITHMS)), unique=True)):
        name = draw(st.sampled_from([NATIVE, AUTO, *ALGORITHMS[collective]]))
        known = ALGORITHMS[collective][name].params if name in ALGORITHMS[collective] else {}
        chosen[collective] = name, {key: draw(st.integers(1, 99)) for key in known}
    return chosen


@given(choices(), st.sampled_from(["", " "]))
def test_choices_of_algorithms(chosen, space):
    entries = [f"{space}{collective}{space}={space}" + f"{space}:{space}".join(
        [name, *(f"{key}{space}={value}" for key, value in params.items())])
        for collective, (name, params) in chosen.items()]
    assert parse_algorithms(f"{space};{space}".join(entries)) == chosen
    assert parse_algorithms(";".join(entries) + f";{space}") == chosen
