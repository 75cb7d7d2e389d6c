"""Test tools for schedules; public, for other codes, too.

    exact.py            names of arrays/exact.py: inputs without rounding, expected results
    world.py            all ranks of a collective in one process, checked
    model_check.py      every order in which messages can arrive
    fault_injection.py  corrupt, lost, duplicate and reordered messages
    loopback_direct.py  loopback whose messages are used in place

No tool depends on the implementation of the part that it tests. A new operator goes into
``exact.MEANING``, a new way to run a world into ``world.run``, and tools of hpccoll's own tests
into tests/support.
"""

from __future__ import annotations

from collections.abc import Iterator

from hpccoll.algorithms import ALGORITHMS, Algorithm, schedule
from hpccoll.ir.collectives import COLLECTIVES
from hpccoll.ir.schedule import Schedule
from hpccoll.ir.topology import Topology


def layouts(size: int) -> list[Topology]:
    """Return layouts of ranks: even and ragged groups, two and three levels.

    >>> print(*layouts(6), sep="  ")
    2x3  1,5  2x(1,2)
    """
    half = size // 2
    texts = [f"{half},{size - half}", f"1,{size - 1}",
             f"({half // 2},{half - half // 2}),({(size - half) // 2},{-(-(size - half) // 2)})"]
    valid = texts[:(size > 1) + (size > 2) + (size > 3)] or [str(size)]
    return list(dict.fromkeys(Topology.parse(text) for text in valid))


def every(size: int, roots: range | None = None) -> Iterator[tuple[Algorithm, Schedule]]:
    """Yield every algorithm of the table for a size, with every root and several layouts."""
    for collective, table in ALGORITHMS.items():
        rooted = COLLECTIVES[collective].rooted
        for name, entry in table.items():
            for root in (range(size) if roots is None else roots) if rooted else (0,):
                for layout in layouts(size) if entry.hierarchical else (None,):
                    yield entry, schedule(collective, name, size, root=root, topology=layout)
