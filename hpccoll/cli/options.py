"""Values of command line options that stand for several: lists, ranges, parameters."""

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
    """A range that holds neither infinity nor ``nan``, which click finds in every range."""

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        number = super().convert(value, param, ctx)
        return number if isfinite(number) else self.fail(f"{value!r} is not a finite number", param,
                                                         ctx)


class OneOf(click.Choice):
    """One of a few words; what was likely meant is named."""

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        if value not in self.choices:
            problem = str(ArgumentError.unknown_word("", value, self.choices))
            self.fail(problem.removeprefix(": "), param, ctx)
        return super().convert(value, param, ctx)


class RankCount(click.IntRange):
    """A number of ranks; the error for a layout names the option that it belongs to."""

    def convert(self, value: Any, param: Any, ctx: Any) -> int:
        if isinstance(value, str) and not value.strip().lstrip("+-").isdecimal():
            named = f"{value!r} is not a number of ranks"
            try:
                Topology.parse(value)
            except ArgumentError:
                self.fail(named, param, ctx)
            self.fail(f"{named}; write a layout as --topology {value}", param, ctx)
        return super().convert(value, param, ctx)


#: A time to spend, and a tolerance.
SECONDS, PERCENT = FiniteRange(min=0, min_open=True), FiniteRange(min=0)
#: Bytes of buffers to measure, where an option leaves an end out, and the most that one may have.
SMALLEST, LARGEST, MOST = 8, 16 << 20, (1 << 40) - 1


def names(texts: Iterable[str]) -> list[str]:
    """Split comma-separated names.

    >>> names(["ring, bruck", "pat"])
    ['ring', 'bruck', 'pat']
    """
    return [name.strip() for text in texts for name in text.split(",") if name.strip()]


def layouts_of(nodes: str, ppn: str, topology: str | None) -> dict[int, Topology]:
    """The layout for every number of nodes, as ``--nodes`` and ``--ppn`` or ``--topology`` say.

    >>> list(map(str, layouts_of("2:4", "4x2", None).values()))
    ['2x4x2', '4x4x2']

    Raises:
        ArgumentError: names the option.
    """
    if topology is not None:
        layout = layout_of("--topology", topology)
        return {len(layout.groups()): layout}
    layout_of("--ppn", ppn)
    inner = f"({ppn})" if "," in ppn else ppn
    return {count: Topology.parse(f"{count}x{inner}") for count in counts("--nodes", nodes)}


def layout_of(option: str, text: str) -> Topology:
    """The layout that an option says.

    Raises:
        ArgumentError: malformed text; names the option.
    """
    try:
        return Topology.parse(text)
    except ArgumentError as error:
        raise ArgumentError(option, str(error).removeprefix(f"{error.argument}: ")) from error


def buffer_sizes(text: str, step: int) -> list[int]:
    """Read what ``-m`` says: ``[MIN:]MAX`` in bytes.

    >>> buffer_sizes("8:100", 4)
    [8, 32, 100]

    Raises:
        ArgumentError: malformed, zero, or a range that runs backwards.
    """
    return size_range("-m", text, step, SMALLEST, LARGEST, MOST)


class AlgorithmChoice(NamedTuple):
    """An algorithm as the command line names it: ``ring``, ``knomial:k=8``, ``my.py:torus:x=2``."""

    name: str
    params: dict[str, int]

    @property
    def label(self) -> str:
        """Return its text form."""
        return ":".join([self.name, *(f"{key}={value}" for key, value in self.params.items())])

    def entry(self, collective: str) -> Algorithm:
        """Return its entry as an algorithm of the collective.

        Raises:
            ArgumentError: nothing.
        """
        return find(collective, self.name)


class AlgorithmType(click.ParamType):
    """A name of the table or of an installed package, or ``FILE.py:NAME``, with parameters."""

    name = "algorithm"

    def convert(self, value: Any, param: Any, ctx: Any) -> AlgorithmChoice:
        return value if isinstance(value, AlgorithmChoice) else parse_algorithm(value, self.name)


ALGORITHM = AlgorithmType()


def parse_algorithm(text: str, option: str = "--algorithm") -> AlgorithmChoice:
    """Read an algorithm and its parameters.

    >>> parse_algorithm("my.py:torus:x=2:y=4")
    AlgorithmChoice(name='my.py:torus', params={'x': 2, 'y': 4})

    Raises:
        ArgumentError: parameters that cannot be read.
    """
    return AlgorithmChoice(*read_algorithm(text, option))


def declared_collective(reference: str) -> str:
    """The collective that ``FILE.py:NAME`` says it implements.

    Raises:
        ArgumentError: it does not say; or there is no such thing.
    """
    collective = load(reference).collective
    if not collective:
        raise ArgumentError("collective", f"{reference} is a builder without a collective",
                            "name one, or wrap it: hpccoll.Algorithm(build, 'allreduce')")
    return collective


def collectives_of(name: str) -> list[str]:
    """The collectives that an algorithm implements, by its name or ``FILE.py:NAME``.

    Raises:
        ArgumentError: none has an algorithm of that name; or it does not say.
    """
    if is_reference(name):
        return [declared_collective(name)]
    known = algorithm_names()
    found = [collective for collective, its in known.items() if name in its]
    if not found:
        raise ArgumentError.unknown_word("algorithm", name, chain(*known.values()))
    return found


def resolve_algorithm(collective: str | None, algorithm: AlgorithmChoice | None,
                      params: Iterable[str]) -> tuple[str | None, AlgorithmChoice | None]:
    """Resolve ``COLLECTIVE ALGORITHM``, or ``FILE.py:NAME`` alone, with ``-p``.

    Raises:
        ArgumentError: unknown, or a parameter given twice.
    """
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
    """Find out before the work whether its results can be written.

    Raises:
        HpccollError: they cannot.
    """
    if plot_path is not None:
        plotting.check(plot_path)
    if json_path not in (None, "-") and not is_writable(json_path):
        raise ArgumentError("--json", f"cannot write {json_path!r}")


@contextmanager
def open_output(path: str, option: str = "--json") -> Iterator[TextIO]:
    """Open the file of ``--json``, which is written whole or not at all; ``-`` is standard output.

    Raises:
        ArgumentError: the file cannot be written.
    """
    if path == "-":
        yield sys.stdout
        return
    with report_write_errors(option, path), open_replacement(path) as file:
        yield file


@contextmanager
def report_write_errors(option: str, path: str) -> Iterator[None]:
    """Around what writes the file of an option.

    Raises:
        ArgumentError: it cannot be written.
    """
    try:
        yield
    except OSError as error:
        raise ArgumentError(option, f"cannot write {path!r}: {error.strerror}") from error


def write_text(path: str, text: str) -> None:
    """Write what ``--json`` asked for.

    Raises:
        ArgumentError: the file cannot be written.
    """
    with open_output(path) as file:
        file.write(text)
    if path != "-":
        click.echo(f"wrote {path}", err=True)
