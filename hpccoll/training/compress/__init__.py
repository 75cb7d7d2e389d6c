"""Compression: how one bucket travels, one scheme a file.

    scheme                            what a scheme and a reduction are
    quantise select                   numbers as small integers; the largest of many
    dense                             everything, as it is (none) or in 16 bits (fp16, bf16)
    two_phase int8 onebit dithering   every element in a few bits
    sparse topk randomk csc           few elements, the others later
    powersgd                          matrices as products of thin ones
    states                            states for other buckets, or other ranks

:func:`parse` reads a scheme from text, such as ``"bf16"``, ``"topk:density=0.01"`` or
``"powersgd:rank=4,dense_steps=100"``. Every module gives its wire format, its law and its source. A
new scheme is a module and a line of :data:`SCHEMES`; the tests of laws, wire bytes and bad numbers
walk that table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields
from typing import Any

from hpccoll.errors import ArgumentError, ArgumentTypeError
from hpccoll.training.compress.csc import Csc
from hpccoll.training.compress.dense import Bf16, Fp16, NoCompression
from hpccoll.training.compress.dithering import Dithering
from hpccoll.training.compress.int8 import Int8
from hpccoll.training.compress.onebit import OneBit
from hpccoll.training.compress.powersgd import PowerSgd
from hpccoll.training.compress.randomk import RandomK
from hpccoll.training.compress.scheme import Reduction, Scheme, finish
from hpccoll.training.compress.topk import TopK

__all__ = ["SCHEMES", "Reduction", "Scheme", "finish", "names", "parse"]

#: Every scheme, by what it is called.
SCHEMES: dict[str, type[Scheme]] = {
    "none": NoCompression,
    "fp16": Fp16,
    "bf16": Bf16,
    "int8": Int8,
    "onebit": OneBit,
    "dithering": Dithering,
    "topk": TopK,
    "randomk": RandomK,
    "csc": Csc,
    "powersgd": PowerSgd,
}


def names() -> list[str]:
    """What schemes are called."""
    return list(SCHEMES)


def parse(wish: str | Scheme) -> Scheme:
    """Read a scheme: ``name`` or ``name:field=value,field=value``; a scheme is returned as it is.

    >>> parse("topk:density=0.01,method=sampled")
    TopK(density=0.01, warmup=0, momentum=0.0, masking=True, method='sampled')
    >>> str(parse("powersgd:rank=4"))
    'powersgd:rank=4'

    Raises:
        ArgumentError: unknown name or field, or a value that it cannot have; the message lists
            the valid ones.
    """
    if isinstance(wish, Scheme):
        return wish
    if not isinstance(wish, str):
        raise ArgumentTypeError("compress", f"expected a scheme or its text, got {wish!r}",
                                f"choose from {', '.join(SCHEMES)}")
    name, _, settings = map(str.strip, wish.partition(":"))
    if name not in SCHEMES:
        raise _unknown("compress", name, SCHEMES)
    types = {field.name: str(field.type) for field in fields(SCHEMES[name])}  # type: ignore[arg-type]
    chosen: dict[str, Any] = {}
    for setting in filter(None, map(str.strip, settings.split(","))):
        field, equals, value = map(str.strip, setting.partition("="))
        if field not in types:
            raise _unknown(f"compress: {name}", field, types)
        read, kind = _READERS[types[field]]
        try:
            chosen[field] = read(value)
        except (KeyError, ValueError):
            raise ArgumentError(f"{name}: {field}", f"got {value!r}", f"it is {kind}") from None
    return SCHEMES[name](**chosen)


def _unknown(argument: str, word: str, valid: Iterable[str]) -> ArgumentError:
    if valid := list(valid):
        return ArgumentError.unknown(argument, word, valid)
    return ArgumentError(argument, f"{word!r} is unknown", "it has no parameters")


#: How fields of a type are read, and what is said where they cannot be.
_READERS: dict[str, tuple[Callable[[str], Any], str]] = {
    "int": (int, "an integer"),
    "float": (float, "a number"),
    "str": (str, "a word"),
    "bool": ({"yes": True, "no": False, "true": True, "false": False}.__getitem__, "yes or no"),
}
