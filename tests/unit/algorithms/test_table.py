"""The table: what it says about algorithms fits together."""

import pytest

from hpccoll.algorithms import ALGORITHMS, algorithm_names, find
from hpccoll.algorithms.entry import LARGE, SMALL
from hpccoll.algorithms.table import picks, reproducible
from hpccoll.errors import ArgumentError
from hpccoll.ir.collectives import COLLECTIVES
from support.folded import folded

ENTRIES = [pytest.param(collective, name, entry, id=f"{collective}-{name}")
           for collective, table in ALGORITHMS.items() for name, entry in table.items()]


def test_every_collective_has_algorithms():
    assert set(ALGORITHMS) == set(COLLECTIVES) and all(ALGORITHMS.values())
    assert algorithm_names()["barrier"] == tuple(ALGORITHMS["barrier"])


@folded("collective, name, entry", ENTRIES)
def test_an_entry_fits_together(collective, name, entry):
    reduces = COLLECTIVES[collective].reduces
    assert find(collective, name) is entry and entry.build.__doc__
    assert reduces or not (entry.rank_order or entry.exact_only or entry.chain
                           or entry.reproducible)
    assert not (entry.exact_only and entry.reproducible)
    assert not entry.reproducible or entry.rank_order and not entry.hierarchical
    assert {*entry.picks, *entry.reproducible} <= {SMALL, LARGE}
    assert not (entry.picks and entry.hierarchical)  # a few ranks may have one group only


@folded("collective, name, entry", ENTRIES)
def test_parameters_have_other_values_to_measure_and_to_prove(collective, name, entry):
    assert entry.params.keys() == entry.variants.keys()
    for key, (measured, edges) in entry.variants.items():
        assert len({entry.params[key], *measured}) >= 2
        assert min(*measured, *edges) in (1, 2) and not set(measured) & set(edges)


@pytest.mark.parametrize("collective", ALGORITHMS)
def test_some_algorithms_stand_for_the_others(collective):
    assert picks(collective, large=False) and picks(collective, large=True)


@pytest.mark.parametrize("collective", ALGORITHMS)
def test_one_algorithm_is_reproducible_for_each_length(collective):
    for length in (SMALL, LARGE):
        marked = [e for e in ALGORITHMS[collective].values() if length in e.reproducible]
        assert len(marked) == COLLECTIVES[collective].reduces


def test_reproducible_algorithms_are_named_for_short_messages_first():
    assert reproducible("allreduce") == ("recursive_doubling", "rabenseifner")
    assert reproducible("reduce") == ("rabenseifner",) and reproducible("bcast") == ()


def test_what_is_unknown_is_named_with_what_is_known():
    with pytest.raises(ArgumentError, match="allreduce, "):
        find("allredcue", "ring")
    with pytest.raises(ArgumentError, match="'ring'.*linear"):
        find("scan", "ring")
