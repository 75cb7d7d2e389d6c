"""Dissemination: distances."""

from hpccoll.algorithms.flat import dissemination

SIZES = [*range(1, 70), 99, 100, 127, 128, 129, 255, 256, 257, 299, 300]


def test_dissemination_reaches_everyone_in_the_fewest_rounds():
    for size in SIZES:
        for k in (2, 3, 5, 400):
            rounds = len(dissemination.distances(size, k))
            assert k ** rounds >= size and (not rounds or k ** (rounds - 1) < size)
