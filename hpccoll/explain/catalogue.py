"""Lists of the table of algorithms for a terminal."""

from __future__ import annotations

import inspect
from textwrap import wrap

from hpccoll.algorithms import ALGORITHMS, Algorithm, algorithm_names, find
from hpccoll.errors import ArgumentError
from hpccoll.explain.text import WANTS
from hpccoll.ir.collectives import collective_named


def first_line(entry: Algorithm) -> str:
    """Return the first line of the docstring of an algorithm's builder."""
    return (inspect.getdoc(entry.build) or "").partition("\n")[0]


def collectives(width: int = 1000) -> str:
    """Return the collectives, each with a description and its number of algorithms."""
    longest, lines = max(map(len, ALGORITHMS)), []
    for name, known in algorithm_names().items():
        lines += wrap(WANTS[name].replace("rank {root}", "the root").format(), width,
                      initial_indent=f"{name:{longest}}  {len(known):2} algorithms; ",
                      subsequent_indent=" " * (longest + 17))
    return "\n".join(lines) + "\n"


def as_list(collective: str | None = None, width: int = 1000) -> str:
    """Return the names of all algorithms, or of those for a collective, with descriptions.

    Algorithms of installed packages follow those of the table.

    Args:
        collective: name of a collective; all if omitted.
        width: characters of a line.

    Raises:
        ArgumentError: an unknown collective.
    """
    collective = None if collective is None else collective_named(collective)
    if collective is not None and collective not in ALGORITHMS:
        raise ArgumentError.unknown_word("collective", collective, ALGORITHMS)
    lines = []
    for base in [collective] if collective else ALGORITHMS:
        lines.append(base)
        for name in algorithm_names()[base]:
            lines += wrap(first_line(find(base, name)).replace("``", ""), width,
                          initial_indent=f"  {name:22} ", subsequent_indent=" " * 25)
    return "\n".join(lines) + "\n"
