"""What a communicator says of itself: in one line, and as a table in a notebook.

Nothing is sent: any rank may look alone, also at a communicator that was freed.
"""

from __future__ import annotations

from html import escape

from mpi4py import MPI

from hpccoll.comm.base import Base
from hpccoll.errors import HpccollError
from hpccoll.machine.identity import library_name
from hpccoll.runtime.compiled import executor
from hpccoll.runtime.context import existing
from hpccoll.units import count_text, size_text

#: Calls whose servers a notebook shows, and of how many bytes.
SHOWN, SIZES = ("allreduce", "bcast", "reduce", "allgather", "alltoall"), (1 << 10, 1 << 20)


class Shown(Base):
    """A communicator with words and a table."""

    def __repr__(self) -> str:
        """Its name, this rank, the layout if that is known, and the MPI library."""
        if self._is_gone():
            return f"<{self._kind_text()}: null, or freed>"
        layout = self._known_layout()
        words = [f"rank {self.Get_rank()} of {self.Get_size()}",
                 f"layout {layout}" if layout else "layout not looked at yet", library_name()]
        name = self.Get_name()
        return f"<{self._kind_text()}{f' {name!r}' if name else ''}: {', '.join(words)}>"

    def _repr_html_(self) -> str:
        """The same as a table, and what would serve some calls, where the layout is known."""
        if self._is_gone():
            return f"<pre>{escape(repr(self))}</pre>"
        layout, name = self._known_layout(), self.Get_name()
        facts = {"ranks": f"{count_text(self.Get_size(), 'rank')}, this is {self.Get_rank()}",
                 "layout": layout or "not looked at yet", "MPI library": library_name(),
                 "executor": executor(self._config)}
        rows = [f"<b>{escape(self._kind_text())}{escape(f' {name}' if name else '')}</b><table>",
                *(_row(what, (fact,)) for what, fact in facts.items()), "</table>"]
        if layout and self.Get_size() > 1:
            rows += ["<table>", _row("would run", [size_text(nbytes) for nbytes in SIZES]),
                     *(_row(call, [self._server(call, nbytes) for nbytes in SIZES])
                       for call in SHOWN), "</table>"]
        return "".join(rows)

    def _server(self, call: str, nbytes: int) -> str:
        """What would serve a call, without why; see ``explain``."""
        try:
            said = self.explain(call, nbytes).splitlines()[0]  # type: ignore[attr-defined]
        except HpccollError as error:
            return str(error)
        return said.partition(": ")[2].partition(" (")[0]

    def _kind_text(self) -> str:
        return f"hpccoll.{type(self).__name__}"

    def _is_gone(self) -> bool:
        return self == MPI.COMM_NULL or self._lifetime is None or self._lifetime.freed

    def _known_layout(self) -> str:
        """The layout where it was found or given; nothing before."""
        context = existing(self)
        layout = context.topology if context else self._layout
        return str(layout) if layout else ""


def _row(what: str, facts: tuple[str, ...] | list[str]) -> str:
    cells = "".join(f'<td style="text-align:left">{escape(fact)}</td>' for fact in facts)
    return f'<tr><th style="text-align:left">{escape(what)}</th>{cells}</tr>'
