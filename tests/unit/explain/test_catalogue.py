"""The table of algorithms as a list and as a page."""

import re
from pathlib import Path

import pytest

from hpccoll.algorithms import ALGORITHMS
from hpccoll.errors import ArgumentError
from hpccoll.explain import as_list, as_markdown, collectives
from hpccoll.explain.catalogue import CHOOSER, first_line
from support.folded import folded

ROOT = Path(__file__).resolve().parents[3]
NAMES = {name for table in ALGORITHMS.values() for name in table}
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


def test_links_lead_to_the_builders():
    links = re.findall(r"\[`(\w+)`\]\(\.\./([^)]*)\)", as_markdown())
    assert len(links) == len(ENTRIES)
    for _, path in links:
        assert (ROOT / path).is_file()


def test_rows_have_the_cells_of_their_heads():
    sections = as_markdown().split("\n## ")[1:]
    assert len(sections) == 3 + len(ALGORITHMS)
    for section in sections:
        rows = [line for line in section.splitlines() if line.startswith("|")]
        assert len({line.count("|") for line in rows}) == 1, section


def test_what_is_sent_is_a_part_of_the_vector():
    page = as_markdown()
    for cells in ("`2⌈log₂p⌉` | `2(p - 1)/p`", "`⌊log₂p⌋ + 2f` | `(P - 1 +", "`⌈log₂p⌉` | `1` |",
                  "`≤ ⌊logₖp⌋ + 2` | `≤ (k - 1)⌈logₖp⌉`"):
        assert cells in page
    barrier = page.split("## barrier")[1].split("## ")[0]
    assert "| name | what it does | rounds | notes |" in barrier


def test_the_chooser_names_algorithms_that_there_are():
    assert len(CHOOSER) == 10
    for _, take in CHOOSER:
        assert set(re.findall(r"`(\w+)`", take)) <= NAMES | {"auto"}
