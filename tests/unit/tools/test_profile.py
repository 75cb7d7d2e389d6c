"""Profiles as tables and pictures."""

import pytest

from hpccoll.measure.profiling.profile import CallRow, Profile, rows_of
from hpccoll.tools.profile import LINES, draw, lines

LONGEST = "knomial k=16, compiled"


def made(count, **more):
    """A profile of so many kinds of calls, with names and numbers as long as they get."""
    titles = [f"reduce_scatter_block{suffix}" for suffix in ("", "_init")]
    rows = [CallRow(title, 1023 << 20, 1023 << 20, "f8 sum", f"{LONGEST} {number}", (12345678,),
                    123.4, 61.7, 12.345, 10.25, 3.0, **more)
            for number in range(count) for title in titles[:1 + number % 2]][:count]
    return Profile(1000, 500.0, rows_of(rows), tuple(rows))


@pytest.mark.parametrize("width", [80, 100, 140])
@pytest.mark.parametrize("count", [0, 1, 2, LINES + 3])
def test_a_table_fits_its_columns(count, width):
    text = lines(made(count), width)
    assert max(map(len, text)) <= width
    assert "1000 ranks: collectives took" in "\n".join(text)
    assert any("more rows" in line for line in text) == (count > LINES)


def test_columns_that_do_not_fit_are_named():
    narrow, wide = (" ".join(lines(made(1), width)) for width in (80, 140))
    assert "vs native" in narrow and "12.35" not in narrow
    assert "--json also has column max/mean." in narrow
    assert "12.35" in wide and "--json" not in wide


@pytest.mark.parametrize("count", [0, 3, 40])
def test_a_picture_is_drawn_of_any_number_of_rows(tmp_path, count):
    draw(made(count), tmp_path / "profile.svg")
    assert "</svg>" in (tmp_path / "profile.svg").read_text()
