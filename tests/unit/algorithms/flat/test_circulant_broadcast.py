"""Circulant broadcast: the tables of blocks."""

from hpccoll.algorithms.flat import circulant_broadcast


def test_circulant_tables_meet_the_conditions_of_the_paper():
    for size in [*range(2, 130), 255, 256, 257, 300, 1000]:
        skip = circulant_broadcast.skips(size)
        q = len(skip) - 1
        assert skip[0] == 1 and skip[q] == size and q == (size - 1).bit_length()
        takes = [circulant_broadcast.receive_table(v, skip) for v in range(size)]
        gives = [[takes[(v + skip[k]) % size][k] for k in range(q)] for v in range(size)]
        assert gives[0] == list(range(q)), size
        for v in range(1, size):
            b = circulant_broadcast.baseblock(v, skip)
            assert sorted(takes[v]) == sorted({b, *range(-q, 0)} - {b - q}), (size, v)
            assert gives[v][0] == b - q, (size, v)
            assert all(gives[v][k] in (b - q, *takes[v][:k]) for k in range(1, q)), (size, v)
