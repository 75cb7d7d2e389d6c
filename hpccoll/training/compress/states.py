"""States of reductions for other buckets, or another number of ranks.

    buckets change   cut every old bucket's state by array, join those of the new bucket's arrays
    ranks change     average the states of all old ranks; every new one loads the result

Both keep the laws: what is held back in the mean over the ranks stays the same. A state is what
``Reduction.state`` says: vectors with a value for each element, lists with an entry for each array,
numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpccoll.training.compress.quantise import namespace

State = dict[str, Any]


def cut(state: State, counts: Sequence[int]) -> list[State]:
    """Cut a bucket's state into those of its arrays, of so many elements each.

    >>> import numpy
    >>> cut({"steps": 3, "error": numpy.arange(3.0)}, [1, 2])[1]
    {'steps': 3, 'error': array([1., 2.])}
    """
    parts: list[State] = []
    start = 0
    for array, count in enumerate(counts):
        parts.append({name: _part(one, array, start, count) for name, one in state.items()})
        start += count
    return parts


def join(states: Sequence[State], counts: Sequence[int]) -> State:
    """Join states of arrays of so many elements each into that of the bucket that they make.

    What one of them lacks is zero in it; numbers are the least of all.

    >>> import numpy
    >>> join([{"steps": 3, "error": numpy.ones(1)}, {"steps": 2}], [1, 2])
    {'steps': 2, 'error': array([1., 0., 0.])}
    """
    names = dict.fromkeys(name for state in states for name in state)
    return {name: _joined([state.get(name) for state in states], counts) for name in names}


def averaged(states: Sequence[State]) -> State:
    """The mean of the states of all ranks, for every rank of another number of them.

    Lists and numbers, which are the same on all ranks, are the first one's.
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


def _joined(parts: list[Any], counts: Sequence[int]) -> Any:
    known = next(one for one in parts if one is not None)
    if _is_vector(known):
        module = namespace(known)
        return module.concatenate([module.zeros(count, known.dtype) if one is None else one
                                   for one, count in zip(parts, counts)])
    if isinstance(known, list):
        return [one[0] if one else None for one in parts]
    return min(0 if one is None else one for one in parts)
