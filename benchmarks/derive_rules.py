"""Write the rules for many ranks on shared cores from tables of ``hpccoll tune``: ``make rules``.

    python benchmarks/derive_rules.py TABLE... -o hpccoll/tune/crowd_rules.py

A table belongs to one library and number of ranks. Its numbers of ranks divide the range of ranks:
8, 16 and 32 make rules for 5 to 11, 12 to 23, and 24 ranks and more. An algorithm gets a range of
sizes if it is faster than the library by ``GAIN`` at each of them; of several the one with the
least sum of ratios to the best.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import click

from hpccoll.config import NATIVE
from hpccoll.tune.table import Candidate, Curve, Fingerprint, read
from hpccoll.units import size_text

#: The library's time over ours from which a rule is worth it, and the part of the best time that
#: is lost to keep the algorithm of the size before.
GAIN, LOSS = 1.1, 1.1
#: Fewest ranks of the rules: for two to four there are others.
FEWEST = 5
HEAD = '''"""Rules for many ranks on shared cores of one node, written by ``make rules``.

Each row: collective, algorithm, bytes from and up to (exclusive), fewest and most ranks (0 for any),
MPI libraries. Measured with the compiled executor and blocking calls: {about}.
"""

ROWS = (
'''


class Span(NamedTuple):
    """A range of sizes with one algorithm, for one library and numbers of ranks."""

    collective: str
    algorithm: str
    nbytes: tuple[int, int]
    ranks: tuple[int, int]
    library: str


def spans(collective: str, curve: Curve, ranks: tuple[int, int], library: str) -> Iterator[Span]:
    """Yield the ranges of sizes of a measured curve; a range ends half-way to the next size."""
    current, start = "", 0
    sizes = [nbytes for nbytes, _ in curve]
    for number, (nbytes, times) in enumerate(curve):
        best = fastest(times)
        if current in best:
            best = current
        else:
            best = next(iter(best), "")
        begin = 1 if number == 0 and nbytes else middle(sizes, number - 1)
        if best != current:
            if current:
                yield Span(collective, current, (start, begin), ranks, library)
            current, start = best, begin
    if current:
        last = sizes[-1] + 1 if sizes[-1] else 0
        yield Span(collective, current, (start if last else 0, last), ranks, library)


def middle(sizes: Sequence[int], number: int) -> int:
    """Return the size in the middle of two measured ones, on the scale of powers."""
    if number < 0:
        return 0
    return int((sizes[number] * sizes[number + 1]) ** 0.5) + 1


def fastest(times: Mapping[Candidate, float]) -> list[str]:
    """Return the algorithms near the best that beat the library, the best first."""
    native = times.get(Candidate(NATIVE))
    plain = {one.name: seconds for one, seconds in times.items()
             if one.name != NATIVE and not one.params and not one.segment_bytes}
    if native is None or not plain:
        return []
    best = min(plain.values())
    return sorted((name for name, seconds in plain.items()
                   if seconds <= LOSS * best and native >= GAIN * seconds), key=plain.__getitem__)


def ranges_of(numbers: Sequence[int]) -> dict[int, tuple[int, int]]:
    """Return the fewest and the most ranks of the rules of each measured number of ranks."""
    found, fewest = {}, FEWEST
    for number, following in zip(numbers, [*numbers[1:], 0]):
        most = (number + following) // 2 - 1 if following else 0
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
    numbers = ", ".join(map(str, ranges))
    largest = max(nbytes for curves in measured.values() for curve in curves.values()
                  for nbytes, _ in curve)
    about = (f"{libraries};\n{numbers} ranks on {next(iter(measured)).host.rpartition(' ')[2]} "
             f"cores; sizes to {size_text(largest)}")
    Path(output).write_text(HEAD.format(about=about) + "".join(
        row(*one) for one in sorted(joined(found))) + ")\n", encoding="utf-8")


if __name__ == "__main__":
    command()
