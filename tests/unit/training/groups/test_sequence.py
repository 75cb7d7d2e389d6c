"""Ulysses: position-coded tensors land where they must, and come back; bytes are the formula's."""

import ml_dtypes
import numpy
import pytest

from hpccoll.errors import ArgumentError
from hpccoll.training.groups.sequence import Ulysses, part_boundaries
from support.threads import run_ranks

SIZES = 1, 2, 3, 5, 7, 8


def coded(tokens, heads, rest=(2,), dtype="i8"):
    """Every element says where it belongs."""
    shape = tokens, heads, *rest
    return numpy.arange(numpy.prod(shape)).reshape(shape).astype(dtype)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("tokens, heads, rest", [
    (0, 4, (2,)), (1, 1, ()), (17, 5, (3,)), (24, 8, (2, 2)), (7, 3, (0,)), (840, 840, ())])
def test_elements_land_at_their_computed_places(size, tokens, heads, rest):
    whole = coded(tokens, heads, rest)

    def function(comm):
        form, rank = Ulysses(comm, tokens, heads), comm.rank
        token, head = form.token_cuts, form.head_cuts
        mine = whole[token[rank]:token[rank + 1]]
        before = mine.copy()
        inside = form.to_heads(mine)
        assert inside.flags.c_contiguous and inside.dtype == whole.dtype
        assert numpy.array_equal(inside, whole[:, head[rank]:head[rank + 1]])
        back = form.to_tokens(inside)
        assert numpy.array_equal(back, before) and numpy.array_equal(mine, before)
        return back.shape

    assert sum(shape[0] for shape in run_ranks(size, function)) == tokens


@pytest.mark.parametrize("dtype", ["f4", "f2", ml_dtypes.bfloat16, "?"])
def test_types_and_strides(dtype):
    whole = coded(6, 4, (3,), dtype)

    def function(comm):
        form = Ulysses(comm, 6, 4)
        mine = numpy.asfortranarray(whole[form.token_cuts[comm.rank]:][:form.my_tokens])
        inside = form.to_heads(mine)
        back = form.to_tokens(numpy.asfortranarray(inside))
        return numpy.array_equal(mine, back) and back.dtype == dtype

    assert all(run_ranks(3, function))


@pytest.mark.parametrize("size", SIZES)
def test_four_exchanges_send_what_the_formula_says(size):
    tokens, heads, width, itemsize = 2 * size, 3 * size, 4, 4

    def function(comm):
        form = Ulysses(comm, tokens, heads)
        part = numpy.zeros((form.my_tokens, heads, width), "f4")
        before = comm.sent_bytes
        inside = [form.to_heads(part) for _ in range(3)]
        form.to_tokens(inside[0])
        return comm.sent_bytes - before

    hidden = heads * width
    formula = 4 * (tokens * hidden // size) * itemsize * (size - 1) // size
    assert run_ranks(size, function) == [formula] * size


def test_uneven_parts_send_as_much_as_they_must():
    def function(comm):
        form = Ulysses(comm, 7, 5)
        before = comm.sent_bytes
        form.to_heads(numpy.zeros((form.my_tokens, 5), "u1"))
        return comm.sent_bytes - before

    heads, tokens = numpy.diff(part_boundaries(5, 3)), numpy.diff(part_boundaries(7, 3))
    assert run_ranks(3, function) == [tokens[rank] * (5 - heads[rank]) for rank in range(3)]


def test_each_way_is_the_transpose_of_the_other():
    rng = numpy.random.default_rng(0)
    whole, other = rng.integers(-9, 9, (2, 7, 5)).astype("f8")

    def function(comm):
        form, rank = Ulysses(comm, 7, 5), comm.rank
        mine = whole[form.token_cuts[rank]:form.token_cuts[rank + 1]]
        theirs = other[:, form.head_cuts[rank]:form.head_cuts[rank + 1]]
        return (form.to_heads(mine) * theirs).sum(), (mine * form.to_tokens(theirs)).sum()

    forward, backward = map(sum, zip(*run_ranks(3, function)))
    assert forward == backward == (whole * other).sum()


def test_another_shape_is_refused():
    def function(comm):
        form = Ulysses(comm, 4, 4)
        with pytest.raises(ArgumentError, match=r"\(3, 4\).*rank \d.*2 tokens"):
            form.to_heads(numpy.zeros((3, 4)))
        with pytest.raises(ArgumentError, match="4 tokens.*2 heads"):
            form.to_tokens(numpy.zeros((4, 4)))
        with pytest.raises(ArgumentError, match="heads: .*-1"):
            Ulysses(comm, 4, -1)

    run_ranks(2, function)


def test_cuts_are_even():
    for count in range(20):
        for parts in SIZES:
            lengths = numpy.diff(part_boundaries(count, parts))
            assert len(lengths) == parts and lengths.sum() == count
            assert lengths.max() - lengths.min() <= 1 and sorted(lengths)[::-1] == lengths.tolist()
