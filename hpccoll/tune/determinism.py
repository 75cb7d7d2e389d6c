"""Promises about the bits and the accuracy of results, and which algorithms keep them.

An order of evaluation shows where results are rounded: in floating-point sums, and wherever a
user's operator decides. What the classes of determinism promise there, each all that the ones
before it promise:

* ``run``: the same bits in every run on as many ranks with the same nodes, settings and table.
  Every schedule fixes its order; an MPI library promises none.
* ``size``: an element's bits do not depend on how many others there are, where it lies among
  them, how messages are cut, or in which memory. That takes algorithms that treat all blocks
  alike, and of those the ones with the same order of evaluation.
* ``layout``: nor do they depend on which ranks share a node, or on what is measured where.

Low precision needs short chains: an algorithm that adds p terms one after the other, and rounds
each time, errs p times as much as one term, where a tree errs log p times. Terms that arrive in one
round are rounded together (:mod:`hpccoll.arrays.half`), so rounds are what counts.
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

#: Bytes from which on a message is long.
LONG = 32 << 10
#: Bytes of the elements that are of low precision, and the most of them that any chain may add.
LOW, LONGEST = 2, 16
#: What keeps every promise where vectors must not be cut, by collective.
WHOLE = {"allreduce": "recursive_doubling", "reduce": "binomial"}
#: NumPy's kind of elements that are several numbers, such as (value, index).
RECORD = "V"


def applies(determinism: str, facts: CallFacts) -> bool:
    """Tell whether a class of determinism has something to say about a call's algorithm."""
    return determinism != NONE and facts.reduces and not facts.exact


def excludes_native(determinism: str, facts: CallFacts) -> bool:
    """Tell whether only an algorithm of the table will do: for a promise, or for the type."""
    return facts.reduces and (not facts.has_mpi_type or applies(determinism, facts))


def violation(choice: Choice, facts: CallFacts, determinism: str) -> str:
    """Why an algorithm would break a promise that applies; empty if it would not."""
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
    """The algorithms that keep every promise in a call: for short messages, and for long."""
    if facts.whole and facts.collective in WHOLE:
        return WHOLE[facts.collective],
    return reproducible(facts.collective)


def reproducible_algorithm(facts: CallFacts) -> str:
    """The algorithm that keeps every promise, for the size of a call."""
    names = reproducible_names(facts)
    return names[-1] if (facts.nbytes or 0) >= LONG else names[0]


def check_served(call: Call | None, name: str, args: Sequence[Any], determinism: str) -> None:
    """Check that a call which only the MPI library can serve needs no promise.

    Raises:
        ArgumentError: it does; names the class of determinism.
    """
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
    """Why an algorithm should not be chosen for numbers of low precision; empty if it may."""
    if (not facts.reduces or size <= LONGEST
            or choice.name not in ALGORITHMS[facts.collective]
            or not ALGORITHMS[facts.collective][choice.name].chain):
        return ""
    if facts.itemsize > LOW or facts.exact or facts.kind == RECORD:
        return ""
    # A user's operator gets elements as they are, and rounds as often as it is called.
    rounds = ALGORITHMS[facts.collective][choice.name].rounds
    if facts.operator != USER and rounds is not None and (rounds(size) or 0) < LONGEST:
        return ""
    return (f"it adds {size} terms of {facts.dtype} in sequence, with a rounding each; a tree "
            f"rounds {ceil(log2(size))} times")
