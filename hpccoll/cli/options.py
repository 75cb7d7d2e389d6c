"""Values of command line options that stand for several: lists, ranges, parameters."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import nullcontext
from math import isfinite
from typing import Any, ContextManager, TextIO

import click

from hpccoll.atomic_file import replacing, writable
from hpccoll.errors import ArgumentError
from hpccoll.explain import plotting
from hpccoll.units import size_range


class Finite(click.FloatRange):
    """A range that holds neither infinity nor ``nan``, which click finds in every range."""

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        number = super().convert(value, param, ctx)
        return number if isfinite(number) else self.fail(f"{value!r} is no finite number", param,
                                                         ctx)


#: A time to spend, and a tolerance.
SECONDS, PERCENT = Finite(min=0, min_open=True), Finite(min=0)
#: Bytes of buffers to measure, where an option leaves an end out, and the most that one may have.
SMALLEST, LARGEST, MOST = 8, 16 << 20, (1 << 40) - 1


def names(texts: Iterable[str]) -> list[str]:
    """Split comma-separated names.

    >>> names(["ring, bruck", "pat"])
    ['ring', 'bruck', 'pat']
    """
    return [name.strip() for text in texts for name in text.split(",") if name.strip()]


def buffer_sizes(text: str, step: int) -> list[int]:
    """Read what ``-m`` says: ``[MIN:]MAX`` in bytes.

    >>> buffer_sizes("8:100", 4)
    [8, 32, 100]

    Raises:
        ArgumentError: malformed, zero, or a range that runs backwards.
    """
    return size_range("-m", text, step, SMALLEST, LARGEST, MOST)


def parameters(texts: Iterable[str], option: str = "--param") -> dict[str, int]:
    """Read parameters of an algorithm; ``option`` is where they were given.

    >>> parameters(["k=4"])
    {'k': 4}

    Raises:
        ArgumentError: not of the form NAME=VALUE with a whole number, or given twice.
    """
    found: dict[str, int] = {}
    for text in texts:
        name, _, value = text.partition("=")
        if not name.isidentifier() or not value.isdecimal():
            raise ArgumentError(option, f"cannot read {text!r}", "write it like k=4")
        if name in ("collective", "algorithm", "size", "root", "topology"):
            raise ArgumentError(option, f"{name} is not a parameter of the algorithm",
                                "it is an argument or an option of the command")
        if name in found:
            raise ArgumentError(option, f"{name} is given twice")
        found[name] = int(value)
    return found


def check_outputs(json_path: str | None, plot_path: str | None) -> None:
    """Find out before the work whether its results can be written.

    Raises:
        HpccollError: they cannot.
    """
    if plot_path is not None:
        plotting.check(plot_path)
    if json_path not in (None, "-") and not writable(json_path):
        raise ArgumentError("--json", f"cannot write {json_path!r}")


def opened(path: str) -> ContextManager[TextIO]:
    """What ``--json`` names: a file that is written whole or not at all, or ``-`` for standard
    output."""
    return nullcontext(sys.stdout) if path == "-" else replacing(path)


def write_text(path: str, text: str) -> None:
    """Write what ``--json`` asked for.

    Raises:
        ArgumentError: the file cannot be written.
    """
    try:
        with opened(path) as file:
            file.write(text)
    except OSError as error:
        raise ArgumentError("--json", f"cannot write {path!r}: {error.strerror}") from error
    if path != "-":
        click.echo(f"wrote {path}", err=True)
