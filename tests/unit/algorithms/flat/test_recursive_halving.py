"""Recursive halving: which half goes where."""

from hpccoll.algorithms.flat import recursive_halving


def test_halves_end_where_the_docstring_says():
    for bits in range(7):
        power = 1 << bits
        near_first = [1 << i for i in range(bits)]
        for virtual in range(power):
            for distances, block in ((near_first, recursive_halving.bit_reverse(virtual, bits)),
                                     (near_first[::-1], virtual)):
                kept = [k for _, k, _ in recursive_halving.halves(virtual, power, distances)]
                assert not kept or kept[-1] == (block, block + 1)
