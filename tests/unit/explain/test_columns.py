"""Tables that fit: which columns give way, what is cut, what is left out."""

import pytest

from hpccoll.explain.columns import FittedTable, Header

COLUMNS = (Header("size"), Header("algorithm", right=False), Header("time"),
           Header("p99", spare=2), Header("min", spare=3), Header("max", spare=3),
           Header("note", right=False, spare=1))
ROWS = [("8 B", "ring", "1 us", "3 us", "1 us", "9 us", ""),
        ("1 MiB", "recursive_multiplying:k=4:segment=65536", "310.5 us", "1 ms", "1 us", "2 ms",
         "-")]


@pytest.mark.parametrize("width", [60, 80, 100, 140])
def test_lines_fit(width):
    table = FittedTable(COLUMNS, ROWS, width)
    lines = table.lines(marked=[0])
    assert max(map(len, lines)) <= width
    assert lines[1].startswith("* ") and lines[2].startswith("  ")
    assert "note" not in lines[0]  # empty in every row
    assert all(word in lines[0] for word in ("size", "algorithm", "time"))


def test_columns_give_way_together_and_are_named():
    lean, wide = (FittedTable(COLUMNS, ROWS, width) for width in (75, 140))
    assert lean.hidden == ["min", "max"] and "p99" in lean.head
    assert lean.left_out() == "--full also shows: min, max"
    assert wide.hidden == [] and wide.left_out() == ""


def test_a_long_name_loses_its_middle():
    line = FittedTable(COLUMNS[:3], ROWS, 60).lines()[2]
    assert "recursive" in line and "=65536" in line
    line = FittedTable([Header("x", right=False)] * 3, [["y" * 50] * 3], 60).lines()[1]
    assert len(line) <= 60 and "\N{HORIZONTAL ELLIPSIS}" in line


def test_full_is_as_wide_as_it_is():
    table = FittedTable(COLUMNS, ROWS, 60, full=True)
    assert "min" in table.head and ROWS[1][1] in table.lines()[2]


def test_a_column_that_fits_takes_the_room_of_one_that_does_not():
    columns = [Header("name", right=False), Header("wide", spare=1), Header("thin", spare=2)]
    table = FittedTable(columns, [["n" * 40, "w" * 30, "t" * 5]], 60)
    assert "ttttt" in table.lines()[1] and table.left_out() == "--full also shows: wide"


def test_rows_one_by_one_keep_the_width():
    table = FittedTable([Header("size", least=8), Header("name", right=False, least=10)], width=60)
    assert {len(table.head), len(table.line(["8 B", "x" * 30], marked=True))} == {16, 22}
    assert table.line(["8 B", "ring"]) == "       8 B  ring"


def test_the_legend_says_what_is_not_plain():
    columns = [Header("x best", meaning="over the fastest"), Header("time", meaning="unseen")]
    assert FittedTable(columns, [["1", ""]]).legend() == ["x best: over the fastest"]
