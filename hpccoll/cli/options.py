"""Parsers of command line options: lists, ranges, algorithms with parameters; output files."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from math import isfinite
from typing import Any, NamedTuple, TextIO

import click

from hpccoll.algorithms import ALGORITHMS, Algorithm, algorithm_names, find
from hpccoll.algorithms.outside import is_reference, load, parameters, read_algorithm
from hpccoll.atomic_file import is_writable, open_replacement
from hpccoll.errors import ArgumentError
from hpccoll.explain import plotting
from hpccoll.ir.collectives import collective_named
from hpccoll.ir.topology import Topology
from hpccoll.units import counts, size_range


class FiniteRange(click.FloatRange):
    """Range without infinity and ``nan``, which click accepts in every range."""

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        number = super().convert(value, param, ctx)
        return number if isfinite(number) else self.fail(f"{value!r} is not a finite number", param,
                                                         ctx)


class OneOf(click.Choice):
    """Choice of words; the error suggests a similar one."""

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        if value not in self.choices:
            problem = str(ArgumentError.unknown_word("", value, self.choices))
            self.fail(problem.removeprefix(": "), param, ctx)
        return super().convert(value, param, ctx)


class RankCount(click.IntRange):
    """Number of ranks; the error for a layout suggests the right option."""

    def convert(self, value: Any, param: Any, ctx: Any) -> int:
        if isinstance(value, str) and not value.strip().lstrip("+-").isdecimal():
            named = f"{value!r} is not a number of ranks"
            try:
                Topology.parse(value)
            except ArgumentError:
                self.fail(named, param, ctx)
            self.fail(f"{named}; write a layout as --topology {value}", param, ctx)
        return super().convert(value, param, ctx)


#: Types of durations and of percentages.
SECONDS, PERCENT = FiniteRange(min=0, min_open=True), FiniteRange(min=0)
#: Default smallest and largest bytes of measured buffers, and the largest accepted number.
SMALLEST, LARGEST, MOST = 8, 16 << 20, (1 << 40) - 1


def names(texts: Iterable[str]) -> list[str]:
    """Split comma-separated names.

    >>> names(["ring, bruck", "pat"])
    ['ring', 'bruck', 'pat']
    """
    return [name.strip() for text in texts for name in text.split(",") if name.strip()]


def layouts_of(nodes: str, ppn: str, topology: str | None) -> dict[int, Topology]:
    """Return the layout for every number of nodes of ``--nodes`` and ``--ppn`` or ``--topology``.

    >>> list(map(str, layouts_of("2:4", "4x2", None).values()))
    ['2x4x2', '4x4x2']
    """
    if topology is not None:
        layout = layout_of("--topology", topology)
        return {len(layout.groups()): layout}
    layout_of("--ppn", ppn)
    inner = f"({ppn})" if "," in ppn else ppn
    return {count: Topology.parse(f"{count}x{inner}") for count in counts("--nodes", nodes)}


def layout_of(option: str, text: str) -> Topology:
    """Parse a layout."""
    try:
        return Topology.parse(text)
    except ArgumentError as error:
        raise ArgumentError(option, str(error).removeprefix(f"{error.argument}: ")) from error


def buffer_sizes(text: str, step: int) -> list[int]:
    """Parse the option ``-m``: ``[MIN:]MAX`` in bytes.

    >>> buffer_sizes("8:100", 4)
    [8, 32, 100]
    """
    return size_range("-m", text, step, SMALLEST, LARGEST, MOST)


class AlgorithmChoice(NamedTuple):
    """Algorithm of the command line: ``ring``, ``knomial:k=8``, ``my.py:torus:x=2``."""

    name: str
    params: dict[str, int]

    @property
    def label(self) -> str:
        """Return its text form."""
        return ":".join([self.name, *(f"{key}={value}" for key, value in self.params.items())])

    def entry(self, collective: str) -> Algorithm:
        return find(collective, self.name)


class AlgorithmType(click.ParamType):
    """Name of the table or of an installed package, or ``FILE.py:NAME``, with parameters."""

    name = "algorithm"

    def convert(self, value: Any, param: Any, ctx: Any) -> AlgorithmChoice:
        return value if isinstance(value, AlgorithmChoice) else parse_algorithm(value, self.name)


ALGORITHM = AlgorithmType()


def parse_algorithm(text: str, option: str = "--algorithm") -> AlgorithmChoice:
    """Parse an algorithm and its parameters.

    >>> parse_algorithm("my.py:torus:x=2:y=4")
    AlgorithmChoice(name='my.py:torus', params={'x': 2, 'y': 4})
    """
    return AlgorithmChoice(*read_algorithm(text, option))


def declared_collective(reference: str) -> str:
    """Return the collective that ``FILE.py:NAME`` declares."""
    collective = load(reference).collective
    if not collective:
        raise ArgumentError("collective", f"{reference} is a builder without a collective",
                            "name one, or wrap it: hpccoll.Algorithm(build, 'allreduce')")
    return collective


def collectives_of(name: str) -> list[str]:
    """Return the collectives that an algorithm implements, by its name or ``FILE.py:NAME``."""
    if is_reference(name):
        return [declared_collective(name)]
    known = algorithm_names()
    found = [collective for collective, its in known.items() if name in its]
    if not found:
        raise ArgumentError.unknown_word("algorithm or collective", name,
                                         chain(known, *known.values()))
    return found


def split_collectives(words: Iterable[AlgorithmChoice]
                      ) -> tuple[list[str], tuple[AlgorithmChoice, ...]]:
    """Split the words of a command into collectives and algorithms.

    >>> split_collectives([parse_algorithm("Allreduce"), parse_algorithm("ring")])
    (['allreduce'], (AlgorithmChoice(name='ring', params={}),))
    """
    collectives, algorithms = [], []
    for word in words:
        named = "" if is_reference(word.name) else collective_named(word.name)
        if named in ALGORITHMS and not word.params:
            collectives.append(named)
        else:
            algorithms.append(word)
    return collectives, tuple(algorithms)


def resolve_algorithm(collective: str | None, algorithm: AlgorithmChoice | None,
                      params: Iterable[str]) -> tuple[str | None, AlgorithmChoice | None]:
    """Resolve ``COLLECTIVE ALGORITHM``, or ``FILE.py:NAME`` alone, with ``-p``."""
    if collective is not None and not is_reference(collective):
        collective = collective_named(collective)
    if algorithm is None and collective is not None and is_reference(collective):
        algorithm = parse_algorithm(collective)
        collective = declared_collective(algorithm.name)
    elif algorithm is not None and collective not in ALGORITHMS:
        raise ArgumentError.unknown_word("collective", collective, ALGORITHMS)
    if algorithm is not None:
        more = parameters(params)
        for name in more:
            if name in algorithm.params:
                raise ArgumentError("--param", f"{name} is given twice")
        algorithm = AlgorithmChoice(algorithm.name, {**algorithm.params, **more})
    return collective, algorithm


def check_outputs(json_path: str | None, plot_path: str | None) -> None:
    """Check before the work that its results can be written."""
    if plot_path is not None:
        plotting.check(plot_path)
    if json_path not in (None, "-") and not is_writable(json_path):
        raise ArgumentError("--json", f"cannot write {json_path!r}")


@contextmanager
def open_output(path: str, option: str = "--json") -> Iterator[TextIO]:
    """Open the file of ``--json``, which is replaced atomically; ``-`` is standard output."""
    if path == "-":
        yield sys.stdout
        return
    with report_write_errors(option, path), open_replacement(path) as file:
        yield file


@contextmanager
def report_write_errors(option: str, path: str) -> Iterator[None]:
    """Return a context that converts errors of writing the file of an option."""
    try:
        yield
    except OSError as error:
        raise ArgumentError(option, f"cannot write {path!r}: {error.strerror}") from error


def write_text(path: str, text: str) -> None:
    """Write the output of ``--json``."""
    with open_output(path) as file:
        file.write(text)
    if path != "-":
        click.echo(f"wrote {path}", err=True)
