"""Sizes, times, counts and ranges as text; the only module that parses and formats them.

Parsers take the name of the option or variable, for their errors. The names of formatters end in
``_text``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from operator import index

from hpccoll.errors import ArgumentError

_SIZE = re.compile(r"(\d+)([KMGT]?)(?:i?B)?", re.IGNORECASE)
_TIME = re.compile(r"(\d+(?:\.\d*)?(?:e[+-]?\d+)?)(s|ms|us|ns|)", re.IGNORECASE | re.ASCII)
#: Parts of a second; a division by them rounds correctly: 5us is the nearest number.
_TIMES = {"": 1, "s": 1, "ms": 1e3, "us": 1e6, "ns": 1e9}
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")
_SCALES = ((50, "P"), (40, "T"), (30, "G"), (20, "M"), (10, "K"))
_SHIFTS = {"": 0, **{letter: shift for shift, letter in _SCALES}}
#: Largest accepted numbers of bytes per rank, a pebibyte, and of nodes.
MOST_BYTES, MOST_NODES = 1 << 50, 10_000_000


# -- reading -----------------------------------------------------------------------------------
def size(option: str, text: str, least: int = 0, most: int = MOST_BYTES) -> int:
    """Parse a size in bytes.

    >>> size("--segment-bytes", "64K"), size("--nbytes", "3MiB")
    (65536, 3145728)

    Raises:
        ArgumentError: malformed, less than ``least``, or more than ``most``.
    """
    match = _SIZE.fullmatch(text.strip())
    if not match:
        raise ArgumentError(option, f"cannot read {text.strip()!r} as a size",
                            "write bytes with or without a unit: 8, 64K, 1M, 2G")
    value = int(match[1]) << _SHIFTS[match[2].upper()]
    if value < least:
        raise ArgumentError(option, f"{text.strip()!r} is less than {size_text(least)}")
    if value > most:
        raise ArgumentError(option, f"{text.strip()!r} is more than {size_text(most)}")
    return value


def byte_count(argument: str, value: object, least: int = 0) -> int:
    """Return a number of bytes given as a number or as text.

    >>> byte_count("nbytes", 4096), byte_count("nbytes", "1M")
    (4096, 1048576)

    Raises:
        ArgumentError: neither a number nor a size; less than ``least``.
    """
    if isinstance(value, str):
        return size(argument, value, least)
    try:
        number = -1 if isinstance(value, bool) else index(value)  # type: ignore[arg-type]
    except TypeError:
        number = -1
    if number < least:
        raise ArgumentError(argument, f"expected a number of bytes, got {value!r}",
                            "write 65536 or '64K'")
    return number


def seconds(option: str, text: str) -> float:
    """Parse a time; return seconds.

    >>> seconds("--late", "20us"), seconds("--late", "1.5e-3")
    (2e-05, 0.0015)

    Raises:
        ArgumentError: malformed, negative or infinite.
    """
    match = _TIME.fullmatch(text.strip())
    if not match:
        raise ArgumentError(option, f"cannot read {text.strip()!r} as a time",
                            "write seconds, or a unit: 20us, 1.5ms, 3ns, 2s")
    value = float(match[1]) / _TIMES[match[2].lower()]
    if not value < float("inf"):
        raise ArgumentError(option, f"{text.strip()!r} has no end")
    return value


def sizes(option: str, text: str, step: int = 4) -> list[int]:
    """Parse sizes in bytes, and ranges of sizes that grow by the factor ``step``.

    >>> sizes("--nbytes", "8,1K:64K", 8)
    [8, 1024, 8192, 65536]

    Raises:
        ArgumentError: malformed text, or a descending range.
    """
    return _parse_list(option, text, step, size)


def size_range(option: str, text: str, step: int, smallest: int, largest: int,
               most: int = MOST_BYTES) -> list[int]:
    """Parse ``MIN:MAX``, ``MIN:`` or ``MAX`` in bytes; list sizes that grow by the factor ``step``.

    >>> size_range("-m", "1K", 4, smallest=8, largest=1 << 20)
    [8, 32, 128, 512, 1024]

    Raises:
        ArgumentError: malformed, zero, more than ``most``, or a descending range.
    """
    first, colon, last = text.partition(":")
    high = size(option, last if colon else first, 1, most) if last or not colon else largest
    low = size(option, first, 1, most) if colon and first else min(smallest, high)
    return _parse_range(option, text, low, high, step)


def counts(option: str, text: str) -> list[int]:
    """Parse numbers of nodes; a range doubles from its start to its end.

    >>> counts("--nodes", "3,8:40")
    [3, 8, 16, 32, 40]

    Raises:
        ArgumentError: not a positive number, or a descending range.
    """
    return _parse_list(option, text, 2, _count)


def numbers(option: str, text: str) -> list[int]:
    """Parse positive numbers and ranges; sorted, without duplicates.

    >>> numbers("--ranks", "8,1-3")
    [1, 2, 3, 8]

    Raises:
        ArgumentError: malformed text, zero, or a descending range.
    """
    listed: set[int] = set()
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
        if not 1 <= first <= last:
            raise ArgumentError(option, f"cannot read {part.strip()!r}",
                                "write positive numbers and ranges, like 1-16,32,64")
        listed.update(range(first, last + 1))
    return sorted(listed)


def _parse_list(option: str, text: str, step: int, read: Callable[[str, str], int]) -> list[int]:
    listed: dict[int, None] = {}
    for part in text.split(","):
        first, colon, last = part.strip().partition(":")
        low = read(option, first)
        high = read(option, last) if colon else low
        if colon and not low:
            raise ArgumentError(option, f"{part.strip()!r} is not a range",
                                "start it with a number above 0")
        listed |= dict.fromkeys(_parse_range(option, part, low, high, step))
    return list(listed)


def _parse_range(option: str, text: str, low: int, high: int, step: int) -> list[int]:
    if high < low:
        raise ArgumentError(option, f"{text.strip()!r} is not a range",
                            "write the smaller end first, like 8:16M")
    values = []
    while low < high:
        values.append(low)
        low *= step
    return [*values, high]


def _count(option: str, text: str) -> int:
    digits = text.strip()
    if not digits.isdecimal() or not 1 <= int(digits) <= MOST_NODES:
        raise ArgumentError(option, f"cannot read {digits!r} as a number of nodes",
                            f"write numbers from 1 to {MOST_NODES:,}, or ranges such as 2:4096")
    return int(digits)


# -- writing -----------------------------------------------------------------------------------
def size_text(nbytes: float, unit: str = "B") -> str:
    """Format bytes with a binary unit and four digits.

    >>> size_text(1536), size_text(8), size_text(1 << 30, unit="")
    ('1.5 KiB', '8 B', '1 Gi')
    """
    for shift, letter in _SCALES:
        if nbytes >= 1 << shift:
            return f"{nbytes / (1 << shift):.4g} {letter}i{unit}"
    return f"{nbytes:.4g} {unit}".rstrip()


def short_size_text(nbytes: int) -> str:
    """Format bytes in the short form of options, with three digits.

    >>> short_size_text(65536), short_size_text(12)
    ('64K', '12')
    """
    for shift, letter in _SCALES:
        if nbytes >= 1 << shift:
            return f"{nbytes / (1 << shift):.3g}{letter}"
    return str(nbytes)


def time_text(seconds: float, digits: int = 4) -> str:
    """Format seconds with a unit.

    >>> time_text(0.00123), time_text(1.2525e-6, digits=3), time_text(0)
    ('1.23 ms', '1.25 us', '0 s')
    >>> time_text(0.99999e-3, digits=3), time_text(341.6, digits=2)
    ('1 ms', '340 s')
    """
    return _format_scaled(seconds, digits,
                          (("s", 1), ("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9))) or "0 s"


def rate_text(bytes_per_second: float, digits: int = 3) -> str:
    """Format bytes per second with a unit; a dash for zero.

    >>> rate_text(3.791e9), rate_text(69_700), rate_text(0)
    ('3.79 GB/s', '69.7 kB/s', '-')
    """
    return _format_scaled(bytes_per_second, digits, (
        ("TB/s", 1e12), ("GB/s", 1e9), ("MB/s", 1e6), ("kB/s", 1e3), ("B/s", 1))) or "-"


def _format_scaled(value: float, digits: int, units: Sequence[tuple[str, float]]) -> str:
    """Format a value in the largest unit that fits, without an exponent; empty for 0."""
    from decimal import Decimal
    # Rounded first: 999.99 us is 1 ms.
    rounded = float(f"{value:.{digits}g}")
    if not rounded:
        return ""
    unit, scale = next((each for each in units if rounded >= each[1]), units[-1])
    return f"{Decimal(f'{rounded / scale:.{digits}g}'):f} {unit}"


def count_text(number: int, noun: str) -> str:
    """Format a number with a noun in singular or plural.

    >>> count_text(1, "rank"), count_text(8, "block")
    ('1 rank', '8 blocks')
    """
    return f"{number} {noun}" + "s" * (number != 1)


def ranges_text(numbers: Iterable[int]) -> str:
    """Format numbers as ranges, in their order.

    >>> ranges_text([0, 1, 2, 5, 7, 6])
    '0-2,5,7,6'
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def ranks_text(ranks: Iterable[int]) -> str:
    """Format ranks as ranges.

    >>> ranks_text([5, 0, 1, 2]), ranks_text([7])
    ('ranks 0-2,5', 'rank 7')
    """
    ordered = sorted(ranks)
    return f"rank{'s' * (len(ordered) != 1)} {ranges_text(ordered)}"
