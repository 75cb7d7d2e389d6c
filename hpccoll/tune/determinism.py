"""Guarantees about the bits and the accuracy of results, and the algorithms that meet them.

The order of evaluation matters only for rounded results: floating-point sums, and user operators.
The classes of determinism guarantee there, each including the ones before it:

* ``run``: the same bits in every run on the same number of ranks, with the same nodes, settings and
  table. Every schedule fixes its order; an MPI library guarantees none.
* ``size``: the bits of an element do not depend on the number of elements, its position, the
  segments of messages, or the memory. That needs algorithms that treat all blocks in the same way,
  with the same order of evaluation.
* ``layout``: they also do not depend on which ranks share a node, or on measurements.

Low precision needs short chains: the error grows with p for a chain of p additions, each rounded,
but with log p for a tree. Terms that arrive in one round are rounded together
(:mod:`hpccoll.arrays.half`), so the number of rounds matters.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, log2
from typing import Any

from mpi4py import MPI

from hpccoll.algorithms import ALGORITHMS
from hpccoll.algorithms.table import reproducible
from hpccoll.arrays.kernels import operator_of
from hpccoll.calls.call import Call
from hpccoll.calls.facts import USER, CallFacts
from hpccoll.config import NONE, RUN
from hpccoll.errors import ArgumentError
from hpccoll.runtime.planning.choice import Choice

#: Smallest number of bytes of a long message.
LONG = 32 << 10
#: Maximum bytes of a low-precision element, and additions in sequence that it allows.
LOW, LONGEST = 2, 16
#: Algorithms that meet every guarantee without splitting vectors, by collective.
WHOLE = {"allreduce": "recursive_doubling", "reduce": "binomial"}
#: NumPy's kind of structured elements, such as (value, index).
RECORD = "V"


def restricts_choice(determinism: str, facts: CallFacts) -> bool:
    """Return True if a class of determinism restricts the algorithm of a call."""
    return determinism != NONE and facts.reduces and not facts.exact


def excludes_native(determinism: str, facts: CallFacts) -> bool:
    """Return True if a guarantee or the type requires an algorithm of the table."""
    return facts.reduces and (not facts.has_mpi_type or restricts_choice(determinism, facts))


def violation(choice: Choice, facts: CallFacts, determinism: str) -> str:
    """Return why an algorithm breaks a guarantee of a call; empty if it does not."""
    if choice.is_queued:
        return f"NCCL guarantees no order of evaluation, determinism '{determinism}' does"
    if choice.is_native:
        return f"an MPI library guarantees no order of evaluation, determinism '{determinism}' does"
    names = reproducible_names(facts)
    if determinism == RUN or choice.name in names:
        return ""
    return (f"its order of evaluation depends on more than determinism '{determinism}' allows; use "
            f"{' and '.join(names)}")


def reproducible_names(facts: CallFacts) -> tuple[str, ...]:
    """Return the algorithms that meet every guarantee, those for short messages first."""
    if facts.whole and facts.collective in WHOLE:
        return WHOLE[facts.collective],
    return reproducible(facts.collective)


def reproducible_algorithm(facts: CallFacts) -> str:
    """Return the algorithm that meets every guarantee, for the size of a call."""
    names = reproducible_names(facts)
    return names[-1] if (facts.nbytes or 0) >= LONG else names[0]


def check_served(call: Call | None, name: str, args: Sequence[Any], determinism: str) -> None:
    """Raise an error if a call that only the MPI library supports needs a guarantee."""
    if call is not None or determinism == NONE:
        return
    for op in args:
        operator = operator_of(op) if isinstance(op, MPI.Op) else None
        if isinstance(op, MPI.Op) and not (operator and operator.kinds
                                           and set(operator.kinds) <= set(operator.exact)):
            raise ArgumentError("determinism", f"'{determinism}' is not available for this {name}: "
                                               "only the MPI library supports its arguments",
                                "pass contiguous buffers of one predefined type, and all counts")


def inaccurate(choice: Choice, facts: CallFacts, size: int) -> str:
    """Return why an algorithm is too inaccurate for low precision; empty if it is not."""
    if (not facts.reduces or size <= LONGEST
            or choice.name not in ALGORITHMS[facts.collective]
            or not ALGORITHMS[facts.collective][choice.name].chain):
        return ""
    if facts.itemsize > LOW or facts.exact or facts.kind == RECORD:
        return ""
    # A user operator receives the elements unconverted, and rounds in every call.
    rounds = ALGORITHMS[facts.collective][choice.name].rounds
    if facts.operator != USER and rounds is not None and (rounds(size) or 0) < LONGEST:
        return ""
    return (f"it adds {size} terms of {facts.dtype} in sequence, with a rounding each; a tree "
            f"rounds {ceil(log2(size))} times")
