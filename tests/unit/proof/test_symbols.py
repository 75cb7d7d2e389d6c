"""Symbols: histories of elements, and when two of them have the same bits."""

from hpccoll.proof.symbols import GARBAGE, BlockPart, SymbolTable, pieces_of, write_pieces


def table(size=4):
    """Blocks of 1, 2 and 3 elements."""
    return SymbolTable(size, lambda key: key + 1, 3)


def test_contributions_differ_and_are_no_combinations():
    symbols = table()
    leaves = [symbols.contribution(key, element, rank)
              for key in range(3) for element in range(key + 1) for rank in range(4)]
    assert len(set(leaves)) == len(leaves) and max(leaves) < 0


def test_equal_histories_are_equal_symbols():
    symbols = table()
    one, two, three = (symbols.contribution(0, 0, rank) for rank in range(3))
    left = symbols.combine(symbols.combine(one, two), three)
    assert left == symbols.combine(symbols.combine(one, two), three) >= 0
    assert left != symbols.combine(one, symbols.combine(two, three))
    assert symbols.leaves(left, 9) == [one, two, three]
    assert symbols.leaves(symbols.combine(left, left), 4) == [one, two, three, one]


def test_garbage_spoils_what_it_meets():
    symbols = table()
    one = symbols.contribution(0, 0, 0)
    assert symbols.combine(one, GARBAGE) is symbols.combine(GARBAGE, one) is GARBAGE


def test_swapped_operands_have_the_same_bits_and_another_association_has_not():
    symbols = table()
    one, two, three = (symbols.contribution(0, 0, rank) for rank in range(3))
    left = symbols.combine(symbols.combine(one, two), three)
    swapped = symbols.combine(three, symbols.combine(two, one))
    right = symbols.combine(one, symbols.combine(two, three))
    assert symbols.associate_alike(left, swapped) and symbols.associate_alike(left, left)
    assert not symbols.associate_alike(left, right)
    assert symbols.associate_alike(one, one) and not symbols.associate_alike(one, two)
    assert not symbols.associate_alike(one, GARBAGE)


def test_contributions_in_words():
    symbols = table()
    assert symbols.describe([symbols.contribution(2, 1, 3), symbols.contribution(0, 0, 1)]) == (
        "rank 3's block 2, rank 1's block 0")
    assert symbols.describe([symbols.contribution(0, 0, 0)] * 9).endswith("block 0 ...")


def test_a_row_is_in_parts_only_between_common_ends():
    row = [(key, 10 + key) for key in range(5)]
    keys = (0, 2, 1, 3, 4)
    held = write_pieces(keys, row)
    assert held[0] == 10 and held[3:] == [13, 14]
    assert held[1:3] == [BlockPart(((1, 11), (2, 12)), (2, 1), place) for place in (0, 1)]
    assert pieces_of(keys, held) == row
    assert write_pieces(range(5), pieces_of(keys, held)) == [10, 11, 12, 13, 14]
    assert pieces_of(keys[:2], held[:2]) == [(0, 10), (2, held[1])]
    turned = write_pieces((4, 0, 1, 2, 3), row)
    assert all(isinstance(symbol, BlockPart) for symbol in turned)


def test_equal_keys_end_together_however_often_they_come():
    assert write_pieces((1, 1, 2), [(1, 5), (1, 6), (2, 7)]) == [5, 6, 7]
    held = write_pieces((1, 2, 1), [(1, 5), (1, 6), (2, 7)])
    assert held[0] == 5 and held[1].slots == (2, 1) and held[2].place == 1
