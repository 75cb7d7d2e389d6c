"""Sequences and experts on groups of ranks."""

import math
import time

import ml_dtypes
import numpy
import pytest

from hpccoll.errors import ArgumentError, CollectiveTimeout, MessageSizeError
from hpccoll.training.groups.experts import Experts
from hpccoll.training.groups.neighbours import ring_blocks, ring_sums
from hpccoll.training.groups.sequence import Ulysses
from support.threads import run_ranks

# Experts: rows reach whom they chose, come back weighted, are dropped and counted; gradients
SIZES = 1, 2, 3, 5, 7, 8


def tokens_of(rank):
    """Rows that say where they come from; ranks have different numbers of them, some none."""
    count = (3 * rank + 2) % 7
    return 1000.0 * rank + 10 * numpy.arange(count)[:, None] + numpy.arange(2)


def choices_of(rank, experts, k):
    count = len(tokens_of(rank))
    first = (numpy.arange(count) * 5 + rank) % experts
    return (first[:, None] + numpy.arange(k)) % experts


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("experts, k", [(1, 1), (5, 2), (8, 1), (13, 3)])
def test_rows_reach_their_experts_in_order_and_come_back(size, experts, k):
    k = min(k, experts)

    def function(comm):
        owner = Experts(comm, experts)
        mine, chosen = tokens_of(comm.rank), choices_of(comm.rank, experts, k)
        weights = 2.0 ** -numpy.arange(k) * numpy.ones(chosen.shape)
        sent = owner.dispatch(mine, chosen, weights)
        first = owner.cuts[comm.rank]
        number = numpy.repeat(numpy.arange(len(sent.counts)) + first, sent.counts)
        back = sent.combine(sent.tokens * 2.0 ** number[:, None])
        assert sent.dropped == 0
        return sent.tokens, sent.counts, back, owner.cuts

    for rank, (arrived, counts, back, cut) in enumerate(run_ranks(size, function)):
        wanted = [tokens_of(source)[token]
                  for expert in range(cut[rank], cut[rank + 1]) for source in range(size)
                  for choice in range(k) for token in range(len(tokens_of(source)))
                  if choices_of(source, experts, k)[token, choice] == expert]
        assert numpy.array_equal(arrived, numpy.array(wanted).reshape(-1, 2))
        assert counts.sum() == len(wanted) and len(counts) == cut[rank + 1] - cut[rank]
        scale = (2.0 ** choices_of(rank, experts, k) * 2.0 ** -numpy.arange(k)).sum(1)
        assert numpy.array_equal(back, tokens_of(rank) * scale[:, None])


def test_first_choices_have_room_before_second_ones():
    def function(comm):
        owner = Experts(comm, 2, capacity=2)
        chosen = numpy.array([[1, 0], [0, 1], [0, 1], [0, 1]])
        mine = 10.0 * comm.rank + numpy.arange(4.0)[:, None] + 1
        sent = owner.dispatch(mine, chosen)
        return sent.tokens.ravel(), sent.dropped, sent.combine(sent.tokens).ravel()

    (first, dropped, back), (second, _, _) = run_ranks(2, function)
    # Expert 0: tokens 1 and 2 by first choice. Expert 1: token 0 by first, 1 by second choice.
    assert first.tolist() == [2, 3, 12, 13] and second.tolist() == [1, 2, 11, 12]
    assert dropped == 8 - 4 and back.tolist() == [1, 4, 3, 0]


@pytest.mark.parametrize("size", SIZES)
def test_what_is_dropped_is_counted_exactly(size):
    def function(comm):
        chosen = choices_of(comm.rank, 3, 2)
        sent = Experts(comm, 3, capacity=1).dispatch(tokens_of(comm.rank), chosen)
        assert (sent.counts <= size).all()
        return sent.dropped, chosen.size - len(numpy.unique(chosen)), len(sent.tokens)

    dropped, wanted, arrived = zip(*run_ranks(size, function))
    assert dropped == wanted
    assert sum(arrived) == sum(choices_of(rank, 3, 2).size for rank in range(size)) - sum(dropped)


@pytest.mark.parametrize("capacity", [None, 1])
def test_gradients_are_those_of_one_process(capacity):
    rng = numpy.random.default_rng(5)
    size, experts, k = 3, 4, 2
    factors = 2.0 + numpy.arange(experts)
    tokens, upstream = rng.integers(-4, 5, (2, size, 6, 2)).astype("f8")
    weights = rng.integers(1, 4, (size, 6, k)).astype("f8")
    chosen = numpy.stack([rng.permuted(numpy.tile(numpy.arange(experts), (6, 1)), axis=1)[:, :k]
                          for _ in range(size)])

    def function(comm):
        rank = comm.rank
        owner = Experts(comm, experts, capacity)
        sent = owner.dispatch(tokens[rank], chosen[rank], weights[rank])
        mine = numpy.repeat(factors[owner.cuts[rank]:owner.cuts[rank + 1]], sent.counts)[:, None]
        with pytest.raises(ArgumentError, match="combine"):
            sent.combine_gradients(upstream[rank])
        sent.combine(sent.tokens * mine)
        of_outputs, of_weights = sent.combine_gradients(upstream[rank])
        return sent.token_gradients(of_outputs * mine), of_weights

    for rank, (of_tokens, of_weights) in enumerate(run_ranks(size, function)):
        room = {expert: capacity or 99 for expert in range(experts)}
        kept = numpy.zeros((6, k))
        for choice in range(k):
            for token in range(6):
                expert = chosen[rank, token, choice]
                kept[token, choice] = room[expert] > 0
                room[expert] -= 1
        factor = factors[chosen[rank]] * kept
        assert numpy.array_equal(of_tokens,
                                 upstream[rank] * (weights[rank] * factor).sum(1)[:, None])
        products = (upstream[rank] * tokens[rank]).sum(1)
        assert numpy.array_equal(of_weights, factor * products[:, None])


def test_only_rows_and_counts_travel():
    def function(comm):
        before = comm.sent_bytes
        mine = numpy.zeros((4, 8), ml_dtypes.bfloat16)
        # Three of the four go to the other rank.
        sent = Experts(comm, 2).dispatch(mine, numpy.array([1, 1, 1, 0]) ^ comm.rank)
        there = comm.sent_bytes - before
        sent.combine(sent.tokens)
        return there, comm.sent_bytes - before - there

    assert run_ranks(2, function) == [(2 * 8 + 3 * 16, 3 * 16)] * 2


@pytest.mark.parametrize("chosen, words", [
    ([0, 4], "contains experts 0 to 4; valid experts are 0 to 3"),
    ([-1, 0], "contains experts -1 to 0"),
    ([0], r"has shape \(1, 1\) for 2 tokens"), ([0.5, 1], "elements of type float64")])
def test_a_choice_that_cannot_be_is_an_error_on_all_ranks(chosen, words):
    def function(comm):
        wrong = comm.rank == 1
        with pytest.raises(ArgumentError) as caught:
            Experts(comm, [2, 2, 0]).dispatch(numpy.zeros((2, 1)), chosen if wrong else [0, 1])
        assert "invalid arguments on rank 1" in str(caught.value)
        if wrong:
            assert caught.match(words)
        return comm.allreduce(1)

    assert run_ranks(3, function) == [3] * 3


def test_weights_and_rows_are_checked():
    def function(comm):
        owner = Experts(comm, 2)
        with pytest.raises(ArgumentError, match=r"weights: .*shape \(3, 1\)"):
            owner.dispatch(numpy.zeros((2, 1)), [0, 1], [1, 1, 1])
        sent = owner.dispatch(numpy.zeros((2, 1)), [0, 1])
        with pytest.raises(ArgumentError, match="outputs: .*3 rows.*rank 0.*2"):
            sent.combine(numpy.zeros((3, 1)))

    run_ranks(1, function)


@pytest.mark.parametrize("experts, capacity, words", [
    (0, None, "experts: .*0.*2 ranks"), ([1, 2, 3], None, "2 ranks"),
    ([3, -1], None, r"got \[3, -1\]"), ([0, 0], None, "at least 1"), (2, 0, "capacity: .*0")])
def test_numbers_of_experts(experts, capacity, words):
    def function(comm):
        with pytest.raises(ArgumentError, match=words):
            Experts(comm, experts, capacity)

    run_ranks(2, function)


# Rings: every rank sees every block once, sums come home, and bytes are the formula's
def block_of(rank, dtype="i8"):
    return (numpy.arange(2 * (rank % 3)).reshape(-1, 2) + 100 * rank + 1).astype(dtype)


@pytest.mark.parametrize("size", SIZES)
def test_every_block_comes_round_once_and_sums_come_home(size):
    def function(comm):
        own = block_of(comm.rank, "f8")
        seen, sums = [], numpy.full_like(own, numpy.nan)
        for owner, block in ring_blocks(comm, own):
            assert numpy.array_equal(block, block_of(owner)) and not block.flags.writeable
            time.sleep(0.0005 * (comm.rank % 2))
            assert numpy.array_equal(block, block_of(owner))
            seen.append(owner)
        for owner, block, added in ring_sums(comm, own, sums):
            assert not added.any()
            added += block * 2.0 ** comm.rank
            assert numpy.array_equal(block, block_of(owner))
        assert numpy.array_equal(own, block_of(comm.rank)) and own.flags.writeable
        return seen, sums

    for rank, (seen, sums) in enumerate(run_ranks(size, function)):
        assert seen == [(rank - turn) % size for turn in range(size)]  # its own one first
        assert numpy.array_equal(sums, block_of(rank) * (2.0 ** size - 1))


@pytest.mark.parametrize("size", SIZES)
def test_bytes_on_the_wire(size):
    shapes = [(3, 5)] * size

    def function(comm):
        block = numpy.zeros((3, 5), ml_dtypes.bfloat16)
        before = comm.sent_bytes
        for _ in ring_blocks(comm, block, shapes):
            pass
        blocks = comm.sent_bytes - before
        for _ in ring_sums(comm, block, numpy.empty_like(block), shapes):
            pass
        return blocks, comm.sent_bytes - before - blocks

    # Blocks stop before they would come home; sums do come home.
    assert run_ranks(size, function) == [
        (30 * (size - 1), 30 * (size - 1) + 30 * size * (size > 1))] * size


def test_the_next_block_travels_while_this_one_is_used():
    def function(comm):
        ring = ring_blocks(comm, block_of(comm.rank), [block_of(r).shape for r in range(2)])
        next(ring)
        before = comm.sent_bytes
        comm.Barrier()
        assert comm.sent_bytes == before
        return before, len(list(ring))

    assert run_ranks(2, function) == [(block_of(rank).nbytes, 1) for rank in range(2)]


def test_shapes_that_are_not_those_of_the_blocks():
    def function(comm):
        for _ in ring_blocks(comm, numpy.zeros(3 + comm.rank), [(3,), (3,)]):
            pass

    with pytest.raises(MessageSizeError, match="rank 1.*bytes|32 bytes"):
        run_ranks(2, function)
    with pytest.raises(MessageSizeError, match="rank 1.*16 bytes, rank 0.*24"):
        run_ranks(2, lambda comm: list(ring_blocks(comm, numpy.zeros(3 - comm.rank), [(3,)] * 2)))


def test_a_neighbour_that_does_not_come_is_named(monkeypatch):
    monkeypatch.setenv("HPCCOLL_TIMEOUT", "0.05")

    def function(comm):
        if comm.rank == 1:
            return comm.recv(source=0, tag=5)
        with pytest.raises(CollectiveTimeout, match="rank 1: ring.*rank 0"):
            list(ring_blocks(comm, numpy.zeros(2), [(2,), (2,)]))
        comm.isend("over", 1, 5).wait()
        return "over"

    assert run_ranks(2, function, timeout=20) == ["over"] * 2


# Ulysses: position-coded tensors land where they must, and come back; bytes are the formula's
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
        sent = [comm.sent_bytes]
        inside = form.to_heads(mine)
        sent.append(comm.sent_bytes)
        assert inside.flags.c_contiguous and inside.dtype == whole.dtype
        assert numpy.array_equal(inside, whole[:, head[rank]:head[rank + 1]])
        back = form.to_tokens(inside)
        sent.append(comm.sent_bytes)
        assert numpy.array_equal(back, before) and numpy.array_equal(mine, before)
        # All but the part that stays: (P - 1) / P of the elements where parts are equal.
        here, mine_heads = form.my_tokens, head[rank + 1] - head[rank]
        row = whole.itemsize * math.prod(rest)
        assert numpy.diff(sent).tolist() == [here * (heads - mine_heads) * row,
                                             (tokens - here) * mine_heads * row]
        return back.shape

    assert sum(shape[0] for shape in run_ranks(size, function)) == tokens


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
