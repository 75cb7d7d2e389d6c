"""Folding: groups of ranks behind virtual ones."""

from hpccoll.algorithms.parts.folding import Fold


def test_fold_is_a_partition_into_neighbours():
    for size in range(1, 300):
        for power in {1 << (size.bit_length() - 1), 1, size, max(size // 3, 1)}:
            fold = Fold(size, power)
            members = [fold.members(v) for v in range(power)]
            assert [r for group in members for r in group] == list(range(size))
            assert {len(group) for group in members} <= {size // power, -(-size // power)}
            assert [fold.virtual(fold.real_rank(v)) for v in range(power)] == list(range(power))
            assert all(fold.group(r) == v for v in range(power) for r in members[v])
            assert fold.block(0, power) == (0, size)


def test_fold_onto_a_power_of_two_makes_pairs():
    for size in range(1, 300):
        fold = Fold(size)
        extra = size - fold.power
        assert fold.power <= size < 2 * fold.power
        for rank in range(size):
            if rank < 2 * extra:
                expected = rank // 2 if rank % 2 else None
            else:
                expected = rank - extra
            assert fold.virtual(rank) == expected


def test_fold_lets_the_root_take_part():
    for size in range(1, 40):
        for root in range(size):
            fold = Fold(size, root=root)
            assert fold.virtual(root) == fold.group(root) == Fold(size).group(root)
            virtual = range(fold.power)
            assert [fold.virtual(fold.real_rank(v)) for v in virtual] == list(virtual)
