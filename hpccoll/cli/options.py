"""Values of command line options that stand for several: lists, ranges, parameters."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from contextlib import nullcontext
from math import isfinite
from typing import Any, ContextManager, TextIO

import click

from hpccoll.atomic_file import replacing, writable
from hpccoll.errors import ArgumentError
from hpccoll.explain import plotting


class Finite(click.FloatRange):
    """A range that holds neither infinity nor ``nan``, which click finds in every range."""

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        number = super().convert(value, param, ctx)
        return number if isfinite(number) else self.fail(f"{value!r} is no finite number", param,
                                                         ctx)


#: A time to spend, and a tolerance.
SECONDS, PERCENT = Finite(min=0, min_open=True), Finite(min=0)
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


def names(texts: Iterable[str]) -> list[str]:
    """Split comma-separated names.

    >>> names(["ring, bruck", "pat"])
    ['ring', 'bruck', 'pat']
    """
    return [name.strip() for text in texts for name in text.split(",") if name.strip()]


def numbers(option: str, text: str) -> list[int]:
    """Read positive numbers and ranges.

    >>> numbers("--ranks", "1-3,8")
    [1, 2, 3, 8]

    Raises:
        ArgumentError: malformed text, zero, or a range that runs backwards.
    """
    found = set()
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
        if not 1 <= first <= last:
            raise ArgumentError(option, f"cannot read {part.strip()!r}",
                                "write positive numbers and ranges, like 1-16,32,64")
        found.update(range(first, last + 1))
    return sorted(found)


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
