"""The page of all algorithms, as docs/algorithms_page.py makes it."""

import re
from pathlib import Path

from docs.algorithms_page import CHOOSER, as_markdown
from hpccoll.algorithms import ALGORITHMS

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
