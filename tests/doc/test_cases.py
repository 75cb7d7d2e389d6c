"""Every case of docs/internal/cases.md is held by tests that are there, or says why not."""

import re

from launch import ROOT

from support.folded import folded

PAGE = ROOT / "docs" / "internal" / "cases.md"
ROWS = [[cell.strip() for cell in line.strip("|").split(" | ")]
        for line in PAGE.read_text(encoding="utf-8").splitlines()
        if re.match(r"\| [A-Z]\d", line)]
#: How many cases each group has.
GROUPS = {"L": 10, "F": 15, "X": 15, "I": 18, "C": 12, "E": 8, "N": 11}
#: Those that no test holds.
OPEN = {"L9", "I12", "N11"}


def test_no_case_is_missing():
    assert [row[0] for row in ROWS] == [f"{group}{number + 1}" for group, count in GROUPS.items()
                                        for number in range(count)]


@folded("row", ROWS)
def test_a_case_is_held_by_tests_or_has_a_reason(row):
    name, what, held = row
    assert what
    assert held.startswith("—") == (name in OPEN) and len(held) > 15
    for path, test in re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", held):
        text = (ROOT / path).read_text(encoding="utf-8")
        assert f"def {test}(" in text if test else "def test_" in text or "def main(" in text
    if name not in OPEN:
        one = r"`tests/[\w/]+\.py(::test_\w+)?`"
        assert re.fullmatch(f"{one}(, {one})*", held)
