"""Gradient compression schemes.

    scheme      base classes: Scheme and Reduction
    dense       all elements, unchanged (none) or in 16 bits (fp16, bf16)
    two_phase   all elements in a few bits: int8, onebit, dithering
    sparse      some elements now, the others later: topk, randomk, csc
    powersgd    low-rank approximation of matrices
    quantise    block quantisation
    states      states for other buckets or another number of ranks

:func:`parse` parses the text of a scheme, such as ``"bf16"``, ``"topk:density=0.01"`` or
``"powersgd:rank=4,dense_steps=100"``. The tests of invariants, wire bytes and non-finite values
iterate over the rows of :data:`SCHEMES`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields
from typing import Any

from hpccoll.errors import ArgumentError, ArgumentTypeError
from hpccoll.training.compress.dense import Bf16, Fp16, NoCompression
from hpccoll.training.compress.powersgd import PowerSgd
from hpccoll.training.compress.scheme import Reduction, Scheme, finish
from hpccoll.training.compress.sparse import Csc, RandomK, TopK
from hpccoll.training.compress.two_phase import DitheringScheme, Int8, OneBit

__all__ = ["SCHEMES", "Reduction", "Scheme", "finish", "names", "parse"]

#: All schemes, by name.
SCHEMES: dict[str, type[Scheme]] = {
    "none": NoCompression,
    "fp16": Fp16,
    "bf16": Bf16,
    "int8": Int8,
    "onebit": OneBit,
    "dithering": DitheringScheme,
    "topk": TopK,
    "randomk": RandomK,
    "csc": Csc,
    "powersgd": PowerSgd,
}


def names() -> list[str]:
    """Return the names of all schemes."""
    return list(SCHEMES)


def parse(preference: str | Scheme) -> Scheme:
    """Parse ``name`` or ``name:field=value,field=value``; a scheme is returned unchanged.

    >>> parse("topk:density=0.01,method=sampled")
    TopK(density=0.01, warmup=0, momentum=0.0, masking=True, method='sampled')
    >>> str(parse("powersgd:rank=4"))
    'powersgd:rank=4'

    Raises:
        ArgumentError: unknown name or field, or an invalid value; the message lists valid ones.
    """
    if isinstance(preference, Scheme):
        return preference
    if not isinstance(preference, str):
        raise ArgumentTypeError("compress", f"expected a scheme or its text, got {preference!r}",
                                f"choose from {', '.join(SCHEMES)}")
    name, _, settings = map(str.strip, preference.partition(":"))
    if name not in SCHEMES:
        raise _unknown_error("compress", name, SCHEMES)
    types = {field.name: str(field.type) for field in fields(SCHEMES[name])}  # type: ignore[arg-type]
    chosen: dict[str, Any] = {}
    for setting in filter(None, map(str.strip, settings.split(","))):
        field, equals, value = map(str.strip, setting.partition("="))
        if field not in types:
            raise _unknown_error(f"compress: {name}", field, types)
        read, kind = _READERS[types[field]]
        try:
            chosen[field] = read(value)
        except (KeyError, ValueError):
            raise ArgumentError(f"{name}: {field}", f"got {value!r}", f"it is {kind}") from None
    return SCHEMES[name](**chosen)


def _unknown_error(argument: str, word: str, valid: Iterable[str]) -> ArgumentError:
    if valid := list(valid):
        return ArgumentError.unknown_word(argument, word, valid)
    return ArgumentError(argument, f"{word!r} is unknown", "it has no parameters")


#: Parser and error text of each field type.
_READERS: dict[str, tuple[Callable[[str], Any], str]] = {
    "int": (int, "an integer"),
    "float": (float, "a number"),
    "str": (str, "a word"),
    "bool": ({"yes": True, "no": False, "true": True, "false": False}.__getitem__, "yes or no"),
}
