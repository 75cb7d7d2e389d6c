"""Results of mpi4py's lower-case collectives, worked out on one rank."""

import numpy


def same(one, other):
    """Equal in type, content and, for arrays, dtype, shape, order and whether one may write."""
    if type(one) is not type(other):
        return False
    if isinstance(one, numpy.ndarray):
        flags = [(a.flags.c_contiguous, a.flags.f_contiguous, a.flags.writeable)
                 for a in (one, other)]
        return (one.dtype == other.dtype and one.shape == other.shape and flags[0] == flags[1]
                and all(same(a, b) for a, b in zip(one.ravel().tolist(), other.ravel().tolist())))
    if isinstance(one, (tuple, list)):
        return len(one) == len(other) and all(map(same, one, other))
    return repr(one) == repr(other) if isinstance(one, (float, complex)) else bool(one == other)


def outcome(call):
    """What a call of all ranks together would return or raise, worked out here alone."""
    try:
        return call()
    except Exception as error:
        return error


def tree(values, op):
    """Combine as mpi4py's binomial tree does."""
    step = 1
    values = list(values)
    while step < len(values):
        for i in range(0, len(values) - step, 2 * step):
            values[i] = op(values[i], values[i + step])
        step *= 2
    return values[0]


def prefixes(values, op, inclusive):
    """Combine as mpi4py's recursive doubling does, on every rank."""
    size = len(values)
    totals, results = list(values), list(values) if inclusive else [None] * size
    started, distance = [inclusive] * size, 1
    while distance < size:
        before = list(totals)
        for rank in range(size):
            partner = rank ^ distance
            if partner >= size:
                continue
            if rank > partner:
                totals[rank] = op(before[partner], before[rank])
                results[rank] = (op(before[partner], results[rank]) if started[rank]
                                 else before[partner])
                started[rank] = True
            else:
                totals[rank] = op(before[rank], before[partner])
        distance *= 2
    return results
