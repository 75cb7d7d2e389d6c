"""Sizes and counts as people write them: lists, units, and ranges that grow by a factor."""

from __future__ import annotations

import re
from collections.abc import Callable

from hpccoll.errors import ArgumentError

_SIZE = re.compile(r"(\d+)([KMGT]?)(?:i?B)?", re.IGNORECASE)
#: A simulation of more bytes than this is a mistake: a pebibyte per rank.
MOST_BYTES, MOST_NODES = 1 << 50, 10_000_000


def nbytes(option: str, text: str, step: int = 4) -> list[int]:
    """Read sizes in bytes.

    >>> nbytes("--nbytes", "8,1K:64K", 8)
    [8, 1024, 8192, 65536]

    Raises:
        ArgumentError: text that is no size, or a range that runs backwards.
    """
    return _listed(option, text, step, size)


def counts(option: str, text: str) -> list[int]:
    """Read numbers of nodes; ranges double.

    >>> counts("--nodes", "3,8:40")
    [3, 8, 16, 32, 40]

    Raises:
        ArgumentError: text that is no positive number, or a range that runs backwards.
    """
    return _listed(option, text, 2, _count)


def _listed(option: str, text: str, step: int,
            read: Callable[[str, str], int]) -> list[int]:
    found: dict[int, None] = {}
    for part in text.split(","):
        first, colon, last = part.strip().partition(":")
        low = read(option, first)
        high = read(option, last) if colon else low
        if high < low or colon and not low:
            raise ArgumentError(option, f"{part.strip()!r} is no range",
                                "write the smaller end first, and not 0")
        while low < high:
            found[low] = None
            low *= step
        found[high] = None
    return list(found)


def size(option: str, text: str) -> int:
    """Read one size in bytes.

    >>> size("--segment-bytes", "64K")
    65536

    Raises:
        ArgumentError: text that is no size, or more than one.
    """
    match = _SIZE.fullmatch(text.strip())
    if not match:
        raise ArgumentError(option, f"cannot read {text.strip()!r} as a size",
                            "write bytes with or without a unit: 8, 64K, 1M, 2G")
    value = int(match[1]) << {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}[match[2].upper()]
    if value > MOST_BYTES:
        raise ArgumentError(option, f"{text.strip()!r} is more than a pebibyte")
    return value


def _count(option: str, text: str) -> int:
    digits = text.strip()
    if not digits.isdecimal() or not 1 <= int(digits) <= MOST_NODES:
        raise ArgumentError(option, f"cannot read {digits!r} as a number of nodes",
                            f"write numbers from 1 to {MOST_NODES:,}, or ranges such as 2:4096")
    return int(digits)


def time_text(seconds: float) -> str:
    """A time for people.

    >>> time_text(1.25e-6), time_text(0.01)
    ('1.25 us', '10 ms')
    """
    return f"{seconds * 1e6:.3g} us" if seconds < 1e-3 else f"{seconds * 1e3:.4g} ms"
