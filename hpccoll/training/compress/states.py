"""Conversion of reduction states to other buckets or another number of ranks.

    buckets change   split the state of each old bucket by array, join those of each new bucket
    ranks change     average the states of all old ranks; each new rank loads the result

Both preserve the invariants: the mean residual over the ranks does not change. A state has the form
of ``Reduction.state``: vectors with one value for each element, lists with one entry for each
array, and numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpccoll.training.compress.quantise import namespace

State = dict[str, Any]


def split_state(state: State, counts: Sequence[int]) -> list[State]:
    """Split the state of a bucket into states of its arrays, with ``counts`` elements.

    >>> import numpy
    >>> split_state({"steps": 3, "error": numpy.arange(3.0)}, [1, 2])[1]
    {'steps': 3, 'error': array([1., 2.])}
    """
    parts: list[State] = []
    start = 0
    for array, count in enumerate(counts):
        parts.append({name: _part(one, array, start, count) for name, one in state.items()})
        start += count
    return parts


def join_states(states: Sequence[State], counts: Sequence[int]) -> State:
    """Join the states of arrays with ``counts`` elements into the state of their bucket.

    Missing vectors become zeros; numbers become the minimum.

    >>> import numpy
    >>> join_states([{"steps": 3, "error": numpy.ones(1)}, {"steps": 2}], [1, 2])
    {'steps': 2, 'error': array([1., 0., 0.])}
    """
    names = dict.fromkeys(name for state in states for name in state)
    return {name: _join_vectors([state.get(name) for state in states], counts) for name in names}


def average_states(states: Sequence[State]) -> State:
    """Return the mean of the states of all ranks, for another number of ranks.

    Lists and numbers are the same on all ranks and are taken from the first.
    """
    mean = dict(states[0])
    for name, one in mean.items():
        if _is_vector(one):
            mean[name] = sum((state[name] for state in states[1:]), one) / len(states)
    return mean


def _is_vector(one: Any) -> bool:
    return getattr(one, "ndim", 0) == 1


def _part(one: Any, array: int, start: int, count: int) -> Any:
    if _is_vector(one):
        return one[start:start + count]
    return one[array:array + 1] if isinstance(one, list) else one


def _join_vectors(parts: list[Any], counts: Sequence[int]) -> Any:
    known = next(one for one in parts if one is not None)
    if _is_vector(known):
        module = namespace(known)
        return module.concatenate([module.zeros(count, known.dtype) if one is None else one
                                   for one, count in zip(parts, counts)])
    if isinstance(known, list):
        return [one[0] if one else None for one in parts]
    return min(0 if one is None else one for one in parts)
