"""``hpccoll.schedule``: a schedule that shows itself, as a picture in a notebook too."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import fields
from html import escape
from os import PathLike

from hpccoll import algorithms
from hpccoll.algorithms.entry import Algorithm
from hpccoll.errors import HpccollError
from hpccoll.explain.space_time import draw, painted
from hpccoll.explain.text import REPLAYED, as_text
from hpccoll.ir.schedule import Program, Schedule
from hpccoll.ir.topology import Topology


class ShownSchedule(Schedule):
    """A schedule with words and pictures.

    In a notebook it is its costs, what is proved of it, and its picture.
    """

    def explain(self, nbytes: int | None = None, brief: bool = False, rank: int | None = None
                ) -> str:
        """It in words; see :func:`hpccoll.explain.as_text`."""
        return as_text(self, nbytes, brief, rank)

    def draw(self, path: str | PathLike[str], nbytes: int | str | None = None) -> None:
        """Draw it into a file; see :func:`hpccoll.explain.draw`."""
        draw(self, path, nbytes)

    def _repr_svg_(self) -> str | None:
        """The picture; ``None`` where it is too large, or matplotlib is not installed."""
        text = io.StringIO()
        try:
            painted(self).savefig(text, format="svg", facecolor="white")
        except HpccollError:
            return None
        return text.getvalue()

    def _repr_html_(self) -> str:
        """Costs, what is proved, and the picture where there is one."""
        words = self.explain(brief=True) if self.size <= REPLAYED else str(self)
        picture = self._repr_svg_() or ""
        # Some notebooks show only what is HTML.
        drawing = picture[picture.find("<svg"):] if picture else ""
        return (f"<pre>{escape(words)}</pre><div style=\"max-width:830px\">{drawing}</div>")


def schedule(collective: str, algorithm: str | Callable[..., Program] | Algorithm = "ring",
             size: int | None = None, *, root: int = 0,
             topology: str | Topology | None = None, nblocks: int | None = None,
             **params: int) -> ShownSchedule:
    """Make a schedule from the table, or from a builder of your own.

    Args:
        collective: its name, as ``allreduce``, or as MPI spells it.
        algorithm: a name, or ``build(rank, size[, root], **params) -> Program``.
        size: number of ranks; may be left out when ``topology`` tells it.
        root: root rank of rooted collectives.
        topology: layout, for hierarchical algorithms. On one with an order of ranks of its own,
            reductions do not keep rank order.
        nblocks: blocks a vector is cut into, for a builder of your own; 1 if omitted.
        params: the algorithm's parameters, such as ``k=4``.

    Raises:
        ArgumentError: an unknown name, parameter or value; the message says what is valid.
    """
    made = algorithms.schedule(collective, algorithm, size, root=root, topology=topology,
                               nblocks=nblocks, **params)
    return ShownSchedule(**{field.name: getattr(made, field.name) for field in fields(made)})
