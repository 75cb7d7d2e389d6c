"""Values of command line options that stand for several: lists, ranges, parameters."""

from __future__ import annotations

import re
from typing import Iterable

import click

from hpccoll.errors import ArgumentError

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


def parameters(texts: Iterable[str]) -> dict[str, int]:
    """Read parameters of an algorithm.

    >>> parameters(["k=4"])
    {'k': 4}

    Raises:
        ArgumentError: not of the form NAME=VALUE with a whole number, or given twice.
    """
    found: dict[str, int] = {}
    for text in texts:
        name, _, value = text.partition("=")
        if not name.isidentifier() or not value.isdecimal():
            raise ArgumentError("--param", f"cannot read {text!r}", "write it like k=4")
        if name in ("collective", "algorithm", "size", "root", "topology"):
            raise ArgumentError("--param", f"{name} is not a parameter of the algorithm",
                                f"give it as {name.upper()} or --{name}")
        if name in found:
            raise ArgumentError("--param", f"{name} is given twice")
        found[name] = int(value)
    return found


def write_text(path: str, text: str) -> None:
    """Write what ``--json`` asked for: into a file, or ``-`` for standard output.

    Raises:
        ArgumentError: the file cannot be written.
    """
    if path == "-":
        click.echo(text, nl=False)
        return
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise ArgumentError("--json", f"cannot write {path!r}: {error.strerror}") from error
    click.echo(f"wrote {path}", err=True)
