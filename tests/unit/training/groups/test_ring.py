"""Rings: every rank sees every block once, sums come home, and bytes are the formula's."""

import time

import ml_dtypes
import numpy
import pytest

from hpccoll.errors import CollectiveTimeout, MessageSizeError
from hpccoll.training.groups.ring import ring_blocks, ring_sums
from support.threads import run_ranks

SIZES = 1, 2, 3, 5, 7, 8


def block_of(rank, dtype="i8"):
    return (numpy.arange(2 * (rank % 3)).reshape(-1, 2) + 100 * rank + 1).astype(dtype)


@pytest.mark.parametrize("size", SIZES)
def test_every_block_comes_round_once_and_own_first(size):
    def function(comm):
        own = block_of(comm.rank)
        seen = []
        for owner, block in ring_blocks(comm, own):
            assert numpy.array_equal(block, block_of(owner)) and not block.flags.writeable
            time.sleep(0.0005 * (comm.rank % 2))
            assert numpy.array_equal(block, block_of(owner))
            seen.append(owner)
        assert numpy.array_equal(own, block_of(comm.rank)) and own.flags.writeable
        return seen

    for rank, seen in enumerate(run_ranks(size, function)):
        assert seen == [(rank - turn) % size for turn in range(size)]


@pytest.mark.parametrize("size", SIZES)
def test_sums_come_home(size):
    def function(comm):
        own = block_of(comm.rank, "f8")
        sums = numpy.full_like(own, numpy.nan)
        for owner, block, added in ring_sums(comm, own, sums):
            assert not added.any()
            added += block * 2.0 ** comm.rank
            assert numpy.array_equal(block, block_of(owner))
        return sums

    for rank, sums in enumerate(run_ranks(size, function)):
        assert numpy.array_equal(sums, block_of(rank) * (2.0 ** size - 1))


def test_a_ring_of_attention_gives_the_gradients_of_whole_attention():
    rng = numpy.random.default_rng(3)
    queries, keys = rng.integers(-3, 4, (2, 8, 4)).astype("f8")

    def function(comm):
        mine = slice(2 * comm.rank, 2 * comm.rank + 2)
        scores, gradient = numpy.empty((2, 8)), numpy.empty((2, 4))
        for owner, block in ring_blocks(comm, keys[mine]):
            scores[:, 2 * owner:2 * owner + 2] = queries[mine] @ block.T
        for owner, _, added in ring_sums(comm, keys[mine], gradient):
            added += scores[:, 2 * owner:2 * owner + 2].T @ queries[mine]
        return scores, gradient

    scores, gradients = zip(*run_ranks(4, function))
    assert numpy.array_equal(numpy.concatenate(scores), queries @ keys.T)
    assert numpy.array_equal(numpy.concatenate(gradients), (queries @ keys.T).T @ queries)


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
