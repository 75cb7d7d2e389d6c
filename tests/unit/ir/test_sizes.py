"""Programs for blocks of any size equal the ones that are lowered for each size."""

import operator
import random

import pytest

from hpccoll.algorithms import ALGORITHMS, schedule
from hpccoll.calls.layouts import block_layout, pair_layout, split_layout, vector_counts
from hpccoll.errors import HpccollError
from hpccoll.ir.lowering import lower
from hpccoll.ir.sizes import Size, UndecidedError, lowered_at, maximum
from hpccoll.runtime.execution.compiled_plan import encode, encode_any_size

PAIRS = [(collective, name) for collective, entries in ALGORITHMS.items() for name in entries
         if collective != "barrier"]
N, M = Size.of(0), Size.of(1)


def test_arithmetic_is_that_of_numbers():
    values = [5, 9]
    for make in (lambda n, m: 3 * n + m - n, lambda n, m: 4 - n + m, lambda n, m: sum([n, m, 2]),
                 lambda n, m: (n + m) * 2 - m):
        assert make(N, M).at(values) == make(*values)
    assert N + M - M == N and N - N == 0 and not N - N and N and hash(N + M) == hash(M + N)


def test_a_comparison_has_one_result_for_all_sizes_or_none():
    assert N + M > N and N < 2 * N + 1 and N >= 1 and 0 < N and N <= N and not N > N
    for compare in (operator.lt, operator.le, operator.gt, operator.ge):
        with pytest.raises(UndecidedError):
            compare(N, M)
        with pytest.raises(UndecidedError):
            compare(N, 2)
    assert maximum(N, 2 * N) == 2 * N and maximum(3, 2) == 3 and maximum(N + 4, M) == N + M + 4


def layouts(made, rank, source):
    """Layouts for any sizes, and for some: of vectors, of equal blocks, of one count per rank."""
    size, name = made.size, made.collective.name
    for in_place in (False, True):
        if made.collective.payload == "vector":
            n = source.randint(made.nblocks, 40 * made.nblocks)
            counts = vector_counts(n, made.nblocks, source.choice((1, 4)))
            yield [split_layout(made, rank, blocks, in_place) for blocks in (
                [Size.of(block) for block in range(made.nblocks)], counts)], counts
        elif name == "alltoall":
            n = source.randint(1, 50)
            yield [pair_layout(made, rank, [one] * size, [one] * size, [i * one for i in range(
                size)], [i * one for i in range(size)])[0] for one in (N, n)], [n]
        else:
            n, counts = source.randint(1, 50), [source.randint(1, 30) for _ in range(size)]
            yield [block_layout(made, rank, [one] * size, in_place)[0] for one in (N, n)], [n]
            if not made.uniform:
                yield [block_layout(made, rank, blocks, in_place)[0] for blocks in (
                    [Size.of(rank) for rank in range(size)], counts)], counts


@pytest.mark.long(every=5)
@pytest.mark.slow(every=10)
@pytest.mark.parametrize("collective, name", PAIRS)
def test_a_program_for_any_size_is_that_of_the_size(collective, name):
    source, compared = random.Random(f"{collective} {name}"), 0
    for size in range(1, 18):
        nodes = [f"{size - size // 2},{size // 2}", f"1x{size}"] if size > 1 else []
        for layout in nodes if ALGORITHMS[collective][name].hierarchical else [None]:
            try:
                made = schedule(collective, name, size, **({"topology": layout} if layout else {}))
            except HpccollError:
                continue  # it is not for so many ranks
            for rank in {0, size // 2, size - 1}:
                for (symbols, numbers), counts in layouts(made, rank, source):
                    general, special = (lower(made.program(rank), one)
                                        for one in (symbols, numbers))
                    found = lowered_at(general, counts)
                    assert found.scratch >= special.scratch
                    assert found._replace(scratch=0) == special._replace(scratch=0)
                    code, expected = encode_any_size(general, 8, 4), encode(special, 8, 4)
                    assert (code is None) == (expected is None)
                    if code is not None:
                        words = [word.at(counts) if isinstance(word, Size) else word
                                 for word in code.words]
                        assert words == list(expected.words) and code.ways == expected.ways
                    compared += 1
    assert compared
