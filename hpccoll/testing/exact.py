"""Exact inputs and results, for tests of a schedule: the names of :mod:`hpccoll.arrays.exact`."""

from hpccoll.arrays.exact import (
    MEANING,
    PRIME,
    GuardedArray,
    affine,
    exact_reduction,
    from_bfloat16,
    inputs,
    poison,
    sent_elements,
    to_bfloat16,
    wrong,
)

__all__ = ["MEANING", "PRIME", "GuardedArray", "affine", "from_bfloat16", "inputs", "sent_elements",
           "poison",
           "exact_reduction", "to_bfloat16", "wrong"]
