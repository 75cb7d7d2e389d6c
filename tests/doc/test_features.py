"""The table of features names tests that are there."""

import re

import pytest
from launch import ROOT

PAGE = ROOT / "docs" / "internal" / "features.md"
ROWS = [[cell.strip() for cell in line.strip("|").split("|")]
        for line in PAGE.read_text(encoding="utf-8").splitlines()
        if line.startswith("| ") and not line.startswith("| feature")]


def test_there_are_rows():
    assert len(ROWS) > 40 and all(len(row) == 3 for row in ROWS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_feature_is_held_by_a_test_or_said_to_be_missing(row):
    feature, here, test = row
    if here.startswith("—"):
        assert not test and len(here) > 10
        return
    for each in test.split(", "):
        path, name = re.fullmatch(r"`(tests/[\w/]+\.py)(?:::(test_\w+))?`", each).groups()
        text = (ROOT / path).read_text(encoding="utf-8")
        assert f"def {name}(" in text if name else "def test_" in text
