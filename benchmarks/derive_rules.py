"""Write the rules for ranks of one node from the tables of measure_loops: ``make rules``.

    python benchmarks/derive_rules.py TABLE... -o hpccoll/tune/one_node_rules.py

A table belongs to one library and number of ranks: two with a core each, or more on shared cores.
The numbers of ranks of all tables divide the range of ranks: 2, 4, 8, 16 and 32 make rules for 2, 3
to 5, 6 to 11, 12 to 23, and 24 to 48 ranks. Each size gets
the library or an algorithm, so that the product of the losses is least, where each change of the
algorithm counts as the loss ``CHANGE``, and no algorithm is slower than the library.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import click

from hpccoll.algorithms import ALGORITHMS
from hpccoll.config import NATIVE
from hpccoll.tune.table import Candidate, Curve, Fingerprint, read
from hpccoll.units import size_text

#: Loss that a further range of sizes is worth; the library's time over ours that a rule is worth:
#: times of few ranks repeat better, but large messages that are only moved are read from the memory
#: of their sender, at one of two speeds.
CHANGE, GAIN, GAIN_OF_FEW, FEW = 1.25, 1.25, 1.08, 4
MOVES = "bcast", "allgather", "alltoall", "gather", "scatter"
#: Time over the best of an algorithm that is as good.
EQUAL = 1.06
#: Algorithms for several nodes, which are others under another name on one.
BETWEEN = "rails", "multi_leader", "crossing", "lane_census", "lane_bruck"
#: Fewest ranks of the rules; bytes from which the algorithm of the largest size holds above, too.
FEWEST, LARGE = 2, 8 << 20
HEAD = '''"""Measurements of ranks of one node, written by ``make rules``.

{about}.
"""

from __future__ import annotations

#: Collective, algorithm, bytes from and up to (exclusive; 0 for no limit), fewest and most
#: ranks, and MPI libraries.
ROWS: tuple[tuple[str, str, int, int, int, int, tuple[str, ...]], ...] = (
'''


class Span(NamedTuple):
    """A range of sizes with one algorithm, for one library and numbers of ranks."""

    collective: str
    algorithm: str
    nbytes: tuple[int, int]
    ranks: tuple[int, int]
    library: str


def spans(collective: str, curve: Curve, ranks: tuple[int, int], library: str) -> Iterator[Span]:
    """Yield the ranges of sizes of a measured curve.

    Between two algorithms a range ends half-way to the next size, and beside the library at twice,
    or half, the size that was measured.
    """
    sizes = [nbytes for nbytes, _ in curve]
    names = choices(collective, curve, ranks[0] <= FEW)
    for number, name in enumerate(names):
        if name == NATIVE or number and names[number - 1] == name:
            continue
        last = number
        while last + 1 < len(names) and names[last + 1] == name:
            last += 1
        start = middle(sizes, number - 1) if number else min(sizes[0], 1)
        end = middle(sizes, last) if last + 1 < len(sizes) else (
            sizes[-1] + 1 if 0 < sizes[-1] < LARGE else 0)
        if number and names[number - 1] == NATIVE:
            start = max(start, sizes[number] // 2)
        if last + 1 < len(sizes) and names[last + 1] == NATIVE:
            end = min(end, 2 * sizes[last] + 1)
        yield Span(collective, name, (start, end), ranks, library)


def choices(collective: str, curve: Curve, few: bool = False) -> list[str]:
    """Return the algorithm of each size, or the name of the library's own.

    Among equal ones the first of the table of algorithms is chosen: on two ranks many are the same.
    """
    order = [NATIVE, *ALGORITHMS[collective]]
    best: dict[int, tuple[float, list[int]]] = {-1: (1.0, [])}
    for nbytes, times in curve:
        sure = few and (nbytes < LARGE or collective not in MOVES)
        possible = losses_of(collective, times, few, GAIN_OF_FEW if sure else GAIN)
        best = {number: min(((cost * possible[name] * (1.0 if before in (number, -1) else CHANGE),
                              [*path, number]) for before, (cost, path) in best.items()))
                for number, name in enumerate(order) if name in possible}
    return [order[number] for number in min(best.values())[1]]


def losses_of(collective: str, times: Mapping[Candidate, float], few: bool, gain: float
              ) -> dict[str, float]:
    """Return the time over the best of the library, and of algorithms that are faster.

    Few ranks have no algorithms for nodes. A loss below ``EQUAL`` is none.
    """
    native = times.get(Candidate(NATIVE), 0.0)
    usable = {one.name: seconds for one, seconds in times.items() if one.name == NATIVE
              or not (one.params or one.segment_bytes or one.name in BETWEEN
                      or few and ALGORITHMS[collective][one.name].hierarchical)
              and native >= gain * seconds}
    usable.setdefault(NATIVE, native)
    least = min(usable.values()) or 1.0
    return {name: max(seconds / least / EQUAL, 1.0) for name, seconds in usable.items()}


def middle(sizes: Sequence[int], number: int) -> int:
    """Return the size in the middle of two measured ones, on the scale of powers."""
    return int((sizes[number] * sizes[number + 1]) ** 0.5) + 1


def ranges_of(numbers: Sequence[int]) -> dict[int, tuple[int, int]]:
    """Return the fewest and the most ranks of the rules of each measured number of ranks."""
    found, fewest = {}, FEWEST
    for number, following in zip(numbers, [*numbers[1:], 0]):
        most = (number + following) // 2 - 1 if following else 3 * number // 2
        found[number] = fewest, most
        fewest = most + 1
    return found


def joined(found: Sequence[Span]) -> list[tuple[Span, tuple[str, ...]]]:
    """Join equal ranges of several libraries."""
    libraries: dict[Span, list[str]] = {}
    for span in found:
        libraries.setdefault(span._replace(library=""), []).append(span.library)
    return [(span, tuple(sorted(names))) for span, names in libraries.items()]


def row(span: Span, libraries: Sequence[str]) -> str:
    """Return the row of the module."""
    names = ", ".join(f'"{name}"' for name in libraries)
    return (f'    ("{span.collective}", "{span.algorithm}", {span.nbytes[0]}, {span.nbytes[1]}, '
            f'{span.ranks[0]}, {span.ranks[1]}, ({names},)),\n')


@click.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(exists=True))
@click.option("-o", "--output", required=True, type=click.Path(), help="The module to write.")
def command(paths: tuple[str, ...], output: str) -> None:
    """Write the rules of measured tables."""
    measured: dict[Fingerprint, Mapping] = {}
    for path in paths:
        measured |= read(path)
    ranges = ranges_of(sorted({machine.ranks for machine in measured}))
    found = [span for machine, curves in sorted(measured.items(), key=lambda one: one[0].ranks)
             for (collective, commutes), curve in sorted(curves.items()) if commutes
             for span in spans(collective, curve, ranges[machine.ranks],
                               machine.mpi.rpartition(" ")[0])]
    libraries = ", ".join(sorted({machine.mpi for machine in measured}))
    cores = next(iter(measured)).host.rpartition(" ")[2]
    largest = max(nbytes for curves in measured.values() for curve in curves.values()
                  for nbytes, _ in curve)
    about = (f"Blocking calls by the compiled executor; {libraries};\n"
             f"{', '.join(map(str, ranges))} ranks on {cores} cores; sizes to {size_text(largest)}")
    Path(output).write_text(HEAD.format(about=about) + "".join(
        row(*one) for one in sorted(joined(found))) + ")\n", encoding="utf-8")


if __name__ == "__main__":
    command()
