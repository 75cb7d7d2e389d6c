"""Exact inputs and results, for tests of a schedule: the names of :mod:`hpccoll.arrays.exact`."""

from hpccoll.arrays.exact import (
    MEANING,
    PRIME,
    Guarded,
    affine,
    from_bfloat16,
    inputs,
    moved,
    poison,
    reduced,
    to_bfloat16,
    wrong,
)

__all__ = ["MEANING", "PRIME", "Guarded", "affine", "from_bfloat16", "inputs", "moved", "poison",
           "reduced", "to_bfloat16", "wrong"]
