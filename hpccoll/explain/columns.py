"""Tables for people: columns that fit a width, and give way in an order where they do not.

Text only, so that it serves a terminal, ``print`` and a notebook alike; who prints adds colours to
whole lines. What is empty in every row is left out; what is the same in every row belongs into the
line above the table, which is the caller's to write.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

#: Characters of a line where nothing is known of the terminal, and of no line less than that.
WIDTH, NARROWEST = 100, 60
#: Between columns; a text column is not cut below so many characters.
GAP, SHORTEST = 2, 12
#: What marks the row that was chosen, or is best, and what stands in its place elsewhere.
MARK, NO_MARK = "* ", "  "
#: Cells that say nothing.
EMPTY = frozenset(("", "-"))


class Header(NamedTuple):
    """One column.

    Attributes:
        name: its head.
        right: set to the right, as numbers are; names are not.
        spare: 0 for a column that always stays; of the others, those of the lowest
            numbers have the room there is, all of one number together.
        meaning: for the legend, where the name does not say it.
        least: characters that it has at least, where rows come one by one.
    """

    name: str
    right: bool = True
    spare: int = 0
    meaning: str = ""
    least: int = 0


class FittedTable:
    """Columns with their widths, and the lines that they make.

    Attributes:
        shown, hidden: numbers of the columns that fit, and names of those that do not.
    """

    def __init__(self, columns: Sequence[Header], rows: Iterable[Sequence[str]] = (),
                 width: int = WIDTH, full: bool = False):
        self.columns, self.rows = columns, [list(row) for row in rows]
        self.widths = [max([len(c.name), c.least, *(len(row[n]) for row in self.rows)])
                       for n, c in enumerate(columns)]
        self.shown = [n for n in range(len(columns)) if not self.rows
                      or any(row[n] not in EMPTY for row in self.rows)]
        self.hidden: list[str] = []
        if not full:
            self._fit(max(width, NARROWEST))

    def _fit(self, width: int) -> None:
        """Leave columns out, then cut names, until a line is not longer than the width."""
        wanted = self.shown
        self.shown = [n for n in wanted if not self.columns[n].spare]
        for spare in sorted({self.columns[n].spare for n in wanted} - {0}):
            before = self.shown
            self.shown = [n for n in wanted if n in before or self.columns[n].spare == spare]
            if self._length() > width:
                self.shown = before
        self.hidden = [self.columns[n].name for n in wanted if n not in self.shown]
        while (beyond := self._length() - width) > 0:
            longest = max((n for n in self.shown if not self.columns[n].right),
                          key=lambda n: self.widths[n], default=None)
            if longest is None or self.widths[longest] <= SHORTEST:
                return
            self.widths[longest] = max(self.widths[longest] - beyond, SHORTEST)

    def _length(self) -> int:
        return len(MARK) + sum(self.widths[n] + GAP for n in self.shown) - GAP

    @property
    def head(self) -> str:
        """The names of the columns."""
        return self.line([column.name for column in self.columns])

    def line(self, cells: Sequence[str], marked: bool = False) -> str:
        """One row; a marked one is the one to look at."""
        words = []
        for n in self.shown:
            word = cells[n] if len(cells[n]) <= self.widths[n] else _cut(cells[n], self.widths[n])
            words.append(word.rjust(self.widths[n]) if self.columns[n].right
                         else word.ljust(self.widths[n]))
        return ((MARK if marked else NO_MARK) + (" " * GAP).join(words)).rstrip()

    def lines(self, marked: Iterable[int] = ()) -> list[str]:
        """Head and rows; ``marked`` are numbers of rows."""
        chosen = set(marked)
        return [self.head, *(self.line(row, n in chosen) for n, row in enumerate(self.rows))]

    def legend(self) -> list[str]:
        """What columns mean that do not say it, in lines."""
        return [f"{column.name}: {column.meaning}" for column in
                (self.columns[n] for n in self.shown) if column.meaning]

    def left_out(self) -> str:
        """A line about what does not fit; empty where all does."""
        return f"--full also shows: {', '.join(self.hidden)}" if self.hidden else ""


def _cut(word: str, width: int) -> str:
    """The word without its middle, whose ends tell it apart: a name, and its last parameter."""
    tail = (width - 1) // 3
    return word[:width - 1 - tail] + "\N{HORIZONTAL ELLIPSIS}" + word[len(word) - tail:]
