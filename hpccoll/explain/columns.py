"""Text tables: columns that fit a width, and are dropped by priority otherwise.

Text only, for terminals, ``print`` and notebooks; the caller adds colours to whole lines. Columns
that are empty in every row are omitted; values common to all rows belong in the line above the
table, which the caller writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from textwrap import wrap
from typing import NamedTuple

#: Line width of unknown terminals, and minimum line width.
WIDTH, NARROWEST = 100, 60
#: Characters between columns; minimum characters of a text column.
GAP, SHORTEST = 2, 12
#: Mark of the chosen or best row, and its placeholder in other rows.
MARK, NO_MARK = "* ", "  "
#: Cells without information.
EMPTY = frozenset(("", "-"))


class Header(NamedTuple):
    """One column.

    Attributes:
        right: True for right alignment, as of numbers; False for names.
        spare: 0 for a column that is never dropped. Of the others, the lowest numbers have
            priority; columns of one number are shown or dropped together.
        meaning: text of the legend, if the name is not enough.
        least: minimum characters, if rows are printed one by one.
    """

    name: str
    right: bool = True
    spare: int = 0
    meaning: str = ""
    least: int = 0


class FittedTable:
    """Columns with their widths, and their lines.

    Attributes:
        shown, hidden: indices of the columns that fit, and names of the others.
    """

    def __init__(self, columns: Sequence[Header], rows: Iterable[Sequence[str]] = (),
                 width: int = WIDTH, full: bool = False):
        self.columns, self.rows = columns, [list(row) for row in rows]
        self.widths = [max([len(c.name), c.least, *(len(row[n]) for row in self.rows)])
                       for n, c in enumerate(columns)]
        self.shown = [n for n in range(len(columns)) if not self.rows
                      or any(row[n] not in EMPTY for row in self.rows)]
        self.hidden: list[str] = []
        self.width = max(width, NARROWEST)
        if not full:
            self._fit(self.width)

    def _fit(self, width: int) -> None:
        """Drop columns, then narrow those of names, until a line fits the width."""
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
        """Return the line of headings."""
        return self.line([column.name for column in self.columns])

    def line(self, cells: Sequence[str], marked: bool = False) -> str:
        """Return the line of one row, with or without the mark.

        After a name that is longer than its column the row continues on the next line: no name is
        cut.
        """
        lines, start = [MARK if marked else NO_MARK], len(MARK)
        for n in self.shown:
            cell, width = cells[n], self.widths[n]
            last = n == self.shown[-1]
            if last and not self.columns[n].right:
                cell, *rest = wrap(cell, width, break_long_words=False,
                                   break_on_hyphens=False) or [""]
                lines[-1] += cell
                lines += [" " * start + part for part in rest]
                break
            if width < len(cell) <= self.width < start + len(cell):
                lines.append(" " * (self.width - len(cell)))
            lines[-1] += cell.rjust(width) if self.columns[n].right else cell.ljust(width)
            lines[-1] += " " * GAP
            start += width + GAP
            if len(cell) > width and not last:
                lines.append(" " * start)
        return "\n".join(line.rstrip() for line in lines)

    def lines(self, marked: Iterable[int] = ()) -> list[str]:
        """Return head and rows; ``marked`` are indices of rows."""
        chosen = set(marked)
        return [self.head, *(part for n, row in enumerate(self.rows)
                             for part in self.line(row, n in chosen).split("\n"))]

    def legend(self) -> list[str]:
        return [f"{column.name}: {column.meaning}" for column in
                (self.columns[n] for n in self.shown) if column.meaning]

    def left_out(self) -> str:
        """Return a line about the hidden columns; empty if there are none."""
        return f"--full also shows: {', '.join(self.hidden)}" if self.hidden else ""


def wrap_comment(line: str, width: int) -> list[str]:
    """Return a comment wrapped to a width; no line for an empty one."""
    return wrap(line, max(width, NARROWEST), initial_indent="# ", subsequent_indent="#   ",
                break_long_words=False, break_on_hyphens=False)
