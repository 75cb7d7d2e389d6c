"""Recursive multiplying: the choice of digits."""

import pytest

from hpccoll.algorithms.flat import recursive_multiplying


@pytest.mark.parametrize(("size", "k", "expected"), [
    (1, 4, []), (2, 4, [2]), (4, 4, [4]), (8, 4, [4, 2]), (12, 4, [4, 3]), (16, 4, [4, 4]),
    (7, 4, [4]), (6, 2, [2, 2]), (7, 8, [7]), (216, 8, [6, 6, 6]), (1000, 10, [10, 10, 10])])
def test_radices(size, k, expected):
    assert recursive_multiplying.radices(size, k) == expected


def test_multiplying_never_takes_more_rounds_than_folding_onto_a_power():
    for k in (2, 3, 4, 8):
        for size in range(1, 400):
            full = max(i for i in range(10) if k ** i <= size)
            assert recursive_multiplying.rounds(size, k) <= full + 2 * (k ** full < size)
