"""The table of algorithms as a list."""

import pytest

from hpccoll.algorithms import ALGORITHMS
from hpccoll.errors import ArgumentError
from hpccoll.explain import as_list, collectives
from hpccoll.explain.catalogue import first_line
from support.folded import folded

ENTRIES = [pytest.param(entry, id=f"{collective}-{name}")
           for collective, table in ALGORITHMS.items() for name, entry in table.items()]


def test_the_list_has_every_name_with_what_it_does():
    lines = as_list().splitlines()
    assert [line for line in lines if not line.startswith(" ")] == list(ALGORITHMS)
    assert f"  {'ring':22} Each block travels once round, left behind at every stop." in lines
    assert len(lines) == len(ALGORITHMS) + len(ENTRIES)
    assert as_list("scan").splitlines()[0] == "scan" and "ring" not in as_list("scan")


@pytest.mark.parametrize("width", [80, 100, 140])
def test_the_list_fits(width):
    assert max(map(len, as_list(width=width).splitlines())) <= width
    assert " ".join(as_list(width=width).split()) == " ".join(as_list().split())
    assert max(map(len, collectives(width).splitlines())) <= width
    assert collectives(width).split() == collectives().split()


def test_the_list_of_an_unknown_collective_names_the_known_ones():
    with pytest.raises(ArgumentError, match="'scam'.*'scan'"):
        as_list("scam")
    assert as_list("Iscan") == as_list("scan")


@folded("entry", ENTRIES)
def test_a_first_line_is_a_sentence(entry):
    line = first_line(entry)
    assert line[0].isupper() and line.endswith(".") and len(line) < 100
