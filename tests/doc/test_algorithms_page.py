"""The page of all algorithms, as docs/algorithms_page.py makes it."""

import re
from pathlib import Path

import pytest

import hpccoll
from docs.algorithms_page import CHOOSER, as_markdown
from hpccoll.algorithms import ALGORITHMS
from hpccoll.errors import ArgumentError, ScheduleError
from hpccoll.ir.collectives import COLLECTIVES, slot_keys
from hpccoll.lang import IN, OUT, Program, at, copy

ROOT = Path(__file__).resolve().parents[2]
NAMES = {name for table in ALGORITHMS.values() for name in table}


def test_links_lead_to_the_builders():
    links = re.findall(r"\[`(\w+)`\]\(\.\./([^)]*)\)", as_markdown())
    assert len(links) == sum(map(len, ALGORITHMS.values()))
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


def test_the_page_for_authors_has_the_slots_of_each_collective():
    page = (ROOT / "docs" / "write-your-own-algorithm.md").read_text("utf-8")
    rows = re.findall(r"^\| `(\w+)` \| `(rank, size[^`]*)` \| ([^|]*) \| ([^|]*) \|$", page,
                      re.MULTILINE)
    assert {row[0] for row in rows} == set(COLLECTIVES)
    for name, taken, *cells in rows:
        kind = COLLECTIVES[name]
        assert taken == "rank, size" + ", root" * kind.rooted
        for rank in (0, 2):
            keys = slot_keys(kind, rank, 4, 2, 6)
            for buffer, text in zip((IN, OUT), cells):
                words = {"n": 6, "p": 4}.get(text[0], 0 if text[0] == "0" else 1)
                held = 0 if "on the root" in text and rank != 2 else words
                assert len(keys.get(buffer, ())) == held, (name, buffer, rank)


def test_errors_of_a_first_broadcast_say_what_it_has():
    def reads_input(rank, size, root):
        return Program(((copy(at(OUT, 0), at(IN, 0)),),))

    with pytest.raises(ScheduleError, match="bcast has no input; the root's data are in OUT"):
        hpccoll.verify(hpccoll.schedule("bcast", reads_input, 4))
    with pytest.raises(ScheduleError, match="only the root has an input in scatter"):
        hpccoll.verify(hpccoll.schedule("scatter", reads_input, 4, root=1))
    with pytest.raises(ArgumentError, match=r"takes \(rank, size\); bcast passes it "
                                            r"\(rank, size, root\)"):
        hpccoll.schedule("bcast", lambda rank, size: Program(()), 4)
